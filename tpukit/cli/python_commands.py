"""Commands on workers that lack something: the words `--`, an environment, or a program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tpukit.cli.parameters import remote_command
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.cli.toolkit import Toolkit
    from tpukit.console import Console
    from tpukit.ssh.worker import RemoteWorker

#: A shell's exit status if it cannot find a program.
NO_PROGRAM = 127
#: The programs that run in the provisioned environment if there is exactly one.
_PYTHON = ("python", "python3")
#: Programs that run another one; their own arguments are options, variables and numbers.
_RUNNERS = ("env", "exec", "nice", "nohup", "stdbuf", "time", "timeout")
_OWN_ARGUMENT = re.compile(r"-|\d")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


def cache_variable(toolkit: Toolkit) -> dict[str, str]:
    """Return the variable that gives recipes the place of compiled programs, if one is set."""
    place = toolkit.settings.get("compilation_cache")
    return {"TPUKIT_COMPILATION_CACHE": place} if place else {}


def required_command(command: Sequence[str] | None) -> str:
    """Return the shell line of a command; raise `BadInput` if there is none."""
    line = remote_command([*command] if command else None)
    if not line:
        raise BadInput("there is no command to run")
    return line


def program(line: str) -> str:
    """Return the first program of a shell line, after variables and `env`, `nohup` and others.

    It is "" if the line has none, or if its quotes are not closed.
    """
    before = ""
    with suppress(ValueError):
        for word in shlex.split(line):
            own = _VARIABLE.match(word) or (before and _OWN_ARGUMENT.match(word))
            if not own and word not in _RUNNERS:
                return word
            before = before if own else word
    return ""


def is_python(line: str) -> bool:
    """Return True if a shell line starts Python by its bare name."""
    return program(line) in _PYTHON


def environment_for(toolkit: Toolkit, given: str, workers: list[RemoteWorker], line: str) -> str:
    """Return the environment for a command: the given one, or for Python the only one there is.

    Raises `BadInput` if it is not the same on every slice.
    """
    from tpukit.jobs.python_environments import common_environment

    if given or not is_python(line):
        return given
    there = common_environment(workers, toolkit.clock)
    if there:
        say_environment(toolkit.console, there)
    return there


def say_environment(console: Console, name: str) -> None:
    """Say whose Python a command gets that did not ask for an environment."""
    console.say(f"python: of the environment {name} (/usr/bin/python3: the system's)")


def explain_missing_program(
    toolkit: Toolkit, workers: list[RemoteWorker], recipe: str, line: str
) -> None:
    """Raise `NotFound` if the workers lack the environment; without one, suggest those they have.

    A program that was named by its path is in no environment.
    """
    from tpukit.jobs.python_environments import environments, require_environment

    if recipe:
        require_environment(workers, recipe, toolkit.clock)
        return
    if program(line).endswith(".py"):
        toolkit.console.suggest(Fix(note=f"start it with Python: -- python {one_line(line)[:60]}"))
        return
    with suppress(TpukitError):  # this is only a hint
        there = [] if "/" in program(line) else environments(workers[0], toolkit.clock)
        if there:
            flags = " or ".join(f"--with {name}" for name in there)
            toolkit.console.suggest(Fix(note=f"add {flags}: then its programs are found, too"))

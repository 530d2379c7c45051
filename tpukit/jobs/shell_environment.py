"""Variables for commands on workers; they are sent on standard input, not on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tpukit.errors import BadInput, Fix
from tpukit.ssh import agent_client, worker_files
from tpukit.ssh.programs import shell_line
from tpukit.text import is_utf8, one_line, quote

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType

#: A word in braces, or in doubled braces, which stay as single ones; `${worker}` is the shell's.
_WORDS = "worker|workers|coordinator|slice|slice_index|slices|chip|chips"
_IN_BRACES = re.compile(rf"(?<!\$)(?<!\$\{{)(?:\{{(\{{(?:{_WORDS})\}})\}}|\{{({_WORDS})\}})")
#: torch_xla needs PJRT_DEVICE: pytorch/xla:torch_xla/_internal/__init__.py. A value that the worker
#: or the user has set stays.
_DEVICE = """\
: "${PJRT_DEVICE:=${TPUKIT_EMULATED_DEVICES:+CPU}}"
export PJRT_DEVICE="${PJRT_DEVICE:-TPU}"
"""
#: The word in a recipe's value for the folder or bucket of compiled programs. The user's setting
#: travels in a variable.
_CACHE = "{compilation_cache}"
_CACHE_WORD = f'"${{TPUKIT_COMPILATION_CACHE:-$HOME/{worker_files.COMPILATION_CACHE}}}"'


def shell_lines(variables: Mapping[str, str], recipe: str = "", folder: str = "") -> str:
    """Return the POSIX shell lines that set up a command's environment.

    The programs of the environment `recipe` come first in PATH, and the command starts in `folder`.
    The recipe's own variables (`recipe_lines`) are set last: they replace none that is set.
    If the environment is missing, the lines exit with 127, as for a missing program; if the folder
    is missing, with 1.
    """
    lines = "".join(f"export {name}={quote([value])}\n" for name, value in variables.items())
    lines += f"cd -- {quote([folder])} || exit 1\n" if folder else ""
    if not recipe:
        return lines
    venv = worker_files.shell_word(worker_files.venv(recipe))
    own = worker_files.shell_word(worker_files.venv_variables(recipe))
    there = f"[ -x {venv}/bin/python ] || exit 127\n"
    lines = f'{there}export VIRTUAL_ENV={venv} PATH={venv}/bin:"$PATH"\n{lines}'
    return f"{lines}[ ! -r {own} ] || . {own}\n"


def recipe_lines(variables: Mapping[str, str]) -> str:
    """Return the lines of a recipe's variables: they set and export all that are not set yet."""
    return "".join(
        f'[ "${{{name}+set}}" ] || {name}={_word(value)}\nexport {name}\n'
        for name, value in variables.items()
    )


def _word(value: str) -> str:
    return _CACHE_WORD.join(quote([part]) if part else "" for part in value.split(_CACHE))


def shell_with(recipe: str, variables: Mapping[str, str]) -> str:
    """Return the POSIX shell text that becomes an interactive shell with an environment's programs.

    It runs the user's login files before it changes PATH, because they could hide the environment.
    """
    inside = shell_lines(variables, recipe) + 'exec "${SHELL:-/bin/sh}"\n'
    return f'exec "${{SHELL:-/bin/sh}}" -l -c {quote([shell_line(inside)])}\n'


def launch(
    command: str,
    words: Mapping[str, str],
    *,
    sudo: bool = False,
    per_chip: AcceleratorType | None = None,
    service: Mapping[str, Any] | None = None,
) -> str:
    """Return the POSIX shell text that becomes a command, with `{worker}` and others replaced.

    The user's shell runs it, as with sshd; with `sudo` it runs as root in the same environment.
    SHLVL=1 keeps bash from reading .bashrc again, which it does in the first shell of an SSH
    session (shell.c, run_startup_files; Debian: SSH_SOURCE_BASHRC).

    With `per_chip`, the worker's type, the agent runs one process for each chip. With `service`,
    further words of its request, the agent runs the command as a service. It must be there.
    """
    if service:
        request = {**service, "command": _filled(command, words)}
        return _DEVICE + agent_client.become("run_service", request)
    if per_chip:
        chips = per_chip.chips_per_worker
        # The text is sent once: an argument of a program has at most 128 KiB (Linux, execve(2)).
        filled = _filled(command, {**words, "chip": "\0", "chips": str(chips)})
        request = {"command": filled.split("\0"), "chips": chips, "sudo": sudo}
        request["accelerator_type"] = per_chip.name
        return _DEVICE + agent_client.become("run_per_chip", request)
    line = quote([_filled(command, words)])
    # sudo would replace PATH.
    root = 'sudo -n -E -- env PATH="$PATH"' if sudo else "env"
    return f'{_DEVICE}exec {root} SHLVL=1 "${{SHELL:-/bin/sh}}" -c {line}\n'


def _filled(command: str, words: Mapping[str, str]) -> str:
    return _IN_BRACES.sub(lambda match: match[1] or words.get(match[2], match[0]), command)


def parse_assignments(words: Iterable[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return `NAME=VALUE` words as variables; a bare `NAME` takes its value from `own`.

    Raises:
        BadInput: an invalid name, a variable that is not set, or a value that is not UTF-8.
    """
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.isascii() and name.isidentifier()) or "\0" in value:
            raise BadInput(
                f"{one_line(name)[:60]!r} cannot name a variable",
                fix=Fix(note="--env takes NAME=VALUE"),
            )
        if not equals and name not in own:
            raise BadInput(
                f"{name} is not set here", fix=Fix(note=f"give it a value: --env {name}=…")
            )
        variables[name] = value if equals else own[name]
        if not is_utf8(variables[name]):
            raise BadInput(f"the value of {name} is not UTF-8 text")
    return variables


def parse_file(content: bytes, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment file: one `NAME=VALUE` a line, `#` for comments.

    Quotation marks around a value are removed; no other character is special. Raises `BadInput` if
    the file is not UTF-8, and the errors of `parse_assignments`.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"line {number} of the environment file is not UTF-8 text") from error
    lines = (line.strip().removeprefix("export ") for line in text.split("\n"))
    return parse_assignments((_unquoted(line) for line in lines if line and line[0] != "#"), own)


def _unquoted(line: str) -> str:
    name, equals, value = line.partition("=")
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return f"{name.strip()}{equals}{value}"

"""`tpukit completion`: completion scripts for shells, and the candidates for a command line.

A script asks this program for candidates. They come from our own tables and from the names of
recently seen slices, never from the cloud: completion must be fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Annotated, Any

from typer import Argument

from tpukit.cli.pages import SUMMARIES
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.help import TOPICS
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.paths import Paths
from tpukit.settings.user_file import profiles
from tpukit.text import one_line

SHELLS = ("bash", "zsh", "fish")
#: A candidate that the script replaces by the names of files.
FILES = ":files"
Shell = Annotated[str, Argument(metavar="SHELL", help=f"{', '.join(SHELLS)}.")]


def completion(toolkit: Toolkit, shell: Shell) -> View:
    """Print the script for completion in a shell.

    It completes commands, flags, types, zones, and slices that tpukit saw in the last half hour.

    Examples:
      source <(tpukit completion bash)
      tpukit completion zsh > ~/.zfunc/_tpukit
      tpukit completion fish > ~/.config/fish/completions/tpukit.fish
    """
    if shell not in SHELLS:
        fix = Fix.command("tpukit", "completion", SHELLS[0])
        raise BadInput(f"there is no completion for {one_line(shell)!r}", fix=fix)
    script = files("tpukit").joinpath(f"cli/completions/tpukit.{shell}").read_text("utf-8")
    return View({"shell": shell, "script": script}, rows=[[line] for line in script.splitlines()])


def candidates(
    root: Any, words: Sequence[str], names: Callable[[], Iterable[str]]
) -> list[tuple[str, str]]:
    """Return a pair (word, meaning) for each completion of the last of these words.

    `root` is the command tree, which may contain only the command that the words name. `names`
    returns the names of slices.
    """
    *before, last = _joined(words)
    if "--" in before:
        return [(FILES, "")]
    command, given, flag = root, 0, None
    for word in before:
        if flag:
            flag = None  # this word is its value
        elif word.startswith("-"):
            flag = _flag(command, word) if "=" not in word else None
            flag = None if flag is None or flag.is_flag else flag
        elif hasattr(command, "commands"):
            command, given = _command(command, word)
            if command is None:
                return []
        else:
            given += 1
    head, equals, value = last.partition("=")
    if not flag and equals and (named := _flag(command, head)):
        fitting = _fitting(value, _values(named, names))
        return [(f"{head}={word}", meaning) for word, meaning in fitting]
    return _fitting(last, _values(flag, names) if flag else _here(command, given, last, names))


def _command(group: Any, word: str) -> tuple[Any, int]:
    """Return the command of a group that a word names, and the number of its arguments so far.

    A word that names none is the first argument of the group's default command.
    """
    default = group.commands.get(getattr(group, "default", ""))
    return (group.commands[word], 0) if word in group.commands else (default, 1)


def _here(
    command: Any, given: int, last: str, names: Callable[[], Iterable[str]]
) -> Iterable[tuple[str, str]]:
    """Return the candidates for a command's next word after `given` arguments."""
    if last.startswith("-"):
        return _flags(command)
    if hasattr(command, "commands"):
        default = command.commands.get(getattr(command, "default", ""))
        return [*_commands(command), *(_here(default, 0, last, names) if default else ())]
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    if given < len(arguments):
        return _values(arguments[given], names)
    return _values(arguments[-1], names) if arguments and arguments[-1].nargs == -1 else []


def _joined(words: Sequence[str]) -> list[str]:
    """Join the words that bash has split at an equals sign."""
    parts: list[str] = []
    for word in words or [""]:
        if parts and (word == "=" or parts[-1].endswith("=")) and parts[-1].startswith("--"):
            parts[-1] += word
        else:
            parts.append(word)
    return parts


def _flag(command: Any, word: str) -> Any:
    name = word.partition("=")[0]
    return next((parameter for parameter in command.params if name in parameter.opts), None)


def _flags(command: Any) -> Iterable[tuple[str, str]]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            yield from (
                (name, parameter.help or "") for name in parameter.opts if name.startswith("--")
            )
    yield "--help", "Show the page of this command."


def _commands(group: Any) -> Iterable[tuple[str, str]]:
    if group.name == "tpukit":
        return SUMMARIES.items()
    return [(name, command.get_short_help_str(60)) for name, command in group.commands.items()]


def _fitting(prefix: str, candidates: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        candidate
        for candidate in candidates
        if candidate[0].startswith(prefix) or candidate[0] == FILES
    ]


def _values(parameter: Any, names: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
    from tpukit import accelerators
    from tpukit.provision import recipe_names
    from tpukit.provision.system_steps import step_names

    kind = (parameter.metavar or "").strip("[]…")
    if kind in ("ACCELERATOR_TYPE", "PREFIX"):
        return [(item.name, f"{item.chips} chips") for item in accelerators.all_types()]
    if kind == "ZONE":
        zones = {zone for item in accelerators.all_types() for zone in item.facts.zones}
        return [(zone, "") for zone in sorted(zones)]
    if kind.startswith("NAME") and "=" not in kind:
        return [(name, "") for name in names()]
    if kind == "PROFILE":
        return [(name, "") for name in profiles(Paths.from_environment(os.environ))]
    own = {
        "RECIPE": recipe_names(),
        "RECIPE|STEP|SETUP": (*recipe_names(), *step_names()),
        "STEP|RECIPE|SETUP": (*recipe_names(), *step_names()),
        "STATE": ("ready", "stopped"),
        "SHELL": SHELLS,
        "TOPIC": (*TOPICS, *SUMMARIES),
        "VERSION": sorted({item.runtime_version for item in accelerators.all_types()}),
        "WORKERS": ("all",),
        "FILE": (FILES,),
        "DIRECTORY": (FILES,),
        "PATH": (FILES,),
        "SOURCE… DESTINATION": (FILES,),
    }
    return [(word, "") for word in own.get(kind, ())]

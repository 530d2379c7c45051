"""`tpukit completion`: the script that lets a shell complete command lines, and its answers.

A script asks this program for what may follow. The answer comes from our own tables and from the
names of slices seen lately: nothing asks the cloud while somebody waits for a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Annotated, Any

from typer import Argument

from tpukit.cli.help import TOPICS
from tpukit.cli.pages import SUMMARIES
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

SHELLS = ("bash", "zsh", "fish")
#: What a script turns into names of files.
FILES = ":files"
Shell = Annotated[str, Argument(metavar="SHELL", help=f"{', '.join(SHELLS)}.")]


def completion(toolkit: Toolkit, shell: Shell) -> View:
    """Print the script by which a shell completes words.

    It knows commands, flags, types, zones, and the slices that tpukit saw in the last half hour.

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
    """Return (word, meaning) for what may stand in the place of the last of these words.

    `root` is the command tree, of which the command that the words name is enough; `names` returns
    the names of slices.
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
        found = _fitting(value, _values(named, names))
        return [(f"{head}={word}", meaning) for word, meaning in found]
    return _fitting(last, _values(flag, names) if flag else _here(command, given, last, names))


def _command(group: Any, word: str) -> tuple[Any, int]:
    """Return the command of a group that a word leads to, and how many arguments it has then."""
    default = group.commands.get(getattr(group, "default", ""))
    return (group.commands[word], 0) if word in group.commands else (default, 1)


def _here(
    command: Any, given: int, last: str, names: Callable[[], Iterable[str]]
) -> Iterable[tuple[str, str]]:
    """Return what a command takes after so many arguments."""
    if last.startswith("-"):
        return _flags(command)
    if hasattr(command, "commands"):
        default = command.commands.get(getattr(command, "default", ""))
        return [*_commands(command), *(_here(default, 0, last, names) if default else ())]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    if given < len(arguments):
        return _values(arguments[given], names)
    return _values(arguments[-1], names) if arguments and arguments[-1].nargs == -1 else []


def _joined(words: Sequence[str]) -> list[str]:
    """Put together again what bash takes apart at an equals sign."""
    found: list[str] = []
    for word in words or [""]:
        if found and (word == "=" or found[-1].endswith("=")) and found[-1].startswith("--"):
            found[-1] += word
        else:
            found.append(word)
    return found


def _flag(command: Any, word: str) -> Any:
    name = word.partition("=")[0]
    return next((each for each in command.params if name in each.opts), None)


def _flags(command: Any) -> Iterable[tuple[str, str]]:
    for each in command.params:
        if each.param_type_name == "option" and not each.hidden:
            yield from ((name, each.help or "") for name in each.opts if name.startswith("--"))
    yield "--help", "Show the page of this command."


def _commands(group: Any) -> Iterable[tuple[str, str]]:
    if group.name == "tpukit":
        return SUMMARIES.items()
    return [(name, each.get_short_help_str(60)) for name, each in group.commands.items()]


def _fitting(prefix: str, found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [each for each in found if each[0].startswith(prefix) or each[0] == FILES]


def _values(parameter: Any, names: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
    from tpukit import accelerators
    from tpukit.provision import recipe_names
    from tpukit.provision.system_steps import step_names

    kind = (parameter.metavar or "").strip("[]…")
    if kind in ("ACCELERATOR_TYPE", "PREFIX"):
        return [(each.name, f"{each.chips} chips") for each in accelerators.all_types()]
    if kind == "ZONE":
        zones = {zone for each in accelerators.all_types() for zone in each.facts.zones}
        return [(zone, "") for zone in sorted(zones)]
    if kind.startswith("NAME") and "=" not in kind:
        return [(name, "") for name in names()]
    own = {
        "RECIPE": recipe_names(),
        "RECIPE|STEP|PROFILE": (*recipe_names(), *step_names()),
        "STEP|RECIPE|PROFILE": (*recipe_names(), *step_names()),
        "STATE": ("ready", "stopped"),
        "SHELL": SHELLS,
        "TOPIC": (*TOPICS, *SUMMARIES),
        "VERSION": sorted({each.runtime_version for each in accelerators.all_types()}),
        "WORKERS": ("all",),
        "FILE": (FILES,),
        "DIRECTORY": (FILES,),
        "PATH": (FILES,),
        "SOURCE… DESTINATION": (FILES,),
    }
    return [(word, "") for word in own.get(kind, ())]

"""The command line that was meant by a mistyped one, with the words of other programs.

`meant_line` is called only after a command has failed. It returns only lines that the commands
accept.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from itertools import islice, pairwise
from typing import Any

import typer
from typer.exceptions import TyperException

from tpukit.cli.global_flags import FORMATS, verb_index
from tpukit.cli.pages import GROUPS, VERBS
from tpukit.errors import Fix
from tpukit.settings.table import BY_NAME, DEFINITIONS

_TABLE = tomllib.loads(files("tpukit").joinpath("data", "meant_words.toml").read_text("utf-8"))


def _by_word(meant: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {word: ours for ours, words in meant.items() for word in words}


#: Words before a command.
_BEFORE = tuple(_TABLE["before"])
#: Our command for each word: `a|b` is b if a name follows.
WORDS = _by_word(_TABLE["words"])
#: The same for words after the name of one of our groups.
GROUP_WORDS = {group: _by_word(meant) for group, meant in _TABLE["group_words"].items()}
#: Our flag for each flag, or one of the signs "", "+" and "--".
FLAGS = _by_word(_TABLE["flags"])
#: Flags that are left out for commands that only read.
_WIDE = tuple(_TABLE["wide"])
_READING = ("list", "describe", "jobs", "logs", "top", "types", "versions", "zones")
#: The commands that need a command for the workers, with an example.
EXAMPLES = {"run": ("hostname",), "train": ("python", "train.py")}
_PYTHON = ("python", "python3")


@dataclass(frozen=True)
class Line:
    """A command line: the global flags before the verb, the verb, and the words after it."""

    before: tuple[str, ...]
    verb: tuple[str, ...]
    rest: tuple[str, ...]
    command: Any = None  #: Typer's

    @property
    def words(self) -> list[str]:
        return [*self.before, *self.verb, *self.rest]

    def takes(self, name: str) -> bool:
        """Return True if the command has this parameter."""
        return any(parameter.name == name for parameter in self.command.params)

    def flags(self) -> dict[str, bool]:
        """Return the flags that the command knows, each with True if a value follows it."""
        options = [one for one in self.command.params if one.param_type_name == "option"]
        return {flag: not option.is_flag for option in options for flag in option.opts}

    def valued(self, flag: str) -> bool:
        """Return True if a value follows a flag of ours or of another program."""
        known, meant = self.flags(), FLAGS.get(flag, "")
        return known[flag] if flag in known else meant in ("+", "--") or known.get(meant, False)

    def positions(self) -> list[int]:
        """Return where `rest` has arguments; unknown flags count as flags without a value."""
        found: list[int] = []
        value = False
        for at, word in enumerate(self.rest):
            if word == "--":
                break
            if not value and not word.startswith("-"):
                found.append(at)
            value = not value and self.valued(word)
        return found

    def accepted(self) -> bool:
        """Return True if the command accepts its words."""
        if "" in self.rest:
            return False
        try:
            with self.command.make_context(self.verb[-1], [*self.rest]):
                return True
        except typer.Exit:  # --help
            return True
        except TyperException:
            return False


def meant_line(
    arguments: Sequence[str], command_of: Callable[[str], Any], names: Sequence[str]
) -> Fix | None:
    """Return the line that was meant by the arguments, or None if they have no known mistake.

    `command_of` returns Typer's command for a verb or a group; `names` are those of the user's
    slices, as far as this machine remembers them.
    """
    given = _parsed(arguments, command_of)
    if given is None:
        return None
    if given.command is None:
        return Fix.command("tpukit", *given.words)
    at = verb_index(arguments)
    if tuple(arguments[at : at + len(given.verb)]) != given.verb:  # another program's, or a typo
        given = replace(given, rest=tuple(_without_force(given.rest)))
    line = _with_colon(_with_our_flags(_with_label(_with_dashes(given, names))))
    if line.verb == ("ssh",) and _on_all_workers(line):
        line = _with_dashes(replace(line, verb=("run",), command=command_of("run")), names)
    if line.verb == ("list",) and line.positions():
        line = replace(line, verb=("describe",), command=command_of("describe"))
    if line.verb == ("push",) and any(":" in line.rest[at] for at in line.positions()):
        line = replace(line, verb=("cp",), command=command_of("cp"))  # as rsync writes it
    if line.verb == ("push",) and _has_only_a_folder(line):
        if len(names) != 1:
            note = "shows the slices; name one before the folder"
            return Fix.command("tpukit", *given.before, "list", note=note)
        line = replace(line, rest=(names[0], *line.rest))
    if line.verb[0] in ("up", "create") and not line.positions():
        note = "lists the accelerator types; one of them comes first"
        return Fix.command("tpukit", *given.before, "types", note=note)
    if _lacks_name(line):
        if (
            len(names) != 1 or line.verb[0] == "queue" or {"--yes", "-y", "--force"} & {*line.rest}
        ):  # nobody would ask
            queue = ("queue",) if line.verb[0] == "queue" else ()
            note = f"shows the {'queued resources' if queue else 'slices'}; name one"
            return Fix.command("tpukit", *given.before, *queue, "list", note=note)
        line = replace(line, rest=(names[0], *line.rest))
    changed = line.words != [*arguments] and not (
        line.verb == ("cp",) and len(line.positions()) < 2
    )
    return Fix.command("tpukit", *line.words) if changed and line.accepted() else None


def _parsed(arguments: Sequence[str], command_of: Callable[[str], Any]) -> Line | None:
    """Return the line with our verb, or None if nothing tells which one was meant."""
    at = verb_index(arguments)
    before, words = tuple(arguments[:at]), list(arguments[at:])
    kubectl = words[:1] == ["kubectl"]
    while words and words[0] in _BEFORE:
        del words[0]
    if not words:
        return Line(before, ("list",), (), command_of("list")) if at < len(arguments) else None
    while (kubectl or words[0] not in (*VERBS, *GROUPS)) and words[1:2] and words[1] in _BEFORE:
        del words[1]  # get pods, rm tpu demo
    verb = _ours(words, (*VERBS, *GROUPS), {})
    if verb == "--version":
        return Line(before, (verb,), ())
    if not verb:
        return None
    first, *more = verb.split()
    rest, command = [*more, *words[1:]], command_of(first)
    if first not in GROUPS:
        return Line(before, (first,), tuple(rest), command)
    if first == "config":
        rest = _with_setting(rest)
    second = _ours(rest, tuple(command.commands), GROUP_WORDS.get(first, {})) if rest else ""
    if second:
        return Line(before, (first, second), tuple(rest[1:]), command.commands[second])
    inner = command.commands.get(command.default)
    return Line(before, (first,), tuple(rest), inner) if inner else None


def _ours(words: Sequence[str], ours: Sequence[str], own: dict[str, str]) -> str:
    """Return our command for the first word, which may be misspelled, or ""."""
    first = words[0]
    if first in ours or first.startswith("-"):
        return first if first in ours else ""
    alone, _, named = (own.get(first) or WORDS.get(first, "")).partition("|")
    meant = named if named and words[1:] and not words[1].startswith("-") else alone
    if meant and (meant.split()[0] in ours or meant == "--version"):
        return meant
    alike = [one for one in ours if one[0] == first[:1]]  # undelete is not delete
    return next(iter(get_close_matches(first, alike, n=1, cutoff=0.7)), "")


def _with_dashes(line: Line, names: Sequence[str]) -> Line:
    """Return the line with -- before the command for the workers, and python before a *.py.

    Without a command, it gets an example.
    """
    if not line.takes("command"):
        return line
    found = line.positions()
    named = bool(found) and (line.rest[found[0]] in names or not _is_program(line.rest[found[0]]))
    start = next(iter(found[1:] if named else found), None)
    dashes = line.rest.index("--") if "--" in line.rest else None
    if start is None:
        bare = dashes in (None, len(line.rest) - 1)
        example = EXAMPLES.get(line.verb[0], ()) if bare else ()
        return replace(line, rest=(*line.rest[:dashes], "--", *example)) if example else line
    after = [word for at, word in enumerate(line.rest) if at >= start and at != dashes]
    if named and dashes is None and line.accepted():  # the first -- may be left out
        return line
    python = ["python"] if after[0].endswith(".py") and "/" not in after[0] else []
    return replace(line, rest=(*line.rest[:start], "--", *python, *after))


def _is_program(word: str) -> bool:
    return word in _PYTHON or bool(shutil.which(word)) or os.path.isfile(word)


def _without_force(words: Sequence[str]) -> Iterator[str]:
    """Yield words without --force before the --; ours would also act on others' slices."""
    end = words.index("--") if "--" in words else len(words)
    yield from (word for at, word in enumerate(words) if at > end or word != "--force")


def _with_label(line: Line) -> Line:
    """Return the line with --label for kubectl's -l; as a name, the label would choose more."""
    rest = [*line.rest]
    end = rest.index("--") if "--" in rest else len(rest)
    for at in range(end - 1):
        if rest[at] == "-l" and "=" in rest[at + 1]:
            rest[at] = "--label"
    return replace(line, rest=tuple(rest))


def _with_our_flags(line: Line) -> Line:
    """Return the line with our flags in place of other programs' and of misspelled ones."""
    end = line.rest.index("--") if "--" in line.rest else len(line.rest)
    known = line.flags()
    rest: list[str] = []
    command: list[str] = []
    words = iter(line.rest[:end])
    for word in words:
        flag, equals, value = word.partition("=")
        if not flag.startswith("-") or flag in known:
            rest.append(word)
            if flag in known and known[flag] and not equals:
                rest += islice(words, 1)
            continue
        meant = "" if flag in _WIDE and line.verb[-1] in _READING else FLAGS.get(flag)
        if meant is None:
            alike = [one for one in known if len(one) > 2 and one[:3] == flag[:3]]
            near = get_close_matches(flag, alike, 1, 0.75)
            rest.append("".join((near[0] if near else flag, equals, value)))
            continue
        if line.valued(flag) and not equals:
            value = next(words, "")
        if flag == "--format" and value not in FORMATS:
            value = "name" if "name" in value else "json"
        if meant == "+":
            at = len(rest) if flag == "--name" else 0
            rest.insert(at, value)
        elif meant == "--":
            command = [value]
        elif meant:
            rest += [meant, value] if line.valued(flag) else [meant]
    own = ["--", *command] if command else [*line.rest[end:]]
    return replace(line, rest=(*rest, *own))


def _with_colon(line: Line) -> Line:
    """Return a copy with the colon after the slice's name, and with the slice where it belongs."""
    found = line.positions() if line.verb == ("cp",) else []
    paths = [line.rest[at] for at in found]
    away = [path for path in paths if not os.path.exists(path)]
    remote = re.fullmatch(r"([a-z][-a-z0-9]*)(?:/(.*))?", away[0]) if len(away) == 1 else None
    if len(paths) < 2 or remote is None:
        return line
    here = [path for path in paths if path != away[0]]
    there = f"{remote[1]}:{remote[2] or ''}"
    meant = [there, *here] if remote[2] and away[0] == paths[0] else [*here, there]
    flags = [word for at, word in enumerate(line.rest) if at not in found]
    return replace(line, rest=(*flags, *meant))


def _has_only_a_folder(line: Line) -> bool:
    """Return True if the only argument is a folder here, and cannot be the name of a slice."""
    words = [line.rest[at] for at in line.positions()]
    return len(words) == 1 and not re.fullmatch("[-a-z0-9]+", words[0]) and os.path.isdir(words[0])


def _on_all_workers(line: Line) -> bool:
    """Return True if `ssh` is for all workers, which is gcloud's form of `run`."""
    flags = line.rest[: line.rest.index("--")] if "--" in line.rest else line.rest
    return {"--worker=all", "--worker all"} & {*flags, *map(" ".join, pairwise(flags))} != set()


def _with_setting(words: Sequence[str]) -> list[str]:
    """Return the words after `config` with our names of settings, and `get` or `set` before one."""
    ours = {one.gcloud: one.name for one in DEFINITIONS if one.gcloud}
    named = [ours.get(word, word) for word in words]
    return ["set" if named[1:] else "get", *named] if named and named[0] in BY_NAME else named


def _lacks_name(line: Line) -> bool:
    """Return True if the command needs the name of a slice and has no argument at all."""
    arguments = [one for one in line.command.params if one.param_type_name == "argument"]
    first = arguments[0] if arguments else None
    if first is None or "NAME" not in first.metavar or line.positions():
        return False
    selects = {word.partition("=")[0] for word in line.rest} & {"--label", "--list"}
    return bool(first.required) or (line.verb in (("delete",), ("watch",)) and not selects)

"""Variables for commands on workers: they travel on standard input, never on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tpukit.errors import BadInput, Fix
from tpukit.remote import worker_files
from tpukit.text import is_utf8, one_line, quote

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def shell_lines(variables: Mapping[str, str], recipe: str = "") -> str:
    """Return the POSIX shell lines that set up a command's environment.

    `recipe` names the provisioned environment whose programs come first in PATH. Where it is not,
    they end with 127, as for a program that is not there.
    """
    activate = ""
    if recipe:
        folder = worker_files.shell_word(worker_files.venv(recipe))
        there = f"[ -x {worker_files.shell_word(worker_files.venv_python(recipe))} ] || exit 127\n"
        activate = f'{there}export VIRTUAL_ENV={folder} PATH={folder}/bin:"$PATH"\n'
    exports = "".join(f"export {name}={quote([value])}\n" for name, value in variables.items())
    return activate + exports


def parse_assignments(words: Iterable[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return `NAME=VALUE` words as variables; a bare `NAME` takes its value from `own`.

    Raises:
        BadInput: no name of a variable, one that is not set, or a value that is not UTF-8.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not _NAME.fullmatch(name) or "\0" in value:
            raise BadInput(
                f"{one_line(name)[:60]!r} cannot name a variable",
                fix=Fix(note="--env takes NAME=VALUE"),
            )
        if not equals and name not in own:
            raise BadInput(
                f"{name} is not set here", fix=Fix(note=f"give it a value: --env {name}=…")
            )
        found[name] = value if equals else own[name]
        if not is_utf8(found[name]):
            raise BadInput(f"the value of {name} is not UTF-8 text")
    return found


def parse_file(text: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment file: one `NAME=VALUE` a line, `#` for comments.

    A value in quotation marks loses them; nothing else in it has a meaning.
    """
    lines = (line.strip().removeprefix("export ") for line in text.splitlines())
    return parse_assignments((_unquoted(line) for line in lines if line and line[0] != "#"), own)


def _unquoted(line: str) -> str:
    name, equals, value = line.partition("=")
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return f"{name.strip()}{equals}{value}"

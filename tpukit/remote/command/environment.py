"""Variables for commands on workers: they travel on standard input, never on a command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tpukit.errors import BadInput, Fix
from tpukit.remote import worker_files
from tpukit.remote.programs import shell_line
from tpukit.text import is_utf8, one_line, quote

#: A word in braces, or doubled ones for the braces themselves; `${worker}` is a shell's.
_WORDS = "worker|workers|coordinator|slice|slice_index|slices"
_IN_BRACES = re.compile(rf"(?<!\$)(?<!\$\{{)(?:\{{(\{{(?:{_WORDS})\}})\}}|\{{({_WORDS})\}})")
#: torch_xla asks for its device: pytorch/xla:torch_xla/_internal/__init__.py. What the worker or
#: the user has set stays.
_DEVICE = """\
: "${PJRT_DEVICE:=${TPUKIT_EMULATED_DEVICES:+CPU}}"
export PJRT_DEVICE="${PJRT_DEVICE:-TPU}"
"""


def shell_lines(variables: Mapping[str, str], recipe: str = "", folder: str = "") -> str:
    """Return the POSIX shell lines that set up a command's environment.

    `recipe` names the provisioned environment whose programs come first in PATH, `folder` the one
    that the command starts in. Without that environment they end with 127, as for a program that is
    not there; without the folder with 1.
    """
    lines = "".join(f"export {name}={quote([value])}\n" for name, value in variables.items())
    lines += f"cd -- {quote([folder])} || exit 1\n" if folder else ""
    if not recipe:
        return lines
    venv = worker_files.shell_word(worker_files.venv(recipe))
    there = f"[ -x {venv}/bin/python ] || exit 127\n"
    return f'{there}export VIRTUAL_ENV={venv} PATH={venv}/bin:"$PATH"\n{lines}'


def shell_with(recipe: str) -> str:
    """Return the POSIX shell text that becomes an interactive shell with an environment's programs.

    The user's own login files come first: what they do to PATH would hide the environment.
    """
    inside = shell_lines({}, recipe) + 'exec "${SHELL:-/bin/sh}"\n'
    return f'exec "${{SHELL:-/bin/sh}}" -l -c {quote([shell_line(inside)])}\n'


def launch(command: str, words: Mapping[str, str], *, sudo: bool = False) -> str:
    """Return the POSIX shell text that becomes a command: `words` stand for `{worker}` and others.

    The user's own shell runs it, as sshd would have it; with `sudo` as root, in its environment.
    sshd's own shell has read .bashrc. bash reads it again if it takes itself for the first shell of
    an SSH session, which SHLVL tells (shell.c, run_startup_files; Debian: SSH_SOURCE_BASHRC).
    """
    line = quote([_IN_BRACES.sub(lambda found: found[1] or words.get(found[2], found[0]), command)])
    # sudo would set a PATH of its own.
    root = 'sudo -n -E -- env PATH="$PATH"' if sudo else "env"
    return f'{_DEVICE}exec {root} SHLVL=1 "${{SHELL:-/bin/sh}}" -c {line}\n'


def parse_assignments(words: Iterable[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return `NAME=VALUE` words as variables; a bare `NAME` takes its value from `own`.

    Raises:
        BadInput: no name of a variable, one that is not set, or a value that is not UTF-8.
    """
    found: dict[str, str] = {}
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
        found[name] = value if equals else own[name]
        if not is_utf8(found[name]):
            raise BadInput(f"the value of {name} is not UTF-8 text")
    return found


def parse_file(content: bytes, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment file: one `NAME=VALUE` a line, `#` for comments.

    A value in quotation marks loses them; nothing else in it has a meaning. Raises `BadInput` for
    what is not UTF-8, and as `parse_assignments` does.
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

"""The types of flags and arguments that several verbs share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tpukit.errors import BadInput
from tpukit.text import is_utf8, one_line, quote

AcceleratorTypeName = Annotated[
    str, typer.Argument(metavar="ACCELERATOR_TYPE", help="v3-8, v6e-4, …: `tpukit types`.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the slice.")]
OptionalName = Annotated[
    str, typer.Argument(metavar="[NAME]", help="Name of the slice; default: USER-ACCELERATOR_TYPE.")
]
Names = Annotated[
    str, typer.Argument(metavar="NAME[,NAME…]", help="Name of the slice, or of several.")
]
RunId = Annotated[
    str, typer.Argument(metavar="[RUN]", help="Run id; default: the run that started last.")
]
Command = Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND…]")]
Timeout = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait: 90s, 20m, 1h.")]
Workers = Annotated[str, typer.Option("--worker", metavar="WORKERS", help="all, 0 or 0,2-5.")]
SourceRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--source-range", metavar="RANGE", help="Who may reach port 22; default: your own address."
    ),
]
Recipe = Annotated[str, typer.Option("--with", metavar="RECIPE", help="jax or torch_xla.")]
Requirements = Annotated[
    str, typer.Option("--requirements", metavar="FILE", help="requirements.txt to install on top.")
]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Return a duration such as `90s`, `20m`, `1.5h` or `30` in seconds, at least one."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh]?)", text.strip(), re.ASCII)
    value = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if value < 1.0:
        raise BadInput(f"{one_line(text)!r} is not a duration", fix="for example: --timeout 20m")
    return value


def pairs(text: str, flag: str) -> dict[str, str]:
    """Return `key=value,key=value` as a dict; a value may hold further equals signs."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise BadInput(f"{one_line(part)!r} in {flag} is not KEY=VALUE", fix=f"{flag} a=1,b=2")
        found[key.strip()] = value
    return found


def words(text: str) -> tuple[str, ...]:
    """Return a comma-separated list without blanks and empty parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def remote_command(command: list[str] | None) -> str:
    """Return the shell line for the words after `--`.

    One word is a shell line as it stands; several are run exactly as they are. Raises `BadInput`
    for what is not UTF-8: there is no way to send it as it is.
    """
    if not command:
        return ""
    line = command[0] if len(command) == 1 else quote(command)
    if not is_utf8(line):
        raise BadInput("the command is not UTF-8 text", reason=one_line(line)[:60])
    return line


def file_bytes(path: str, flag: str, most: int = 1 << 20) -> bytes | None:
    """Return a file's content, or None where no file was named; refuse one over `most` bytes."""
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise BadInput(
            f"cannot read {one_line(path)} ({flag})", why=error.strerror or ""
        ) from error
    if len(content) > most:
        raise BadInput(f"{one_line(path)} ({flag}) is larger than {most} bytes")
    return content

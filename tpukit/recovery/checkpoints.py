"""Where a command keeps what it needs to go on: what is on a worker is lost with the slice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_NAMED = re.compile(
    r"-*[\w.-]*(ckpt|checkpoint|save|output|out_?dir|work_?dir|model_?dir|log_?dir)", re.I
)
_BUCKET = "gs://"


def warning(command: str, values: Iterable[str] = ()) -> str:
    """Return what to say of a command that keeps its checkpoints on the worker, "" for others.

    That is told from its words, and from the values of its variables: a word that is named for
    checkpoints or output and is no path in a bucket, or that none is in a bucket.
    """
    for name, value in _pairs(_words(command)):
        if _NAMED.match(name) and not value.startswith(_BUCKET):
            return f"{name} {value} is on the worker and lost with the slice; gs://BUCKET/… stays"
    if not any(_BUCKET in text for text in (command, *values)):
        return "no gs:// path is in the command: what it saves on the worker is lost with the slice"
    return ""


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _pairs(words: list[str]) -> Iterable[tuple[str, str]]:
    """Yield the flags and variables that have a value: `--name value`, `--name=value`, `A=b`."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if equals and value:
            yield name, value
        elif word.startswith("--") and after and not after.startswith("-"):
            yield word, after

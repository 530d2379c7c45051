"""A check that a command keeps its checkpoints in a bucket; files on workers die with the slice."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_NAMED = re.compile(
    r"-*[\w.-]*(ckpt|checkpoint|save|output|out_?dir|work_?dir|model_?dir|log_?dir)", re.I
)
_BUCKET = "gs://"


def warning(command: str, values: Iterable[str] = ()) -> str:
    """Return a warning if a command seems to keep its checkpoints on the worker, else "".

    It does if a flag or variable named for checkpoints or output has no path in a bucket, or if
    neither the command nor `values`, those of its variables, have such a path.
    """
    for name, value in _pairs(_words(command)):
        if _NAMED.match(name) and not value.startswith(_BUCKET):
            return f"{name} {value} is lost with the slice; use a bucket: gs://BUCKET/…"
    if not any(_BUCKET in text for text in (command, *values)):
        return "the command has no gs:// path: files that it saves are lost with the slice"
    return ""


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _pairs(words: list[str]) -> Iterable[tuple[str, str]]:
    """Yield flags and variables with their values: `--name value`, `--name=value`, `A=b`."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if equals and value:
            yield name, value
        elif word.startswith("--") and after and not after.startswith("-"):
            yield word, after

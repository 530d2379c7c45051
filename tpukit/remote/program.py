"""The programs that run on workers: files of this package, sent as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from tpukit.text import quote


@cache
def program_text(*names: str) -> str:
    """Return the text of programs, one after the other."""
    folder = resources.files("tpukit.remote").joinpath("programs")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def program_line(*names: str, words: Sequence[str] = ()) -> str:
    """Return the shell line that runs shell programs, one after the other, with `words`."""
    return quote(["sh", "-c", program_text(*names), "sh", *words])

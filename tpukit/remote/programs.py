"""The programs that run on workers: files of this package, sent as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from tpukit.errors import TpukitError
from tpukit.remote.connection.target import Completed
from tpukit.remote.worker_files import SHELL_LINE
from tpukit.text import quote


@cache
def program_text(*names: str) -> str:
    """Return the text of programs, one after the other; `names` are paths below `tpukit/`."""
    package = resources.files("tpukit")
    return "\n".join(package.joinpath(name).read_text("utf-8") for name in names)


def program_line(*names: str, words: Sequence[str] = (), answers: bool = True) -> str:
    """Return the shell line that runs shell programs, one after the other, with `words`.

    What `answers` begins a line: a login script may have written half of one before.
    """
    begin = SHELL_LINE + "echo\n" * answers
    return quote(["sh", "-c", begin + program_text(*names), "sh", *words])


def answer(done: Completed, pattern: re.Pattern[bytes], failure: str) -> re.Match[bytes]:
    """Return what a program answered: a login script may have written before it.

    Raises `TpukitError` (`failure`, and the end of stderr) where it failed or answered nothing.
    """
    found = pattern.search(done.stdout)
    if not done.ok or found is None:
        raise TpukitError(failure, reason=done.reason)
    return found

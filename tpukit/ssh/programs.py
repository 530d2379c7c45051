"""The programs that run on workers: files of this package, sent unchanged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from tpukit.ssh.worker_files import ROOT
from tpukit.text import quote

_UNSAFE = re.compile(rb"[^ -~]|['\\\\!]")


@cache
def program_text(*names: str) -> str:
    """Return the joined texts of programs; `names` are paths below `tpukit/`."""
    package = resources.files("tpukit")
    return "\n".join(package.joinpath(name).read_text("utf-8") for name in names)


def shell_line(text: str, words: Sequence[str] = ()) -> str:
    """Return a line for any login shell that makes sh run POSIX shell text with `words`.

    In the text, $tpukit is tpukit's folder on the worker; errors of the shell begin with `tpukit:`.
    The line is ASCII. Characters that shells interpret between single quotes are escaped: for csh
    the exclamation mark and the end of a line, for fish the backslash and the quote.
    """
    whole = f"set -- {quote(words)}\ntpukit=$HOME/{ROOT}\n{text}".encode("utf-8", "surrogateescape")
    coded = _UNSAFE.sub(lambda match: b"\\0%03o" % ord(match[0]), whole).decode()
    return f"sh -c 'eval \"$(printf %b \"$1\")\"' tpukit '{coded}'"

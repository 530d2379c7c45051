"""The programs that run on workers: files of this package, sent as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from tpukit.remote.worker_files import ROOT
from tpukit.text import quote

_UNSAFE = re.compile(rb"[^ -~]|['\\\\!]")


@cache
def program_text(*names: str) -> str:
    """Return the text of programs, one after the other; `names` are paths below `tpukit/`."""
    package = resources.files("tpukit")
    return "\n".join(package.joinpath(name).read_text("utf-8") for name in names)


def shell_line(text: str, words: Sequence[str] = ()) -> str:
    """Return the line on which any login shell lets sh run POSIX shell text with `words`.

    The text knows the folder of our things as $tpukit; the shell's own errors begin with `tpukit:`.
    It is one line of ASCII without what means something between single quotes: to csh an
    exclamation mark and a line's end, to fish a backslash that stands before another or a quote.
    """
    whole = f"set -- {quote(words)}\ntpukit=$HOME/{ROOT}\n{text}".encode("utf-8", "surrogateescape")
    coded = _UNSAFE.sub(lambda found: b"\\0%03o" % ord(found[0]), whole).decode()
    return f"sh -c 'eval \"$(printf %b \"$1\")\"' tpukit '{coded}'"

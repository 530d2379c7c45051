"""What of a text a terminal may see, and how a shell gets it as words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

# C0 without \t and \n, DEL, C1, line and paragraph separators, bidirectional controls, deprecated
# format characters, annotations, lone surrogates, tags (a text that no terminal shows).
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u206f"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]+"
)
_NOT_IN_QUOTES = re.compile(r"[!\\]")
#: Bytes that most output has nothing else of: to look for others takes a hundredth of the search.
_PLAIN = bytes([*b"\t\n", *range(ord(" "), 0x7F)])


def sanitize(text: str | bytes) -> str:
    """Return text from the cloud or a worker without anything a terminal would obey.

    Carriage returns become line ends, so that a progress bar cannot paint over what was printed;
    every other control and bidirectional character becomes its visible escape (`\\x1b`).
    """
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if decoded.isascii() and not decoded.encode().translate(None, _PLAIN):
        return decoded
    unified = decoded.replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), unified)


def one_line(text: str | bytes) -> str:
    """Return sanitized text folded to one line, for tables and error messages."""
    return " ".join(sanitize(text).split())


def shown_path(path: Path) -> str:
    """Return a path as messages show it."""
    return one_line(str(path))


def quote(words: Sequence[str]) -> str:
    """Return one shell command line that runs exactly these words, in POSIX shells and fish.

    In csh too, unless a word has several lines. What csh (`!`) and fish (a backslash) do not leave
    as it is between quotes stands outside of them.
    """
    return _NOT_IN_QUOTES.sub(r"'\\\g<0>'", shlex.join(words))


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: `1 change`, `2 changes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_utf8(text: str) -> bool:
    """Tell whether a word of the command line or the environment was UTF-8 (else: PEP 383)."""
    return not any("\ud800" <= character <= "\udfff" for character in text)

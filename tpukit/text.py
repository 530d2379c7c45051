"""Text that is safe for terminals and shells."""

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
#: The bytes of most output. Checking for others takes a hundredth of the time of `_UNSAFE`.
_PLAIN = bytes([*b"\t\n", *range(ord(" "), 0x7F)])


def sanitize(text: str | bytes) -> str:
    """Return text from the cloud or a worker without characters that control a terminal.

    Carriage returns become line ends, so that a progress bar cannot overwrite printed text. All
    other control and bidirectional characters become visible escapes (`\\x1b`).
    """
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if decoded.isascii() and not decoded.encode().translate(None, _PLAIN):
        return decoded
    unified = decoded.replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), unified)


def one_line(text: str | bytes) -> str:
    """Return sanitized text on one line, for tables and error messages."""
    return " ".join(sanitize(text).split())


def shown_path(path: Path) -> str:
    """Return a path for messages."""
    return one_line(str(path))


def quote(words: Sequence[str]) -> str:
    """Return a command line with exactly these words for POSIX shells and fish.

    It is right for csh too, unless a word has several lines. `!` (for csh) and backslashes (for
    fish) are outside the quotes, because these shells change them inside.
    """
    return _NOT_IN_QUOTES.sub(r"'\\\g<0>'", shlex.join(words))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 change`, `2 changes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def is_utf8(text: str) -> bool:
    """Return True if a word of the command line or environment was UTF-8 (else see PEP 383)."""
    return not any("\ud800" <= character <= "\udfff" for character in text)

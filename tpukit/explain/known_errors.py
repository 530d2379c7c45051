"""Known error texts with their cause and remedy: api_errors.toml and worker_errors.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from tpukit.errors import Fix
from tpukit.google.failures import Row, api_errors, filled, read_table
from tpukit.text import one_line, quote, sanitize

#: The page with an entry for each row.
PAGE = "docs/reference/errors.md"
#: The order of explanations of one text.
ROLES = ("cause", "symptom", "wrapper", "benign")
#: The frame that Terraform draws around its errors, and the prefix of each worker's lines.
_FRAME = re.compile(r"^\s*(?:[│╷╵|]|\[?(?:worker )?\d+\]?[:|])\s?", re.MULTILINE)
#: The escape codes of colours: ECMA-48, control sequences.
_PAINT = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
#: Where another program's words may end and a message begin.
_BOUNDARY = re.compile(r"[\"']|: ")
_NAME = re.compile(r"\{(\w+)\}")
#: The runtime version in a remedy if the accelerator type is unknown.
_UNKNOWN = "of its type"


@dataclass(frozen=True)
class Explanation:
    """The meaning of a text, and the remedy.

    `role` is one of `ROLES`. `retry` says when the same command may succeed: `same-zone` (a little
    later), `wait`, `other-zone`, `after-fix`, `never`, or `none` if nothing failed.
    """

    id: str
    role: str
    retry: str
    cause: str
    fix: Fix
    source: str
    page: str = ""  #: the page of the documentation that has more, and the place on it

    @property
    def phrase(self) -> str:
        """The cause as a part of a sentence."""
        return self.cause[:1].lower() + self.cause[1:].removesuffix(".")

    def document(self) -> dict[str, object]:
        """Return the JSON value."""
        return {**vars(self), "fix": self.fix.document()}


def explanations(text: str) -> list[Explanation]:
    """Return the explanations of a text, the likeliest first: a cause before a symptom.

    The text may also be the id of a row, which tpukit's own errors show.
    """
    readings = _readings(text)
    known = [
        _explanation(row, match)
        for pattern, row in (*api_errors(), *worker_errors())
        if row.get("explain", True)
        if (match := next(filter(None, map(pattern.search, readings)), None))
        or (match := re.fullmatch(re.escape(row["id"]), text.strip()))
    ]
    return sorted(known, key=lambda explanation: ROLES.index(explanation.role))


def first_known(text: str, where: str, version: str = _UNKNOWN) -> Explanation | None:
    """Return the first row of worker_errors.toml for a place, such as `chips`, that fits a text.

    `version` is the runtime version for the accelerator type.
    """
    for pattern, row in worker_errors():
        if row["where"] == where and (match := pattern.search(text)):
            return _explanation(row, match, version)
    return None


def of_program(text: str, slice_: str) -> Explanation | None:
    """Return the likeliest explanation of the last output of a failed program on a slice's worker.

    Only texts from workers and their chips count.
    """
    plain = sanitize(_PAINT.sub("", text))
    for role in ("cause", "symptom"):
        for pattern, row in worker_errors():
            fits = row["where"] in ("worker", "chips") and row.get("role", "cause") == role
            if fits and (match := pattern.search(plain)):
                return _explanation(row, match, slice_=slice_)
    return None


def remedy(command: Iterable[str], note: str, slice_: str = "") -> Fix:
    """Return a fix whose command may have the word {name}, for the slice.

    If this or another name is unknown, the fix is a sentence that leaves it to the reader.
    """
    words = tuple(slice_ or word if word == "{name}" else word for word in command)
    shown = tuple(_NAME.sub(lambda name: name[1].upper(), word) for word in words)
    return Fix(words, note) if shown == words else Fix(note=f"{quote(shown)} {note}")


@cache
def worker_errors() -> tuple[tuple[re.Pattern[str], Row], ...]:
    """Return the rows of worker_errors.toml with their compiled patterns."""
    return read_table("worker_errors.toml")


def _readings(text: str) -> list[str]:
    """Return the text, also without the quotes, frames and line breaks of other programs."""
    plain = sanitize(_PAINT.sub("", text))
    unquoted = plain.replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'")
    unframed = _FRAME.sub("", unquoted)
    joined = one_line(unframed)
    apart = _BOUNDARY.sub("\n", joined)
    return list(dict.fromkeys((plain, unquoted, unframed, joined, apart)))


def _explanation(
    row: Row, match: re.Match[str], version: str = _UNKNOWN, slice_: str = ""
) -> Explanation:
    return Explanation(
        row["id"],
        row.get("role", "cause"),
        row["retry"],
        row["cause"],
        remedy(filled(row, match), row["remedy"].replace("{version}", version), slice_),
        row["source"],
        f"{PAGE}#{row['id']}",
    )

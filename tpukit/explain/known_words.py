"""The meaning of states, healths and exit codes: words.toml and queue_states.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from tpukit.explain.known_errors import Explanation, remedy
from tpukit.slices.queue_requests import states

#: Ways to write an exit code alone.
_STATUS = re.compile(r"(?:(?:exit|return)(?:ed)? )?(?:with )?(?:code |status )?(\d{1,3})")
_API, _CODES = "the comments of the Cloud TPU API", "tpukit help exit-codes"
_PAGE = "docs/reference/exit-codes.md"


def word_explanations(text: str, slice_: str = "") -> list[Explanation]:
    """Return the explanations of a text that is one state, one health or one exit code.

    The remedy is for a slice, if it is named.
    """
    word = text.strip().strip("\"'.:")
    number = _STATUS.fullmatch(word.lower())
    table = tomllib.loads(files("tpukit").joinpath("data", "words.toml").read_text("utf-8"))
    if number:
        code = str(int(number[1]))
        row = table["exit"].get(code)
        return [_explanation(f"exit-{code}", "", row, _CODES, slice_, _PAGE)] if row else []
    word = word.upper().replace(" ", "_")
    rows = {
        "a slice: ": table["state"].get(word),
        "the health of a slice: ": table["health"].get(word),
        "a queued resource: ": states().get(word),
    }
    return [_explanation(word, of, row, _API, slice_) for of, row in rows.items() if row]


def _explanation(
    word: str, of: str, row: Mapping[str, Any], source: str, slice_: str, page: str = ""
) -> Explanation:
    cause, fix = f"{of}{row['means']}", remedy(row.get("command", ()), row["action"], slice_)
    return Explanation(word, "cause", "none", cause, fix, row.get("source", source), page)

"""The list of assumptions about real TPU VMs: docs/reference/real-workers.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reference/real-workers.md"
STATES = ("supported", "corrected", "unsupported")
NO_SOURCE = "none found"


@dataclass(frozen=True)
class Assumption:
    """One row of the table."""

    text: str
    state: str
    source: str
    files: tuple[str, ...]


def read_assumption(line: str) -> Assumption:
    text, state, source, files = (cell.strip() for cell in line.strip("|").split(" | "))
    return Assumption(text, state, source, tuple(re.findall(r"`([^`]+)`", files)))


LINES = [
    line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [^-]", line)
]
ASSUMPTIONS = [read_assumption(line) for line in LINES[1:]]


def test_every_assumption_is_supported_corrected_or_unsupported() -> None:
    assert {row.state for row in ASSUMPTIONS} <= set(STATES)
    assert len({row.text for row in ASSUMPTIONS}) == len(ASSUMPTIONS)


@pytest.mark.parametrize("row", ASSUMPTIONS, ids=lambda row: row.text[:40])
def test_an_assumption_has_a_source_unless_it_is_unsupported(row: Assumption) -> None:
    assert (row.source == NO_SOURCE) == (row.state == "unsupported")


@pytest.mark.parametrize("row", ASSUMPTIONS, ids=lambda row: row.text[:40])
def test_an_assumption_names_the_files_that_rely_on_it(row: Assumption) -> None:
    assert row.files
    assert not [name for name in row.files if not (ROOT / name).is_file()]


def test_every_file_that_cites_the_list_is_named_in_it() -> None:
    sources = [path for path in (ROOT / "tpukit").rglob("*") if path.suffix in (".py", ".toml")]
    citing = {
        str(path.relative_to(ROOT))
        for path in sources
        if PAGE.name in path.read_text(encoding="utf-8")
    }
    assert citing <= {name for row in ASSUMPTIONS for name in row.files}

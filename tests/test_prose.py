"""Our English is plain: few of the constructions that need a second reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import pytest
from support import prose
from support.pages import ROOT, pages

#: Habits per 1,000 words. The few that are left are false alarms.
LIMITS = {"pages": 0.9, "help and messages": 0.9, "docstrings and comments": 0.9}


@cache
def texts() -> Mapping[str, Sequence[str]]:
    """Return all texts by their kind."""
    files = [*pages(), ROOT / "CHANGELOG.md"]
    known = {"pages": [text for file in files for text in prose.paragraphs(file)]}
    for kind, text in prose.code_texts():
        known.setdefault(kind, []).append(text)
    return known


@pytest.mark.parametrize("kind", LIMITS)
def test_odd_constructions_are_rare(kind: str) -> None:
    """A failure lists them all, each with the words around it."""
    odd = [f"{habit}: {around}" for text in texts()[kind] for habit, around in prose.habits(text)]
    words = sum(len(text.split()) for text in texts()[kind])
    assert 1000 * len(odd) / words <= LIMITS[kind], "\n".join(odd)


ODD = (
    "What is to end is looked for as one.",
    "Who may not make it is told so.",
    "Where the next create is refused, it looks a minute more. Where there is none it ends.",
    "in bytes, but for the last",
    "nothing that tpukit made",
    "Whoever reads it has a folder of their own.",
)
PLAIN = (
    "One search finds every process to end.",
    "If you lack permission, tpukit says so. The user who made it owns it.",
    "If the next create is refused, it looks for another minute.",
    "in bytes, except the last; the folder where your program starts; does only what you asked for",
    "What does a step wait for? Where is the slice? Who may delete it?",
)


def test_the_counter_finds_odd_sentences_and_leaves_plain_ones() -> None:
    assert not [text for text in ODD if not prose.habits(text)]
    assert not [prose.habits(text) for text in PLAIN if prose.habits(text)]

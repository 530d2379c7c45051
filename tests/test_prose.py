"""Our English is plain: few of the constructions that need a second reading."""

from __future__ import annotations

import pytest
from support import prose
from support.pages import ROOT, pages

#: Habits per 1,000 words. The few that are left are false alarms.
LIMITS = {"pages": 0.9, "help and messages": 0.9, "docstrings and comments": 0.9}


def texts(kind: str) -> list[str]:
    if kind == "pages":
        files = [*pages(), ROOT / "CHANGELOG.md"]
        return [text for file in files for text in prose.paragraphs(file)]
    return [text for other, text in prose.code_texts() if other == kind]


@pytest.mark.parametrize("kind", LIMITS)
def test_odd_constructions_are_rare(kind: str) -> None:
    """A failure lists them all, each with the words around it."""
    all_texts = texts(kind)
    odd = [f"{habit}: {words}" for text in all_texts for habit, words in prose.habits(text)]
    assert prose.rate(all_texts) <= LIMITS[kind], "\n".join(odd)


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

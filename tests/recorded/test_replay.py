"""What Google's APIs were recorded to answer, played to the emulator and compared by field."""

from __future__ import annotations

import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from recorded.replay import (
    ABSENT,
    Answer,
    Conversation,
    Difference,
    Exchange,
    compared,
    conversations,
    is_as,
)
from tpukit.emulator.api.http_server import build_server
from tpukit.emulator.core.service_context import project_number
from tpukit.emulator.faults.presets import PRESETS, filled
from tpukit.emulator.workers.paper_host import PaperHost

TEXTS = Path(__file__).parent / "texts"
TABLE = Path(__file__).parent / "differences.toml"


@dataclass(frozen=True)
class Row:
    """A difference that stays, with its reason: patterns of exchanges and of fields."""

    exchange: str
    field: str
    reason: str
    follow: str  #: "recording" never stands here; "document" or "emulator" says what we follow

    def covers(self, difference: Difference) -> bool:
        exchange = fnmatchcase(difference.exchange, self.exchange)
        return exchange and fnmatchcase(difference.field, self.field)


@dataclass(frozen=True)
class Replay:
    exchanges: int
    fields: int
    differences: tuple[Difference, ...]


@contextmanager
def talking(directory: Path) -> Iterator[Conversation]:
    """Talk to an emulator as it is by default; changes fall due only as time is let pass."""
    server = build_server(directory, "secret", PaperHost, 100.0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Conversation(server.url, "secret", project_number("p"))
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Replay:
    entries: list[Difference | None] = []
    count = 0
    for exchanges in conversations().values():
        with talking(tmp_path_factory.mktemp("emulator")) as talk:
            for exchange in exchanges:
                entries += compared(exchange, talk.play(exchange), talk)
                count += 1
    return Replay(count, len(entries), tuple(entry for entry in entries if entry))


def test_the_emulator_refuses_in_the_words_of_the_recorded_texts() -> None:
    """The exchanges are held against the emulator; here they are held against the texts."""
    checked = 0
    for exchange in (each for conversation in conversations().values() for each in conversation):
        if exchange.text:
            words = exchange.body["error"]["message"]
            text = tomllib.loads((TEXTS / f"{exchange.text}.toml").read_text())["text"]
            assert is_as(words, text), exchange.name
            checked += 1
    assert checked >= 5


def test_the_emulator_s_stockout_has_the_recorded_words() -> None:
    for name, preset in (("stockout-zone", "stockout"), ("internal", "stockout-internal")):
        recorded = tomllib.loads((TEXTS / f"{name}.toml").read_text())["text"]
        words = dict.fromkeys(("project", "region", "name", "type"), "") | {"zone": "us-central1-b"}
        said = filled(PRESETS[preset].status, words).message
        assert re.sub("0x[0-9a-f]+", "<event>", said) == re.sub("0x[0-9a-f]+", "<event>", recorded)


def rows() -> list[Row]:
    return [Row(**row) for row in tomllib.loads(TABLE.read_text())["rows"]]


def test_each_answer_is_as_recorded_or_in_the_table(replay: Replay) -> None:
    unexplained = [
        str(difference)
        for difference in replay.differences
        if not any(row.covers(difference) for row in rows())
    ]
    assert unexplained == [], "\n".join(unexplained)


def test_each_row_of_the_table_is_a_difference(replay: Replay) -> None:
    spare = [row for row in rows() if not any(map(row.covers, replay.differences))]
    assert spare == []


def test_each_exchange_says_where_it_is_from_and_how_sure_it_is() -> None:
    exchanges = [each for conversation in conversations().values() for each in conversation]
    assert {exchange.certainty for exchange in exchanges} <= {"google", "mock", "pasted"}
    assert all(exchange.source for exchange in exchanges)


def test_a_pasted_answer_is_compared_by_its_own_fields_and_by_those_that_it_lacks() -> None:
    talk = Conversation("", "", "1")
    pasted = Exchange("e", "s", "pasted", "GET /", 200, {"quoted": 1}, absent=("lacked",))
    answer = Answer(200, (), {"quoted": 1, "lacked": 2, "not-quoted": 3})
    (difference,) = filter(None, compared(pasted, answer, talk))
    assert (difference.field, difference.recorded) == ("lacked", ABSENT)


def test_the_replay_compares_what_there_is(replay: Replay, record_property: Any) -> None:
    """The numbers that a report quotes."""
    record_property("exchanges", replay.exchanges)
    record_property("fields", replay.fields)
    record_property("differences", len(replay.differences))
    assert (replay.exchanges, replay.fields) >= (36, 700)

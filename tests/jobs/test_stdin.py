"""One input for many readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tpukit.errors import TpukitError
from tpukit.jobs.stdin import Broadcast, readers


def test_each_reader_gets_all_of_it_also_who_waits_while_another_one_reads() -> None:
    waits, ready = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        yield b"first"
        waits.set()
        assert ready.wait(60)
        yield b"second"

    broadcast = Broadcast(source())
    late = broadcast.reader()
    assert next(late) == b"first"
    found: dict[int, bytes] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: b"".join(broadcast.reader())}))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    assert waits.wait(60)
    threads[0].join(0.2)  # the others come to wait for the one that reads
    ready.set()
    for thread in threads:
        thread.join(60)
    assert list(late) == [b"second"]
    assert found == dict.fromkeys(range(3), b"firstsecond")


@pytest.mark.parametrize("number", [1, 2])
def test_a_source_that_fails_has_not_ended_for_any_reader(number: int) -> None:
    def source() -> Iterator[bytes]:
        yield b"first"
        raise OSError(5, "Input/output error")

    begin = readers(source(), number)
    for reader in [begin() for _ in range(number)]:
        assert next(reader) == b"first"
        with pytest.raises(TpukitError, match="standard input was cut short"):
            next(reader)

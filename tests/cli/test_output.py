"""How several workers' output is written: whole lines, one write a chunk, nothing to obey."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest

from tpukit.cli.output import Lines
from tpukit.console import Console
from tpukit.ssh.worker import RemoteWorker


class Writes(io.RawIOBase):
    """A file that remembers what each write brought, and one that forgets it."""

    def __init__(self, forgets: bool = False) -> None:
        self.writes: list[bytes] = []
        self._forgets = forgets

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(b"" if self._forgets else bytes(data))
        return memoryview(data).nbytes

    @property
    def text(self) -> str:
        return b"".join(self.writes).decode()


def worker(index: int, slice_: str = "demo") -> RemoteWorker:
    return RemoteWorker(index, lambda: pytest.fail("nobody connects"), slice_)


def lines(file: Writes, *workers: RemoteWorker, as_json: bool = False) -> Lines:
    stream = io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8")
    return Lines(Console(stream, stream), workers, as_json)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_lines_of_a_chunk_are_one_write(as_json: bool) -> None:
    file = Writes()
    one = worker(1)
    output = lines(file, worker(0), one, as_json=as_json)
    chunk = b"".join(b"%d\n" % number for number in range(20_000))
    output.write(one, "stdout", chunk[:100_000])
    output.write(one, "stdout", chunk[100_000:])
    assert len(file.writes) == 2
    wanted = [str(number) for number in range(20_000)]
    if as_json:
        documents = [json.loads(line) for line in file.text.splitlines()]
        assert [document["line"] for document in documents] == wanted
        assert documents[7] == {
            "v": 1, "slice": "demo", "worker": 1, "stream": "stdout", "line": "7"
        }  # fmt: skip
    else:
        assert file.text.splitlines() == [f"[1] {number}" for number in wanted]


def test_lines_are_whole_and_of_one_worker_whatever_pieces_come() -> None:
    file = Writes()
    zero, one = worker(0), worker(1, "other")
    output = lines(file, zero, one)
    for piece in (b"a", b"b\n\nc\r", b"\nd\re\nrest"):
        output.write(zero, "stdout", piece)
        output.write(one, "stderr", piece.upper())
    output.finish()
    assert [line for line in file.text.splitlines() if "demo" in line] == [
        *("[demo:0] ab", "[demo:0] ", "[demo:0] c", "[demo:0] d", "[demo:0] e", "[demo:0] rest"),
    ]
    assert [line for line in file.text.splitlines() if "other" in line] == [
        *("[other:1] AB", "[other:1] ", "[other:1] C", "[other:1] D"),
        *("[other:1] E", "[other:1] REST"),
    ]


def test_no_control_character_of_a_worker_reaches_whoever_reads() -> None:
    """Each among others, and each alone in a chunk of plain ones."""
    file = Writes()
    zero = worker(0)
    output = lines(file, zero, worker(1))
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x202E, 0xE0041):
        output.write(zero, "stdout", b"plain " + chr(code).encode() + b"\n")
    output.write(zero, "stdout", bytes(range(256)) + b"\n")
    output.finish()
    assert all(line.startswith("[0] ") for line in file.text.split("\n")[:-1])
    assert not set(file.text) & {chr(code) for code in (*range(9), *range(11, 32), 0x7F, 0x9B)}
    assert file.text.replace("\n", "").replace("\t", "").isprintable()


def test_output_without_lines_takes_little_memory_though_it_is_shown_as_escapes() -> None:
    zero, chunk = worker(0), bytes(1 << 17)
    file = Writes(forgets=True)
    output = lines(file, zero, worker(1))
    tracemalloc.start()
    try:
        for _ in range(200):
            output.write(zero, "stdout", chunk)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20

"""The log of a job, as a reader finds its lines."""

from __future__ import annotations

import random
import resource
from pathlib import Path

from tpukit.agent.job_log import PIECE, Log, Pieces


def test_the_last_lines_of_a_mark_are_found_in_any_block_and_piece(tmp_path: Path) -> None:
    source = random.Random(0)
    marks = [b"[chip %d] " % chip for chip in range(4)]
    lines = [source.choice(marks) + bytes(source.randrange(200)) + b"\n" for _ in range(9000)]
    log = Log(str(tmp_path), 2 * PIECE)
    for line in lines:
        log.write(line)
    pieces = Pieces(str(tmp_path))
    kept = b"".join(lines)[pieces.start :]
    assert 0 < pieces.start < pieces.end - PIECE  # two pieces, and an earlier one is gone
    for mark in (b"", *marks):
        begins = [
            pieces.start + place
            for place in range(len(kept))
            if kept.startswith(mark, place) and kept[place - 1 : place] in (b"", b"\n")
        ]
        for count in (1, 2, 300, 500, len(begins) - 1):
            assert pieces.last_lines(count, mark) == begins[-count], (mark, count)
        assert pieces.last_lines(0, mark) == pieces.end


def test_a_disk_that_takes_nothing_at_all_does_not_end_the_writer(tmp_path: Path) -> None:
    """Such as one that has become read-only: the command would end with its log's writer."""
    log = Log(str(tmp_path), 2 * PIECE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        log.write(b"lost\n")
        log.write(b"lost\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write(b"kept\n")
    words = b"tpukit: the disk was full, and 10 bytes of output were dropped\nkept\n"
    assert (tmp_path / "log").read_bytes() == words

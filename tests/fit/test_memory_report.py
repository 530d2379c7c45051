"""What XLA wrote about a program that was too large: JAX 0.10.2 with libtpu 0.0.52, 2026-11."""

from __future__ import annotations

import shutil
from pathlib import Path

from tpukit.fit.memory_report import read

RECORDED = Path(__file__).parent / "recorded"
PROGRAM = Path("/home/ada/train.py")
WEIGHTS = 70_000 * 70_000 * 2


def test_the_total_is_the_one_that_the_compiler_refuses() -> None:
    """Its message says 56.11G."""
    report = read(RECORDED, PROGRAM)
    assert round(report.total / 2**30, 2) == 56.11
    assert report.collectives == {"all-reduce": 4}


def test_the_largest_buffers_come_first_with_their_argument_or_operation() -> None:
    first, *_, last = read(RECORDED, PROGRAM).buffers
    assert (first.shape, first.operation, first.line) == ("bf16[70000,70000]", "w[0]", 0)
    assert first.size == 9_802_240_000
    assert first.padding == first.size - WEIGHTS  # 70,000 is no multiple of 128
    assert last.shape == "bf16[2048,70000]"
    assert (last.operation, last.line) == ("jit(step)/jvp()/dot_general", 16)


def test_lines_of_other_files_are_not_shown() -> None:
    buffers = read(RECORDED, Path("/home/ada/other.py")).buffers
    assert {buffer.line for buffer in buffers} == {0}
    assert len(buffers) == 8


def test_what_is_missing_is_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, PROGRAM).total == 0
    name = "module.after_optimizations-memory-usage-report.txt"
    shutil.copy(RECORDED / name, tmp_path)
    report = read(tmp_path, PROGRAM)
    assert (report.buffers, report.collectives) == ((), {})
    assert report.total > 0
    (tmp_path / name).write_text("another form\n")
    assert read(tmp_path, PROGRAM).total == 0

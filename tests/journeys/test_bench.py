"""The measurements that the documentation quotes can be made, and confirm its claims.

CI runs `scripts/bench startup` by itself: beside other tests its ratios mislead.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.journey, pytest.mark.bench]

ROOT = Path(__file__).parent.parent.parent


def bench(*words: str) -> list[str]:
    """Run `scripts/bench` with this interpreter, and return the lines of its table."""
    done = subprocess.run(
        [str(ROOT / "scripts" / "bench"), *words],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_waits_notice_their_end_within_three_seconds_on_average() -> None:
    rows = [line.split() for line in bench("polling", "--waits", "200")[1:]]
    assert [float(row[0]) for row in rows] == [30, 60, 120, 180, 300, 600, 1200]
    assert all(float(row[1]) < 3 < float(row[2]) for row in rows)


def test_the_second_command_on_a_slice_does_not_wait_for_a_far_api() -> None:
    rows = {line[:11]: line[11:].split() for line in bench("latency", "--alone", "--runs=1")[1:]}
    for name in ("run -- true", "ssh -- true"):
        first, again = map(int, rows[name][-2:])
        assert first > again == 0


def test_sixteen_connections_cost_less_than_sixteen_programs() -> None:
    _, one, sixteen, further = bench("ssh", "--alone", "--runs", "1")
    assert one.startswith("1 worker ")
    assert sixteen.startswith("16 workers ")
    assert int(sixteen.split()[2]) < 16 * int(one.split()[2])
    assert further.startswith("each further worker: ")


def test_sixty_four_workers_at_rest_cost_little_memory_and_no_process() -> None:
    """The measurement itself fails where they cost more than it says."""
    _, *lines = bench("emulator", "--engine", "portable")
    figures = dict(line.rsplit(maxsplit=1) for line in lines)
    assert float(figures["processes for each idle worker"]) == 0
    assert float(figures["kB for each idle worker"]) < 64
    assert float(figures["processes left"]) == 0


def test_under_faults_no_create_is_lost_where_the_plain_client_loses_some() -> None:
    """The measurement itself fails where tpukit loses one, or makes one too many."""
    lines = bench("faults", "--creates", "40", "--gcloud", "0", "--rate", "0.3")
    rows = {line[:25].strip(): line[25:].split() for line in lines[1:5]}
    for ours in ("tpukit", "tpukit, 3 zones"):
        *figures, served = rows[ours]
        assert figures == ["30%", "40", "40", "0", "0", "0"]
        assert int(served) > 40
    assert int(rows["google-cloud-tpu"][4]) > 0, "lost"
    assert int(rows["google-cloud-tpu, 3 zones"][5]) > 0, "duplicates"
    assert lines[-1].startswith("seed 1; ")

"""A detached run at full size over a line that breaks again and again."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
from support.command_line import Tpukit

pytestmark = [pytest.mark.journey, pytest.mark.full_size]

WORKERS, BATCH = 4, 1_000


@pytest.fixture
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program with a slice of four workers named pod, which share this machine's files."""
    tpukit = Tpukit(tmp_path_factory.mktemp("resets"), {"TPUKIT_LOCAL": "1"})
    tpukit.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "0.2")
    tpukit.succeeds("create", "v3-32", "pod")
    tpukit.succeeds("firewall", "apply", "pod")
    yield tpukit
    tpukit("emulator", "stop")


@pytest.mark.parametrize(
    ("resets", "lines_each"), [(12, 4_000), pytest.param(50, 10_000, marks=pytest.mark.long)]
)
def test_resets_lose_no_line_repeat_none_and_run_nothing_twice(
    four: Tpukit, resets: int, lines_each: int
) -> None:
    """Each reset strikes one connection after a random number of its bytes.

    A handshake has some 5,000, so that some are reset before they are of any use. The job goes on
    after each batch of lines when the reader has it: it outlasts the resets.
    """
    seen = four.home / "seen"
    seen.mkdir()
    command = (
        f"echo x >>count; i=0; while [ $i -lt {lines_each} ]; do i=$((i + 1)); "
        'echo "line $i of a run whose connection is reset again and again"; '
        f"[ $((i % {BATCH})) != 0 ] || until [ -e {seen}/$TPUKIT_WORKER-$i ]; do sleep 0.02; done; "
        "done; exit $TPUKIT_WORKER"
    )
    four.succeeds("run", "pod", "--detach", "--run-id", "long", "--", command)
    emulator, chance = four.emulator, random.Random(4)
    for _ in range(resets):
        emulator.add_worker_fault(
            {"node": "pod", "fault": "cut", "times": 1, "bytes": chance.randrange(2_000, 40_000)}
        )
    lines: dict[int, list[int]] = defaultdict(list)
    with four.start("attach", "pod", "long") as process:
        assert process.stdout
        for line in process.stdout:
            place, _, number, _ = line.split(maxsplit=3)
            worker = int(place.strip("[]"))
            lines[worker].append(int(number))
            if int(number) % BATCH == 0:
                (seen / f"{worker}-{number}").touch()
        assert process.wait(120) == WORKERS - 1
    assert sum(rule["served"] for rule in emulator.faults()["workers"]) == resets
    assert lines == {worker: [*range(1, lines_each + 1)] for worker in range(WORKERS)}
    assert four.succeeds("run", "pod", "--", "cat count").stdout.count("x") == WORKERS
    jobs = four.document("jobs", "pod", "long")["jobs"]
    assert [(job["state"], job["status"]) for job in jobs] == [
        ("finished", worker) for worker in range(WORKERS)
    ]

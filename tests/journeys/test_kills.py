"""`up` is killed outright, at every stage and at random, and typed again; so are other commands."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.killed_commands import ACTIONS, SCENARIOS, KilledCommands, Scenario
from support.local_cloud import running_cloud

pytestmark = [pytest.mark.journey, pytest.mark.kills]

#: Lines of narration, in their order, at which `up` is killed. Its work on the worker goes on.
MOMENTS = {
    "before anything is asked for": r"slice victim:",
    "while the slice is made": r"create +(CREATING|READY)",
    "once it is ready": r"create +READY",
    "once the rule is there": r"firewall +(already )?open",
    "once a worker answered": r"connect +1 of 1",
    "while uv is installed": r"worker 0: uv: ",
    "while the environment is made": r"worker 0: venv: ",
    "while packages are installed": r"worker 0: packages: ",
    "while the packages are tried": r"worker 0: verify: ",
    "while the devices compute": r"provision +\d+ changes?",
}
UP = ("--local", "up", "v3-8", "victim")


@pytest.fixture(scope="module")
def tpukit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program, and an emulator without a slice."""
    tpukit = Tpukit(tmp_path_factory.mktemp("kills"))
    tpukit.succeeds("emulator", "start", "--create-seconds", "1")
    yield tpukit
    tpukit("emulator", "stop")


def test_up_converges_after_ten_kills_in_a_row_each_at_a_later_stage(tpukit: Tpukit) -> None:
    for when, pattern in MOMENTS.items():
        moment = re.compile(pattern)
        status, told = tpukit.interrupted(
            signal.SIGKILL, lambda line, moment=moment: bool(moment.search(line)), *UP
        )
        assert status == -signal.SIGKILL, f"{when}: {told}"
        assert len(tpukit.slices("victim")) <= 1, when
        assert len(tpukit.rules("victim")) <= 1, when
    _converges(tpukit)


def test_up_converges_after_a_kill_at_any_moment(tpukit: Tpukit) -> None:
    seed = os.environ.get("TPUKIT_JOURNEY_SEED") or str(random.randrange(10**6))
    seconds = random.Random(seed).uniform(0.3, 14.0)
    sys.stdout.write(f"TPUKIT_JOURNEY_SEED={seed}: killed after {seconds:.2f} s\n")
    with tpukit.start(*UP) as process:
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    _converges(tpukit)


def _converges(tpukit: Tpukit) -> None:
    """Type it again: one slice, one rule, every device computes, and then nothing is left to do."""
    assert tpukit.document(*UP)["smoke"]["ok"]
    assert (len(tpukit.slices("victim")), len(tpukit.rules("victim"))) == (1, 1)
    assert tpukit.document(*UP)["changes"] == 0
    tpukit.succeeds("--local", "delete", "victim", "--yes")
    assert not tpukit.slices("victim")
    assert not tpukit.rules("victim")


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[KilledCommands]:
    with running_cloud(tmp_path, create_seconds=0.3) as cloud:
        found = KilledCommands(cloud)
        found.prepare()
        yield found


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_what_is_ended_at_a_call_of_the_api_is_listed_and_converges(
    commands: KilledCommands, scenario: Scenario
) -> None:
    """Each way at some of the moments; `scripts/kills` takes all of them."""
    points = commands.points(scenario)
    asking = [at for at, point in enumerate(points, 1) if re.search("(create|delete) ", point)]
    assert asking
    for at, action in enumerate(ACTIONS):
        some = asking[at :: 3 * len(scenario.stems)]
        tally = commands.at_each_point(scenario, action, some)
        assert (tally.orphans, tally.wrong) == (0, [])
        assert tally.struck == len(some)


def test_what_is_killed_at_random_is_listed_and_converges(commands: KilledCommands) -> None:
    seed = int(os.environ.get("TPUKIT_JOURNEY_SEED") or random.randrange(10**6))
    sys.stdout.write(f"TPUKIT_JOURNEY_SEED={seed}\n")
    tally = commands.at_random(SCENARIOS[0], 5, seed)
    assert (tally.orphans, tally.wrong) == (0, [])
    assert commands.gcloud_deletes_one() == []

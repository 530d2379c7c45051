"""`up` is killed outright, at every stage and at random, and typed again."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys

import pytest
from support.command_line import Tpukit

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
    "while the devices compute": r"provision +\d+ changes",
}
UP = ("--local", "up", "v3-8", "victim")


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


@pytest.mark.parametrize("which", ["first", "second"])
def test_up_converges_after_a_kill_at_any_moment(tpukit: Tpukit, which: str) -> None:
    seed = f"{os.environ.get('TPUKIT_JOURNEY_SEED') or random.randrange(10**6)} {which}"
    seconds = random.Random(seed).uniform(0.3, 14.0)
    sys.stdout.write(f"TPUKIT_JOURNEY_SEED={seed.split()[0]}: killed after {seconds:.2f} s\n")
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

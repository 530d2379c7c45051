"""A worker that answers nothing, for ever or nonsense fails alone, in time, in little memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil
import pytest
from support.ssh_fixtures import Within, ubuntus_or_ours
from support.ssh_server import Server

from tpukit.clock import SystemClock
from tpukit.errors import TpukitError
from tpukit.jobs import runs
from tpukit.jobs.detached_job import LogPart
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import Outcome
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_lock import worker_lock

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
servers = pytest.fixture(ubuntus_or_ours)

#: Programs in place of the agent on one worker.
SILENT = "import time; time.sleep(1000)"
ENDLESS = "import sys\nwhile True: sys.stdout.write('y' * 65536)"
BEATING = "import sys, time\nwhile True: print('tpukit-log 0 0', flush=True); time.sleep(0.05)"
GROWING = "import sys\nwhile True: print('\\ntpukit-agent {}', flush=True)"

Ask = Callable[[Sequence[RemoteWorker], float], Sequence[Outcome[RemoteWorker, object]]]


def states(workers: Sequence[RemoteWorker], patience: float) -> Sequence[Outcome]:
    return runs.states(workers, CLOCK, patience=patience)


def log(workers: Sequence[RemoteWorker], patience: float) -> Sequence[Outcome]:
    part = LogPart(on=False)
    return runs.follow(workers, "train", lambda *_: None, CLOCK, part=part, patience=patience)


def follow(workers: Sequence[RemoteWorker], patience: float) -> Sequence[Outcome]:
    return runs.follow(workers, "train", lambda *_: None, CLOCK, patience=patience)


def end(workers: Sequence[RemoteWorker], patience: float) -> Sequence[Outcome]:
    return runs.end(workers, ["train"], CLOCK, patience=patience)


def prune(workers: Sequence[RemoteWorker], patience: float) -> Sequence[Outcome]:
    return runs.states(workers, CLOCK, ended_before=0.0, patience=patience)


@pytest.fixture
def spoil(workers: list[RemoteWorker], servers: list[Server]) -> Callable[[str], None]:
    """Start a run that has ended, then put a program in place of the agent on worker 1."""
    runs.start(workers, "train", "echo out", "", CLOCK)
    runs.follow(workers, "train", lambda *_: None, CLOCK)

    def spoil(program: str) -> None:
        agent = servers[1].home / agent_client.program()
        agent.write_text(program)

    return spoil


def failed_alone(found: Sequence[Outcome]) -> TpukitError:
    assert [outcome.error is None for outcome in found] == [True, False, True], found
    assert found[1].error
    return found[1].error


@pytest.mark.parametrize("program", [SILENT, ENDLESS], ids=["silent", "endless"])
def test_a_worker_without_progress_is_given_up_within_the_patience(
    workers: list[RemoteWorker], spoil: Callable[[str], None], program: str
) -> None:
    spoil(program)
    for ask in (states, log, follow, end, prune):
        began, before = time.monotonic(), psutil.Process().memory_info().rss
        failed_alone(ask(workers, 3.0))
        assert time.monotonic() - began < 20, ask
        assert psutil.Process().memory_info().rss - before < 60 << 20, ask


def test_signs_of_life_alone_do_not_send_a_log_that_has_an_end(
    workers: list[RemoteWorker], spoil: Callable[[str], None]
) -> None:
    spoil(BEATING)
    began = time.monotonic()
    assert failed_alone(log(workers, 3.0)).what == "demo worker 0 answers nothing"
    assert time.monotonic() - began < 20


def test_a_lock_on_a_worker_that_never_stops_sending_takes_no_memory(
    workers: list[RemoteWorker], spoil: Callable[[str], None], within: Within
) -> None:
    spoil(ENDLESS)
    before = psutil.Process().memory_info().rss
    with worker_lock(workers[1], ".tpukit/a.lock", within(4), ahead="", late="") as waited:
        assert not waited
    assert psutil.Process().memory_info().rss - before < 30 << 20


#: None of them is what any of the questions asks for.
NONSENSE = [
    "",
    "{",
    '{"jobs": 7}',
    '{"jobs": [7]}',
    '{"jobs": [{"job": "run.train", "state": "finished", "about": ""}]}',
    '{"jobs": [{"job": "run.train", "state": "x", "about": "", "started": 1e300}]}',
    '{"jobs": [{"job": "run.train", "state": "x", "about": "", "started": 1.0, "status": ""}]}',
    '{"state": "finished", "status": "abc"}',
    '{"state": 7}',
    '{"left": [{"pid": "1"}], "why": ""}',
    '{"a":' * 50_000 + "{" + "}" * 50_001,
]


@pytest.mark.parametrize("ask", [states, log, end])
def test_an_answer_that_makes_no_sense_is_an_error_of_that_worker(
    workers: list[RemoteWorker], spoil: Callable[[str], None], ask: Ask
) -> None:
    for answer in NONSENSE:
        spoil(f"print({f'{chr(10)}tpukit-agent {answer}'!r})")
        failed = [outcome.error is not None for outcome in ask(workers, 30.0)]
        assert failed == [False, True, False], answer[:80]

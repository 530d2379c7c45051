"""Runs that go on by themselves: on every worker or on none, each line once, ended for good."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from functools import partial

import pytest
from support.ssh_fixtures import ALL_OURS, Within, ubuntus_or_ours
from support.ssh_server import Server

from tpukit.clock import SystemClock
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    NameTaken,
    NotFound,
    TpukitError,
    TransportFailed,
)
from tpukit.jobs import runs
from tpukit.jobs.detached_job import LogPart
from tpukit.jobs.shell_environment import shell_lines
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process

CLOCK = SystemClock()
servers = pytest.fixture(ubuntus_or_ours)


def start(workers: list[RemoteWorker], command: str, run_id: str = "train") -> None:
    runs.start(workers, run_id, command, shell_lines({"GREETING": "it's me"}), CLOCK)


def follow(workers: list[RemoteWorker], run_id: str = "train") -> dict[int, list[str]]:
    logs: dict[int, bytes] = defaultdict(bytes)

    def note(worker: RemoteWorker, data: bytes) -> None:
        logs[worker.index] += data

    found = runs.follow(workers, run_id, note, CLOCK)
    assert [outcome.error for outcome in found] == [None] * len(workers)
    return {index: log.decode().splitlines() for index, log in logs.items()}


def stand(workers: list[RemoteWorker]) -> list[tuple[str, int | None]]:
    """Return the state of the one run on each worker."""
    found = [state.value for state in runs.states(workers, CLOCK)]
    return [(state.state, state.status) for (state,) in filter(None, found)]


def test_a_run_is_started_on_all_listed_followed_and_told_how_it_ended(
    workers: list[RemoteWorker],
) -> None:
    start(workers, "echo $GREETING $WORKER; exit $WORKER")
    assert follow(workers) == {index: [f"it's me {index}"] for index in range(3)}
    assert stand(workers) == [("finished", 0), ("finished", 1), ("finished", 2)]
    (state,) = runs.states(workers, CLOCK)[0].value or ()
    assert state.command == "echo $GREETING $WORKER; exit $WORKER"
    assert state.started == pytest.approx(CLOCK.time(), abs=60)


def test_the_environment_is_in_no_file_and_on_no_command_line(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    secret = "hf0123456789abcdef"  # no quoting changes it
    runs.start(workers, "train", 'exit "${#TOKEN}"', shell_lines({"TOKEN": secret}), CLOCK)
    follow(workers)
    assert stand(workers) == [("finished", len(secret))] * 3
    folder = servers[0].home / ".tpukit" / "jobs" / "run.train@demo.0"
    assert all(path.stat().st_mode & 0o077 == 0 for path in [folder, *folder.iterdir()])
    assert not any(secret in path.read_text() for path in folder.iterdir())
    assert servers[0].commands
    assert not any(secret in command for command in servers[0].commands)


def test_the_same_run_id_is_refused_and_starts_nothing(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    start(workers[1:2], "echo x >>count")
    with pytest.raises(NameTaken, match="run train is already on demo worker 1"):
        start(workers, "echo x >>count")
    follow(workers[1:2])
    assert [(server.home / "count").exists() for server in servers] == [False, True, False]


def test_workers_that_share_a_home_folder_have_a_record_each(workers: list[RemoteWorker]) -> None:
    both = [RemoteWorker(index, workers[0].connect, "demo") for index in range(2)]
    start(both, "echo {worker}; exit {worker}")
    assert follow(both) == {0: ["0"], 1: ["1"]}
    assert stand(both) == [("finished", 0), ("finished", 1)]


def test_of_two_starts_at_once_one_is_refused(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    together = threading.Barrier(2)
    refused: list[NameTaken] = []

    def race() -> None:
        together.wait(60)
        try:
            start(workers, "echo x >>count; sleep 0.2")
        except NameTaken as error:
            refused.append(error)

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(refused) == 1
    follow(workers)
    assert [(server.home / "count").read_text() for server in servers] == ["x\n"] * 3


def test_nothing_starts_where_one_worker_does_not_answer(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    def connect() -> Connection:
        raise TransportFailed("demo worker 2 does not answer")

    with pytest.raises(TransportFailed, match="worker 2"):
        start([*workers[:2], RemoteWorker(2, connect, "demo")], "touch ran")
    assert not any((server.home / "ran").exists() for server in servers)


def test_a_start_that_fails_half_way_leaves_nothing_running(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """Worker 1 can list its runs and keep none."""
    jobs = servers[1].home / ".tpukit"
    jobs.mkdir()
    (jobs / "jobs").write_text("in the way")
    servers[1].own(jobs)
    with pytest.raises(TpukitError, match="could not keep a job") as caught:
        start(workers, "sleep 1000")
    assert (caught.value.exists, caught.value.fix) == ((), None)
    assert stand(workers[::2]) == [("finished", 143)] * 2


def test_a_start_that_took_too_long_is_withdrawn_and_not_said_to_go_on(
    workers: list[RemoteWorker],
) -> None:
    calls: list[int] = []

    def connect() -> Connection:
        calls.append(1)
        if len(calls) == 2:
            raise DeadlinePassed("demo worker 1 did not answer in time")
        return workers[1].connect()

    with pytest.raises(DeadlinePassed) as caught:
        start([workers[0], RemoteWorker(1, connect, "demo")], "sleep 1000")
    assert (caught.value.exists, caught.value.fix) == ((), None)
    assert stand(workers[:1]) == [("finished", 143)]
    assert runs.states(workers[1:2], CLOCK)[0].value == []


@ALL_OURS
def test_a_lost_answer_of_a_start_is_asked_for_again(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """The first worker's: its fourth command, after the agent and the listing, is the start."""
    servers[0].loses = lambda number: number == 4
    start(workers, "echo x >>count")
    follow(workers)
    assert [(server.home / "count").read_text() for server in servers] == ["x\n"] * 3


def test_an_interrupted_start_leaves_nothing_running(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """It comes while worker 1 is connected to for its start, and worker 0 has begun."""
    connected: list[int] = []
    withdrawn = threading.Event()

    def connect() -> Connection:
        connected.append(1)
        if len(connected) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            withdrawn.wait(60)
        return workers[1].connect()

    chosen = [workers[0], RemoteWorker(1, connect, "demo"), workers[2]]
    with pytest.raises(Interrupted) as caught:
        start(chosen, "touch ran; sleep 1000")
    withdrawn.set()
    assert (caught.value.exists, caught.value.fix) == ((), None)
    assert caught.value.why == "run train was ended on every worker"
    # The agent, the listing, what takes the run's place, its end, and the start that comes late.
    servers[1].wait_until(lambda: len(servers[1].commands) == 6)
    assert stand(workers[:2]) == [("finished", 143)] * 2
    assert all(each == ("finished", 143) for each in stand(workers[2:]))
    assert not (servers[1].home / "ran").exists()


@ALL_OURS
def test_where_a_start_could_not_be_withdrawn_is_said(
    connector: Connector, within: Within, servers: list[Server]
) -> None:
    """The first worker vanishes when it has begun; the second one cannot keep a job."""

    def connect(index: int) -> Connection:
        return connector.connect(servers[index].target(), within(0.5))

    def vanish() -> None:
        if len(servers[1].commands) == 4:
            servers[0].accepted.clear()
            servers[0].cut()

    jobs = servers[1].home / ".tpukit"
    jobs.mkdir()
    (jobs / "jobs").write_text("in the way")
    servers[1].on_command = vanish
    chosen = [RemoteWorker(index, partial(connect, index), "demo") for index in range(2)]
    with pytest.raises(TpukitError) as caught:
        start(chosen, "echo $$ >pid; sleep 1000")
    error = caught.value
    assert "run train may run on demo worker 0" in error.exists
    assert error.fix
    assert error.fix.arguments == ("tpukit", "kill", "demo", "train")
    assert error.otherwise
    assert error.otherwise.arguments == ("tpukit", "attach", "demo", "train")
    os.killpg(os.getpgid(int((servers[0].home / "pid").read_text())), signal.SIGKILL)


@pytest.mark.journey
@ALL_OURS
@pytest.mark.process
def test_every_line_comes_once_over_fifty_cut_connections(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """The connections of a random worker are reset at random lines, fifty times.

    Each worker waits after every hundred lines until they were seen, so that none is quick enough
    to be read at once.
    """
    chance = random.Random(4)
    left = {chance.randrange(1, 6000) for _ in range(50)}
    seen = 0
    lock = threading.Lock()
    lines: dict[int, list[str]] = defaultdict(list)
    rest: dict[int, bytes] = defaultdict(bytes)

    def note(worker: RemoteWorker, data: bytes) -> None:
        nonlocal seen
        *whole, rest[worker.index] = (rest[worker.index] + data).split(b"\n")
        for line in map(bytes.decode, whole):
            lines[worker.index].append(line)
            (servers[worker.index].home / f"seen-{line}").touch()
            with lock:
                seen += 1
                cut = seen in left
            if cut:
                servers[chance.randrange(3)].cut()

    start(
        workers,
        "echo x >>count; i=0; while [ $i -lt 2000 ]; do i=$((i + 1)); echo $i; "
        "[ $((i % 100)) != 0 ] || until [ -e seen-$i ]; do sleep 0.01; done; done; exit $WORKER",
    )
    found = runs.follow(workers, "train", note, CLOCK)
    assert lines == {index: [str(n) for n in range(1, 2001)] for index in range(3)}
    assert [each.value.status for each in found if each.value] == [0, 1, 2]
    assert [(server.home / "count").read_text() for server in servers] == ["x\n"] * 3
    assert sum(len(server.ciphers) for server in servers) > 15, "connections were cut"


def test_who_has_left_a_log_is_told_of_no_loss(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """The connections are closed at the end of an interrupted command, which has had its say."""
    start(workers[:1], "echo begun; sleep 1000")
    told: list[str] = []
    connected, again = threading.Event(), threading.Event()

    def connect() -> Connection:
        if connected.is_set():
            again.set()
            raise TpukitError("it is followed no longer")
        connected.set()
        return workers[0].connect()

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        runs.follow(
            [RemoteWorker(0, connect, "demo")],
            "train",
            interrupt,
            CLOCK,
            notice=lambda worker, word: told.append(word),
        )
    servers[0].cut()
    assert again.wait(60)
    assert told == []
    runs.end(workers[:1], ["train"], CLOCK)


def test_a_log_can_be_read_while_the_run_goes_on(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    start(workers[:1], "echo first; touch there; until [ -e go ]; do sleep 0.02; done; echo last")
    servers[0].wait_until((servers[0].home / "there").exists)
    pieces: list[bytes] = []
    found = runs.follow(
        workers[:1],
        "train",
        lambda _, data: pieces.append(data),
        CLOCK,
        part=LogPart(on=False),
    )
    assert (pieces, found[0].value, found[0].error) == ([b"first\n"], None, None)
    (servers[0].home / "go").touch()
    assert follow(workers[:1]) == {0: ["first", "last"]}


def test_ending_a_run_ends_it_on_every_worker(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    start(workers, "touch there; sleep 1000")
    servers[0].wait_until(lambda: all((server.home / "there").exists() for server in servers))
    assert stand(workers) == [("running", None)] * 3
    assert [outcome.error for outcome in runs.end(workers, ["train"], CLOCK)] == [None] * 3
    assert stand(workers) == [("finished", 143)] * 3


def test_after_a_restart_of_a_worker_its_run_is_lost(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    start(workers, "sleep 0.1")
    follow(workers)
    folder = servers[1].home / ".tpukit" / "jobs" / "run.train@demo.1"
    (folder / "status").unlink()
    pid, _, born = (folder / "pid").read_text().split()
    (folder / "pid").write_text(f"{pid} another-boot {born}\n")
    assert stand(workers) == [("finished", 0), ("lost", None), ("finished", 0)]


def test_the_run_that_started_last_is_meant_where_none_is_named(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    """By the workers' clocks."""
    start(workers[:1], "true", "zebra")
    start(workers[1:], "true", "ant")
    states = runs.states(workers, CLOCK)
    assert runs.latest(states) == "ant"
    then = time.time() + 5
    os.utime(servers[0].home / ".tpukit/jobs/run.zebra@demo.0/command", (then, then))
    assert runs.latest(runs.states(workers, CLOCK)) == "zebra"
    assert [worker.index for worker in runs.holding(states, "ant")] == [1, 2]
    with pytest.raises(NotFound):
        runs.holding(states, "cat")


def test_without_any_run_that_is_said(workers: list[RemoteWorker]) -> None:
    with pytest.raises(NotFound, match="there is no run"):
        runs.latest(runs.states(workers, CLOCK))


def test_what_names_no_folder_names_no_run(workers: list[RemoteWorker]) -> None:
    for run_id in ["", "..", "a b", "A", "x" * 81]:
        with pytest.raises(BadInput):
            start(workers, "true", run_id)


def test_hostile_headers_and_commands_of_others_are_harmless(
    workers: list[RemoteWorker], servers: list[Server]
) -> None:
    start(workers[:1], "printf '\\033[2J'; true\n\x1b[2J")
    forged = ["", "{", '{"started": [], "environment": 7}', "7", '{"command": "\x1b[2J"}']
    for number, about in enumerate(forged):
        folder = servers[0].home / ".tpukit" / "jobs" / f"run.forged{number}@demo.0"
        folder.mkdir()
        (folder / "command").touch()
        (folder / "about").write_text(f"{about}\n")
    (states,) = [state.value for state in runs.states(workers[:1], CLOCK)]
    assert states is not None
    assert sorted(state.run for state in states) == [
        *(f"forged{number}" for number in range(5)), "train",
    ]  # fmt: skip
    assert not any("\x1b" in state.command for state in states)

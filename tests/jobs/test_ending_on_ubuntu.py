"""What a command has started is ended, root's processes too: OpenSSH, an ordinary user, sudo."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.clocks import HandClock
from support.login_account import Account
from support.openssh_server import UbuntuServer
from support.processes import eventually, sleepers
from support.ssh_fixtures import Within

from tpukit.clock import Clock, SystemClock
from tpukit.errors import DeadlinePassed, NotFound, TransportFailed
from tpukit.jobs import runs
from tpukit.jobs.attached import AttachedRun, CommandOutcome, CommandRequest
from tpukit.ssh.client import Connector
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process

PASSWORDLESS = "Defaults:{0} %s\n{0} ALL=(ALL) NOPASSWD:ALL\n"


@pytest.fixture
def worker(ubuntu: UbuntuServer, connector: Connector, within: Within) -> RemoteWorker:
    if not ubuntu.account.made:
        pytest.skip("no ordinary user can be made: what sudo does is NOT checked")
    return RemoteWorker(0, lambda: connector.connect(ubuntu.target(), within(60)), "demo")


@pytest.fixture
def seconds() -> Iterator[str]:
    """How long a sleep is to last that only its test has started; it ends with the test."""
    found = f"3600.{secrets.randbelow(10**9)}"
    yield found
    for sleeper in sleepers(found):
        sleeper.kill()


@contextmanager
def running(
    worker: RemoteWorker, request: CommandRequest, seen: Callable[[], object], clock: Clock
) -> Iterator[tuple[AttachedRun, list[CommandOutcome]]]:
    """Run a command until it was seen; on the way out wait for its end."""
    going, outcomes = AttachedRun(request, clock, lambda *_: None), list[CommandOutcome]()
    thread = threading.Thread(target=lambda: outcomes.extend(going.on_all([worker])), daemon=True)
    thread.start()
    try:
        eventually(seen)
        yield going, outcomes
    finally:
        thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("terminal", ["use_pty", "!use_pty"])
@pytest.mark.parametrize(
    "command",
    [
        "sudo -n {}",
        "sudo -n -u nobody {}",
        "sudo -n setsid -w {}",
        "sudo -n sh -c 'setsid {} & wait'",  # sudo's own end is not this one's
    ],
)
def test_what_sudo_runs_is_ended(
    worker: RemoteWorker, account: Account, seconds: str, command: str, terminal: str
) -> None:
    command = command.format(f"sleep {seconds}")
    request = CommandRequest(f"{command}; true")
    with (
        account.sudoing(PASSWORDLESS % terminal),
        running(worker, request, lambda: sleepers(seconds), SystemClock()) as (going, _),
    ):
        going.stop()
        assert not sleepers(seconds)
    assert not going.remains


@pytest.mark.parametrize(
    "command",
    [
        "exec env -i sleep {}",
        "env -i sleep {} & exit",  # nobody's child, in the session of one that is gone
        "env -i setsid sleep {} & wait",
        # One of them is nobody's child, in the session of another.
        "env -i setsid sh -c '(sleep {0} &); exec sleep {0}' & wait",
    ],
)
def test_what_has_dropped_its_mark_is_ended(
    worker: RemoteWorker, seconds: str, command: str
) -> None:
    request = CommandRequest(command.format(seconds))
    with running(worker, request, lambda: sleepers(seconds), SystemClock()) as (going, _):
        going.stop()
        assert not sleepers(seconds)
    assert not going.remains


def test_a_deadline_ends_what_sudo_runs(worker: RemoteWorker, seconds: str) -> None:
    clock = HandClock()
    request = CommandRequest(f"sudo -n sleep {seconds}", limit=300.0)
    with running(worker, request, lambda: sleepers(seconds), clock) as (_, outcomes):
        clock.advance(300.0)
    assert isinstance(outcomes[0].error, DeadlinePassed)
    assert outcomes[0].error.why == "its processes that could be found were ended"
    assert not sleepers(seconds)


def test_what_cannot_be_ended_is_named(
    worker: RemoteWorker, account: Account, seconds: str
) -> None:
    """sudo asks for a password meanwhile: whoever says that all was ended is wrong."""
    command = f"sudo -n sh -c 'setsid sleep {seconds} & wait'"
    request = CommandRequest(command, grace=0.2)
    with running(worker, request, lambda: sleepers(seconds), SystemClock()) as (going, _):
        with account.sudoing(""):
            going.stop()
        (left,) = sleepers(seconds)
        (told,) = going.remains
        left.kill()
    assert told.startswith("the command on demo worker 0 goes on as PID ")
    assert f"PID {left.pid} (sleep {seconds})" in told
    assert told.endswith(": sudo asks for a password there")


_LOOP = "while :; do sleep 0.05; done"
_SAVES = """
import time
try: open('begun', 'w').close(); time.sleep(1000)
except KeyboardInterrupt: open('told', 'w').close()
"""


@pytest.mark.parametrize(
    ("command", "how"),
    [
        pytest.param(f'python3 -c "{_SAVES}"', {"grace": 1000.0}, id="Ctrl-C"),
        pytest.param(
            f"trap : INT; trap ': >told; exit' TERM; : >begun; {_LOOP}",
            {"grace": 1.0},
            id="TERM after half of the grace",
        ),
        *(
            pytest.param(
                f"trap ': >told; exit' {name}; : >begun; {_LOOP}", {"first": name}, id=name
            )
            for name in ("HUP", "USR1")
        ),
    ],
)
def test_a_program_that_knows_a_signal_can_save(
    worker: RemoteWorker, ubuntu: UbuntuServer, command: str, how: dict[str, Any]
) -> None:
    request = CommandRequest(command, **how)
    with running(worker, request, (ubuntu.home / "begun").exists, SystemClock()) as (going, _):
        going.stop()
    assert (ubuntu.home / "told").exists()


def test_what_ignores_int_gets_term_at_once(worker: RemoteWorker, ubuntu: UbuntuServer) -> None:
    """As every command does that a script has put into the background."""
    command = f"trap '' INT; trap ': >told; exit' TERM; : >begun; {_LOOP}"
    request = CommandRequest(command, grace=100.0)
    with running(worker, request, (ubuntu.home / "begun").exists, SystemClock()) as (going, _):
        threading.Thread(target=going.stop, daemon=True).start()
        eventually((ubuntu.home / "told").exists, 30)


def test_a_command_of_sudo_s_has_its_environment(worker: RemoteWorker) -> None:
    """Its PATH too, in place of sudo's own."""
    said: list[bytes] = []
    request = CommandRequest(
        'echo "$(id -u) $NAME $TPUKIT_WORKER ${PATH%%:*}"',
        environment="export NAME=x PATH=/own:$PATH\n",
        sudo=True,
    )
    AttachedRun(request, SystemClock(), lambda _, __, chunk: said.append(chunk)).on_all([worker])
    assert b"".join(said).splitlines()[-1].endswith(b"0 x 0 /own")


@pytest.mark.parametrize("redirected", ["", " >log 2>&1"])
def test_a_run_whose_client_is_gone_is_listed_and_can_be_ended(
    worker: RemoteWorker, ubuntu: UbuntuServer, seconds: str, redirected: str
) -> None:
    command = f"sleep {seconds}{redirected}"
    request, clock = CommandRequest(command), SystemClock()
    with running(worker, request, lambda: sleepers(seconds), clock) as (going, outcomes):
        value = runs.states([worker], clock)[0].value
        assert value
        assert [(run.run, run.state, run.command) for run in value] == [
            (going.run_id, "attached", command)
        ]
        with pytest.raises(NotFound, match="has no log") as refused:
            runs.require_log(runs.states([worker], clock), going.run_id)
        assert refused.value.why == "it is attached: only its client gets its output"
        with pytest.raises(NotFound, match="there is no run"):
            runs.latest(runs.states([worker], clock))
        ubuntu.cut()
        eventually(
            lambda: (
                [slice_.state for slice_ in runs.states([worker], clock)[0].value or ()]
                == ["attached, client gone"]
            )
        )
    assert isinstance(outcomes[0].error, TransportFailed)
    assert sleepers(seconds)
    (ended,) = runs.end([worker], [going.run_id], clock)
    assert ended.value
    assert (ended.value.runs, ended.value.certain) == (1, False)
    assert not sleepers(seconds)
    assert runs.states([worker], clock)[0].value == []
    assert list((ubuntu.home / ".tpukit/jobs").iterdir()) == []


def test_the_record_of_a_run_that_has_ended_goes_with_the_next_look(
    worker: RemoteWorker, ubuntu: UbuntuServer
) -> None:
    """Of another worker that shares the home folder nobody here can say that it has ended."""
    AttachedRun(CommandRequest("true"), SystemClock(), lambda *_: None).on_all([worker])
    jobs = ubuntu.home / ".tpukit/jobs"
    other = jobs / "run.other@demo.1"
    other.mkdir()
    assert len(list(jobs.iterdir())) == 2
    assert runs.states([worker], SystemClock())[0].value == []
    assert list(jobs.iterdir()) == [other]


def test_a_command_needs_no_python_there(worker: RemoteWorker, ubuntu: UbuntuServer) -> None:
    tools = ubuntu.home / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "env", "mkdir"):
        (tools / name).symlink_to(shutil.which(name) or "")
    ubuntu.path = str(tools)
    said: list[bytes] = []
    request = CommandRequest("echo $NAME; exit 3", environment="export NAME=x\n")
    going = AttachedRun(request, SystemClock(), lambda _, __, chunk: said.append(chunk))
    (outcome,) = going.on_all([worker])
    assert outcome.value
    assert outcome.value.status == 3
    assert b"".join(said).endswith(b"x\n")  # the shell may have greeted first
    assert (ubuntu.home / f".tpukit/jobs/run.{going.run_id}@demo.0/pid").exists()


def test_a_command_that_was_started_nowhere_is_not_said_to_have_ended() -> None:
    going = AttachedRun(CommandRequest("true"), SystemClock(), lambda *_: None)
    going.stop()
    assert going.ended == "the command was started on no worker"


def test_records_of_commands_that_have_ended_are_swept(
    worker: RemoteWorker, ubuntu: UbuntuServer, seconds: str
) -> None:
    folder = ubuntu.home / ".tpukit" / "jobs"
    for number in range(120):
        (folder / f"run.{number}@demo.0").mkdir(parents=True)
        (folder / f"run.{number}@demo.0/pid").write_text("1 another-boot 1\n")
    job = folder / "run.job@demo.0"
    job.mkdir()
    (job / "command").touch()
    ubuntu.own(ubuntu.home / ".tpukit")
    request = CommandRequest(f"env -i sleep {seconds}")
    with running(worker, request, lambda: sleepers(seconds), SystemClock()) as (going, _):
        assert {*folder.iterdir()} == {job, folder / f"run.{going.run_id}@demo.0"}
        going.stop()
    assert list(folder.iterdir()) == [job]

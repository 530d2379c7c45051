"""Who may come in, and what is left when a worker's life ends."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import paramiko
import pytest
from support.emulated_workers import (
    NODE,
    USER,
    EmulatedWorkers,
    emulated_workers,
    make_key,
    portable,
)
from support.processes import alive, eventually

from tpukit.emulator.api.service import Service
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.core.state import EmulatorState
from tpukit.emulator.workers.engines.engine import EmulatedWorker, WorkerSockets, base_interpreter
from tpukit.emulator.workers.engines.portable import PortableEngine
from tpukit.emulator.workers.inherited_environment import inherited_environment
from tpukit.emulator.workers.slice_facts import SliceFacts
from tpukit.emulator.workers.sshd.link import PacketFilter
from tpukit.emulator.workers.worker_host import WorkerRecord

pytestmark = pytest.mark.process


def connect(workers: EmulatedWorkers, timeout: float) -> socket.socket:
    record = workers.records[0]
    return socket.create_connection((record.address, record.port), timeout=timeout)


def test_a_key_that_metadata_does_not_name_is_refused(worker, tmp_path):
    other = make_key(tmp_path / "other")
    record = worker.records[0]
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
    with pytest.raises(paramiko.AuthenticationException):
        client.connect(
            record.address,
            record.port,
            USER,
            key_filename=str(other),
            allow_agent=False,
            look_for_keys=False,
        )


def test_a_key_opens_the_account_of_its_entry_and_no_other(worker):
    worker.rules.keys.append(("eve-not", worker.rules.keys[0][1]))
    done = worker.ssh("true", user="eve")
    assert done.returncode == 255
    assert b"Permission denied (publickey)" in done.stderr


def test_a_key_counts_from_the_moment_it_is_in_metadata_and_until_it_is_removed(worker):
    keys, worker.rules.keys = worker.rules.keys, []
    assert worker.ssh("true").returncode == 255
    worker.rules.keys = keys
    assert worker.ssh("true").returncode == 0


def test_a_user_name_cannot_lead_out_of_the_workers_folder(worker):
    worker.rules.keys.append(("../../../out", worker.rules.keys[0][1]))
    done = worker.ssh("echo in", user="../../../out")
    assert (done.returncode, done.stdout) == (1, b"")


def test_without_a_firewall_rule_a_connection_is_held_without_a_word(worker):
    worker.rules.open = False
    with connect(worker, timeout=0.7) as connection, pytest.raises(TimeoutError):
        connection.recv(1)


def test_a_rule_made_meanwhile_lets_the_held_connection_through(worker):
    worker.rules.open = False
    with connect(worker, timeout=60) as connection:
        worker.rules.open = True
        assert connection.recv(4) == b"SSH-"


def test_a_full_gate_holds_no_further_connection():
    async def ask() -> bool:
        with socket.socket() as connection:
            return await PacketFilter(lambda source: False, capacity=0).admit(
                connection, "192.0.2.1"
            )

    assert asyncio.run(asyncio.wait_for(ask(), 60)) is False


def test_a_node_that_is_not_booted_answers_nothing(workers):
    workers.allocate()
    with pytest.raises(ConnectionRefusedError):
        connect(workers, timeout=60)


def test_halt_ends_listeners_connections_and_every_process(worker):
    detached = int(worker.output("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"))
    stubborn = int(
        worker.output("(trap '' TERM HUP; exec sleep 1001) </dev/null >/dev/null 2>&1 & echo $!")
    )
    with worker.client() as client:
        channel = client.get_transport().open_session()
        channel.exec_command("echo $$; sleep 1002")
        attached = int(channel.makefile().readline())
        worker.host.halt(NODE)
        eventually(lambda: not client.get_transport().is_active())
    assert [alive(pid) for pid in (detached, stubborn, attached)] == [False, False, False]
    with pytest.raises(ConnectionRefusedError):
        connect(worker, timeout=60)


def test_a_worker_that_goes_down_says_so_before_it_ends_anything(worker):
    """As systemd does; the next boot knows nothing of it, and there are no services."""
    says = "systemctl is-system-running >seen"
    note = f"trap '{says}; exit' TERM; touch here; while :; do sleep 0.02; done"
    worker.output(f'setsid sh -c "{note}" </dev/null >/dev/null 2>&1 &')
    eventually((worker.home() / "here").exists)
    worker.host.halt(NODE)
    assert (worker.home() / "seen").read_text() == "stopping\n"
    worker.boot()
    assert worker.output("systemctl is-system-running || true") == "offline"
    assert worker.ssh("systemctl start nginx").returncode == 1


def test_halt_leaves_other_nodes_alone(workers):
    workers.allocate(node=NODE + "2")
    workers.boot(node=NODE + "2")
    other = int(workers.output("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"))
    workers.host.allocate(NODE, 1)
    workers.host.halt(NODE)
    assert alive(other)


class _Meeting(str):
    """A worker's marker; while it is compared, something else happens, as in another thread."""

    meanwhile: Callable[[], object]

    def startswith(self, *given: object) -> bool:
        self.meanwhile()
        return False


def test_workers_that_start_while_others_end_are_no_error(tmp_path):
    """Each starts at its first connection, in a thread of its own."""
    engine = portable(tmp_path)

    def started(marker: str, number: int) -> None:
        record = WorkerRecord(0, f"127.0.0.{number}", 22, f"w-{number}", "", "")
        node = {"name": NODE, "acceleratorType": "v3-8"}
        folder = tmp_path / record.hostname
        worker = EmulatedWorker(record, SliceFacts.of(node, [record]), folder, marker)
        if sockets := engine.start(worker):
            sockets.metadata.close()

    meeting = _Meeting("one/0")
    meeting.meanwhile = lambda: started("two/0", 3)
    started(meeting, 1)
    started("ended/0", 2)
    engine.end("ended/")
    assert (tmp_path / "w-2/etc/system-state").read_text() == "stopping\n"
    assert (tmp_path / "w-3/etc/system-state").read_text() == "offline\n"


def test_files_outlive_a_halt_and_not_a_discard(worker):
    worker.output("touch kept; mkdir shut; touch shut/in; chmod 0 shut")
    worker.host.halt(NODE)
    worker.boot()
    assert "kept" in worker.output("ls")
    folder = worker.home().parent.parent
    worker.host.discard(NODE)
    assert not folder.exists()


def test_a_restarted_host_serves_the_same_workers_again(worker):
    """The host key is checked by the client: known_hosts was written before the restart."""
    worker.output("touch kept")
    worker.host.close()
    worker.host = worker.new_host()
    worker.boot()
    assert "kept" in worker.output("ls")


def test_a_stopped_node_of_an_earlier_run_is_discarded_with_its_files(worker):
    worker.output("true")
    folder = worker.home().parent.parent
    worker.host.close()
    worker.host = worker.new_host()
    worker.host.discard(NODE)
    assert not folder.exists()


def resumed(workers: EmulatedWorkers, state: EmulatorState) -> None:
    """Let a service begin on the workers' files in place of what ran there."""
    workers.host.close()
    workers.host = workers.new_host()
    Service(state, EmulatorClock(), random.Random(0), lambda _: workers.host).resume()


def test_files_of_workers_that_no_slice_has_are_removed_by_a_start(worker, caplog):
    """As where the state file was put aside; what a worker's programs wrote decides nothing."""
    worker.output("touch kept")
    folder = worker.home().parent.parent
    node = {"name": NODE, "state": "STOPPED"}
    known = {NODE: {"node": node, "workers": [asdict(record) for record in worker.records]}}
    (folder / "etc/node").write_text("damaged")
    resumed(worker, EmulatorState(nodes=known))
    assert (worker.home() / "kept").exists()
    resumed(worker, EmulatorState())
    assert not folder.exists()
    assert f"{folder} is removed: no slice has this worker" in caplog.text


class SlowEngine(PortableEngine):
    """Starts a worker when a test says so."""

    def __init__(self) -> None:
        super().__init__(inherited_environment(os.environ, Path.home()), base_interpreter())
        self.begun, self.may_start = threading.Event(), threading.Event()

    def start(self, worker: EmulatedWorker) -> WorkerSockets | None:
        self.begun.set()
        assert self.may_start.wait(60)
        return super().start(worker)


def test_what_takes_too_long_is_cancelled_and_can_be_asked_for_again(tmp_path):
    engine = SlowEngine()
    with emulated_workers(tmp_path, lambda _: engine, patience=0.5) as workers:
        workers.allocate()
        workers.boot(metadata={"startup-script": "exec setsid sleep 1000"})
        assert engine.begun.wait(60)
        with pytest.raises(TimeoutError, match=r"the workers did not answer in 0\.5 s"):
            workers.host.halt(NODE)
        engine.may_start.set()
        detached = int(workers.output("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"))
        workers.host.halt(NODE)
        assert not alive(detached)
        with pytest.raises(ConnectionRefusedError):
            connect(workers, timeout=60)


def refused(workers: EmulatedWorkers) -> bool:
    try:
        connect(workers, timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_worker_that_is_given_up_while_it_starts_listens_no_more(tmp_path):
    """Where it is to begin frozen, it listens before that is so."""
    with emulated_workers(tmp_path, patience=0.002) as workers:
        workers.allocate(16)  # enough that a busy machine does not start them in time
        workers.rules.worker_faults.add([{"fault": "frozen"}])
        with pytest.raises(TimeoutError):
            workers.boot()
        eventually(lambda: refused(workers))


def test_two_emulators_never_give_the_same_address(workers, tmp_path):
    (tmp_path / "other").mkdir()
    with emulated_workers(tmp_path / "other") as other:
        ours = {record.address for record in workers.allocate(40)}
        theirs = {record.address for record in other.allocate(40)}
    assert len(ours) == len(theirs) == 40
    assert not ours & theirs


def test_an_address_that_another_took_meanwhile_is_an_error_and_not_a_wrong_worker(workers):
    workers.allocate()
    workers.host.close()
    workers.host = workers.new_host()
    record = workers.records[0]
    with socket.create_server((record.address, record.port)):
        with pytest.raises(OSError, match="in use"):
            workers.boot()
        (moved,) = workers.host.move(NODE, [record])
        assert moved.address != record.address
        assert replace(moved, address=record.address, port=record.port) == record
        workers.records = [moved]
        workers.boot()
        with workers.client() as client:
            assert client.get_transport().is_authenticated()


def test_a_tunnel_leads_to_the_workers_of_its_network_and_comes_from_its_own_address(worker):
    with socket.create_server(("127.0.0.2", 0)) as other, worker.client() as client:
        worker.rules.near = ["127.0.0.2"]
        there = other.getsockname()
        client.get_transport().open_channel("direct-tcpip", there, ("", 0))
        connection, (source, _) = other.accept()
        connection.close()
        worker.rules.near = []
    assert source == worker.records[0].address


@pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: NOT checked by this run")
def test_tmux_is_each_worker_s_own_and_ends_with_it():
    # A socket's path has to be short, which that of a test's folder is not.
    with tempfile.TemporaryDirectory() as folder, emulated_workers(Path(folder)) as workers:
        in_tmux(workers)


def in_tmux(workers: EmulatedWorkers) -> None:
    workers.allocate(4)
    workers.boot("v3-32")
    for index in (0, 1):
        said = "hostname | sed s,.*-,, > $HOME/who; exec sleep 1000"
        workers.output(f"tmux new-session -d -s same '{said}' && tmux list-sessions", index=index)
        who = workers.home(index) / "who"
        eventually(lambda w=who: w.exists() and w.read_text().strip())
        assert who.read_text() == f"{index}\n"
    server = int(workers.output("tmux display-message -p '#{pid}'"))
    assert alive(server)
    workers.host.halt(NODE)
    eventually(lambda: not alive(server))

"""What a client meets at a worker that a user of the emulator has made ill."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import paramiko
import pytest
from support.emulated_workers import NODE, EmulatedWorkers
from support.processes import alive, eventually

from tpukit.emulator.core.api_errors import ApiError
from tpukit.emulator.faults.worker_faults import KINDS, WorkerFaults, parse_rule
from tpukit.text import quote

pytestmark = pytest.mark.process

PLACE = (NODE, 0)


def inflict(workers: EmulatedWorkers, fault: str, **rule: Any) -> None:
    """Put a rule in force as the control plane does."""
    workers.rules.worker_faults.add([{"fault": fault, **rule}])
    apply(workers)


def heal(workers: EmulatedWorkers) -> None:
    workers.rules.worker_faults.clear()
    apply(workers)


def apply(workers: EmulatedWorkers) -> None:
    if workers.rules.worker_faults.changed():
        workers.host.refresh()


def served(workers: EmulatedWorkers) -> int:
    return sum(rule["served"] for rule in workers.rules.worker_faults.documents())


def reach(workers: EmulatedWorkers, timeout: float = 0.5) -> socket.socket:
    record = workers.records[0]
    return socket.create_connection((record.address, record.port), timeout=timeout)


def first_bytes(workers: EmulatedWorkers, timeout: float = 0.5) -> bytes:
    with reach(workers, timeout) as connection:
        return connection.recv(4)


@contextlib.contextmanager
def speaking(workers: EmulatedWorkers) -> Iterator[subprocess.Popen[bytes]]:
    """A client on whose connection `tick` arrives ten times a second."""
    line = workers.words("while echo tick; do sleep 0.1; done")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"tick\n"
        try:
            yield process
        finally:
            process.kill()


def falls_silent(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the ticks end while the client still believes in its connection."""
    assert process.stdout
    descriptor = process.stdout.fileno()

    def quiet() -> bool:
        """Drain what has come; quiet is half a second in which nothing did."""
        while _read(descriptor):
            pass
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            if _read(descriptor):
                return False
        return True

    eventually(quiet)
    return process.poll() is None


def _read(descriptor: int) -> bytes:
    if not select.select([descriptor], [], [], 0.05)[0]:
        return b""
    return os.read(descriptor, 65536)


def test_a_dead_worker_drops_packets_and_comes_back_as_after_a_reboot(
    worker: EmulatedWorkers,
) -> None:
    pid = int(worker.output("sleep 1000 >/dev/null 2>&1 & echo $!"))
    with speaking(worker) as client:
        inflict(worker, "dead")
        with pytest.raises(TimeoutError):
            first_bytes(worker)
        assert falls_silent(client)
        assert served(worker) == 1
        heal(worker)
        assert client.wait(60) == 255
    eventually(lambda: not alive(pid))
    assert first_bytes(worker, 60) == b"SSH-"


def test_a_frozen_worker_accepts_answers_nothing_and_goes_on_afterwards(
    worker: EmulatedWorkers,
) -> None:
    with speaking(worker) as client:
        inflict(worker, "frozen")
        assert falls_silent(client)
        with pytest.raises(TimeoutError):
            first_bytes(worker)
        with reach(worker, 60) as waiting:
            heal(worker)
            assert waiting.recv(4) == b"SSH-"
        assert client.stdout
        again = client.stdout.fileno()
        eventually(lambda: b"tick" in _read(again))


def test_a_frozen_worker_counts_the_connections_that_met_it(worker: EmulatedWorkers) -> None:
    with speaking(worker):
        inflict(worker, "frozen")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                first_bytes(worker, 0.3)
        eventually(lambda: served(worker) == 3)


def test_a_refusing_worker_refuses_and_resets_and_listens_again(worker: EmulatedWorkers) -> None:
    with speaking(worker) as client:
        inflict(worker, "refusing")
        with pytest.raises(ConnectionRefusedError):
            reach(worker)
        assert client.wait(60) == 255
    heal(worker)
    assert first_bytes(worker, 60) == b"SSH-"


def test_a_fault_ends_by_itself_after_its_seconds(workers: EmulatedWorkers) -> None:
    now = [0.0]
    workers.rules.worker_faults = WorkerFaults(lambda: now[0])
    workers.allocate()
    workers.boot()
    inflict(workers, "refusing", seconds=30)
    now[0] = 29.0
    apply(workers)  # as the emulator's ticker does
    with pytest.raises(ConnectionRefusedError):
        reach(workers)
    now[0] = 30.0
    apply(workers)
    assert first_bytes(workers, 60) == b"SSH-"


def test_a_slow_worker_carries_so_many_bytes_a_second(worker: EmulatedWorkers) -> None:
    inflict(worker, "slow", rate=20_000)
    began = time.monotonic()
    done = worker.ssh("head -c 20000 /dev/zero")
    assert len(done.stdout) == 20_000
    assert time.monotonic() - began > 0.9
    assert served(worker) == 1


def test_a_line_is_cut_with_a_reset_after_so_many_bytes_and_as_often_as_asked(
    worker: EmulatedWorkers,
) -> None:
    inflict(worker, "cut", bytes=200_000, times=1)
    done = worker.ssh("head -c 3000000 /dev/zero")
    assert done.returncode == 255
    assert len(done.stdout) < 200_000
    assert served(worker) == 1
    data = worker.ssh("head -c 3000000 /dev/zero").stdout
    assert hashlib.sha256(data).digest() == hashlib.sha256(bytes(3_000_000)).digest()


def _read_all(connection: socket.socket) -> None:
    while connection.recv(10):
        pass


def test_a_cut_line_is_reset_and_not_closed(worker: EmulatedWorkers) -> None:
    inflict(worker, "cut", bytes=3)
    with reach(worker, 60) as connection, pytest.raises(ConnectionResetError):
        _read_all(connection)


def test_a_key_that_comes_late_is_refused_until_then(worker: EmulatedWorkers) -> None:
    inflict(worker, "late-key", times=1)
    assert b"Permission denied (publickey)" in worker.ssh("true").stderr
    assert worker.ssh("true").returncode == 0
    assert served(worker) == 1


def test_a_worker_with_a_swapped_host_key_is_not_taken_for_the_worker(
    worker: EmulatedWorkers,
) -> None:
    inflict(worker, "swapped-host-key")
    done = worker.ssh("echo said")
    assert (done.returncode, done.stdout) == (255, b"")
    with pytest.raises(paramiko.BadHostKeyException):
        worker.client()
    assert served(worker) == 2
    heal(worker)
    assert worker.output("echo said") == "said"


def test_a_new_node_on_a_reused_address_has_another_host_key(workers: EmulatedWorkers) -> None:
    workers.rules.worker_faults.add([{"fault": "reused-address"}])
    (first,) = workers.allocate()
    workers.boot()
    assert workers.output("hostname") == first.hostname
    options = workers.options
    workers.host.discard(NODE)
    (second,) = workers.allocate()
    workers.boot()
    assert (second.address, second.port) == (first.address, first.port)
    assert second.host_public_key != first.host_public_key
    assert workers.output("hostname") == second.hostname
    workers.options = options  # of somebody who remembers the first
    assert b"Host key verification failed" in workers.ssh("true").stderr
    assert served(workers) == 1


def test_without_the_fault_an_address_is_not_reused_at_once(workers: EmulatedWorkers) -> None:
    (first,) = workers.allocate()
    workers.boot()
    workers.host.discard(NODE)
    (second,) = workers.allocate()
    assert second.address != first.address or first.address == "127.0.0.1"


def test_apt_reports_that_the_lock_is_held_and_waits_as_long_as_it_is_asked_to(
    worker: EmulatedWorkers,
) -> None:
    inflict(worker, "apt-lock")
    done = worker.ssh("sudo apt-get install -y nothing-of-that-name")
    assert done.returncode == 100
    assert b"Could not get lock /var/lib/dpkg/lock-frontend. It is held by process" in done.stderr
    line = worker.words("sudo apt-get -o DPkg::Lock::Timeout=60 --version")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stderr
        assert b"Waiting for cache lock" in waiting.stderr.readline()
        heal(worker)
        # The real apt-get answers now, where the machine has one.
        assert waiting.wait(120) in (0, 127)
    assert b"lock" not in worker.ssh("apt-get --version").stderr


def test_a_full_disk_takes_no_byte_and_shows_what_was_on_it(worker: EmulatedWorkers) -> None:
    worker.output("echo before > kept")
    _needs_mounts()
    inflict(worker, "disk-full")
    done = worker.ssh("cat kept; echo more > new; echo $?; mktemp -d && head -c 9999 /dev/zero > a")
    assert done.stdout.split()[:2] == [b"before", b"1"]
    assert b"No space left on device" in done.stderr
    assert done.returncode != 0
    heal(worker)
    assert worker.output("cat kept; ls; ls $TMPDIR | wc -l").split() == ["before", "kept", "0"]


def test_a_full_disk_passes_words_and_statuses_on(worker: EmulatedWorkers) -> None:
    _needs_mounts()
    inflict(worker, "disk-full")
    assert worker.ssh("echo 'a  b' \"$USER\"; exit 7").stdout == b"a  b ada\n"
    assert worker.ssh("exit 7").returncode == 7
    assert served(worker) == 2


LOOK = (
    'echo "$TPUKIT_EMULATED_DEVICES $XLA_FLAGS $TPUKIT_LIES"; cd .tpukit/venvs/jax/lib/python3/*;'
    " ls | grep lying; exit 7"
)


def test_devices_lie_to_every_command_until_they_are_healed(worker: EmulatedWorkers) -> None:
    """What the lies do to JAX is held by the smoke test's mutants."""
    worker.output("mkdir -p .tpukit/venvs/jax/lib/python3/site-packages")
    count = "--xla_force_host_platform_device_count="
    assert worker.ssh(LOOK).stdout.split() == [b"8", f"{count}8".encode()]
    inflict(worker, "missing-device")
    inflict(worker, "wrong-device", device=3)
    done = worker.ssh(LOOK)
    assert done.returncode == 7
    lies = ["missing-device=0", "wrong-device=3", "tpukit-lying-devices.pth"]
    assert done.stdout.decode().split() == ["7", f"{count}7", *lies]
    # Each command puts it there in one step: a Python that starts meanwhile finds the whole file.
    number = "stat -c %i .tpukit/venvs/jax/lib/python3/site-packages/*lying*.pth"
    assert worker.output(number) != worker.output(number)
    program = "import os; print(os.environ['TPUKIT_LYING_DEVICES'])"
    hook = worker.output(f'cat "$(python3 -c {quote([program])})"')
    assert hook.startswith('"""Make JAX')
    heal(worker)
    assert worker.ssh(LOOK).stdout.split()[:2] == [b"8", f"{count}8".encode()]
    assert b"=" not in worker.ssh("echo $TPUKIT_LIES").stdout


def test_hostile_output_carries_escapes_on_both_streams_and_in_the_banner(
    worker: EmulatedWorkers,
) -> None:
    inflict(worker, "hostile-output")
    done = worker.ssh("echo fine; exit 3", options=("-o", "LogLevel=INFO"))
    assert done.returncode == 3
    assert done.stdout.endswith(b"fine\n")
    for stream in (done.stdout, done.stderr):
        assert b"\x1b]52;c;" in stream
        assert b"\x1b[2J" in stream
        assert "\u202e".encode() in stream
    with worker.client() as client:
        client.exec_command("true")
        banner = client.get_transport().get_banner()
    assert b"\x1b]0;owned\x07" in banner


def test_a_fault_strikes_the_worker_that_it_names_and_no_other(workers: EmulatedWorkers) -> None:
    workers.allocate(2)
    workers.boot("v4-16")
    inflict(workers, "late-key", node="n1", worker=1)
    assert workers.ssh("true", index=0).returncode == 0
    assert workers.ssh("true", index=1).returncode == 255


def test_a_fault_waits_for_nodes_that_are_not_there_yet(workers: EmulatedWorkers) -> None:
    inflict(workers, "refusing", node="n*")
    workers.allocate()
    workers.boot()
    with pytest.raises(ConnectionRefusedError):
        reach(workers)
    heal(workers)
    assert first_bytes(workers, 60) == b"SSH-"


def test_frozen_workers_can_be_halted(worker: EmulatedWorkers) -> None:
    pid = int(worker.output("sleep 1000 >/dev/null 2>&1 & echo $!"))
    inflict(worker, "frozen")
    worker.host.halt(NODE)
    eventually(lambda: not alive(pid))


@pytest.mark.parametrize(
    "document",
    [
        "dead",
        {},
        {"fault": "asleep"},
        {"fault": "dead", "unheard": 1},
        {"fault": "dead", "worker": "0"},
        {"fault": "dead", "worker": True},
        {"fault": "dead", "worker": -1},
        {"fault": "dead", "node": 5},
        {"fault": "dead", "seconds": -1},
        {"fault": "dead", "seconds": float("nan")},
        {"fault": "dead", "times": 0},
        {"fault": "slow", "rate": 0},
        {"fault": "cut", "bytes": "many"},
    ],
)
def test_a_rule_that_could_never_be_served_is_refused(document: Any) -> None:
    with pytest.raises(ApiError) as caught:
        parse_rule(document)
    assert caught.value.status.status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_rule_by_its_name_alone(kind: str) -> None:
    rules = WorkerFaults(lambda: 0.0)
    rules.add([{"fault": kind}])
    assert rules.take(PLACE, kind)
    assert rules.documents()[0]["served"] == 1


def test_the_time_of_a_rule_begins_anew_with_a_new_worker() -> None:
    now = [0.0]
    rules = WorkerFaults(lambda: now[0])
    rules.add([{"fault": "dead", "seconds": 10}])
    assert rules.find(PLACE, "dead")
    now[0] = 10.0
    assert not rules.find(PLACE, "dead")
    rules.restart(PLACE)
    assert rules.find(PLACE, "dead")


def test_rules_are_cleared_by_node_and_worker_as_they_were_given() -> None:
    rules = WorkerFaults(lambda: 0.0)
    rules.add([{"fault": "dead", "node": "a", "worker": i} for i in (0, 1)])
    rules.add([{"fault": "dead", "node": "b"}])
    rules.clear("a", 1)
    assert [(r["node"], r["worker"]) for r in rules.documents()] == [("a", 0), ("b", None)]
    rules.clear("b")
    rules.clear("a")
    assert rules.documents() == []


def _needs_mounts() -> None:
    """A full disk is a mount that only root, or who has a user namespace, can make."""
    own = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *own, "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no mount namespace here ({done.stderr.strip()}): disk-full is NOT checked")

"""Commands over SSH: OpenSSH and paramiko against real emulated workers."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import paramiko
import psutil
import pytest
from support.emulated_workers import USER, EmulatedWorkers, emulated_workers, possible_engines
from support.processes import eventually

pytestmark = pytest.mark.process


@pytest.fixture(params=possible_engines())
def workers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EmulatedWorkers]:
    with emulated_workers(tmp_path, request.param) as workers:
        yield workers


@pytest.mark.parametrize("status", [0, 1, 2, 37, 126, 127, 128, 200, 254, 255])
def test_the_exit_status_of_a_command_reaches_the_client(worker, status):
    assert worker.ssh(f"exit {status}").returncode == status


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "USR1"])
def test_a_command_that_a_signal_ended_is_reported_as_such(worker, name):
    """paramiko answers -1 for an exit signal, OpenSSH's client ends with 255."""
    with worker.client() as client:
        channel = client.get_transport().open_session()
        channel.exec_command(f"kill -{name} $$")
        assert channel.recv_exit_status() == -1
    assert worker.ssh(f"kill -{name} $$").returncode == 255


def test_standard_output_and_error_are_kept_apart(worker):
    done = worker.ssh("echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_standard_input_reaches_the_command_and_ends(worker):
    assert worker.ssh("cat; echo end", given=b"one\ntwo\n").stdout == b"one\ntwo\nend\n"


def test_a_command_that_leaves_its_input_unread_ends_all_the_same(worker):
    done = worker.ssh("head -c 3", given=b"abc" + bytes(3_000_000))
    assert (done.returncode, done.stdout) == (0, b"abc")


def test_five_megabytes_arrive_intact_in_both_directions(worker):
    data = bytes(range(256)) * (5 * 4096)
    done = worker.ssh("cat", given=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_the_tail_of_the_output_arrives_before_the_status(worker):
    """Ten clients at once, as the loss of tails shows under load."""
    line = worker.words("seq 1 100000; exit 3")
    running = [subprocess.Popen(line, stdout=subprocess.PIPE) for _ in range(10)]
    ends = [(process.communicate()[0][-7:], process.returncode) for process in running]
    assert ends == [(b"100000\n", 3)] * 10


@pytest.mark.slow
def test_a_large_output_is_not_kept_in_the_emulators_memory(worker):
    own = psutil.Process()
    before = own.memory_info().rss
    most = [before]
    process = subprocess.Popen(worker.words("head -c 150M /dev/zero"), stdout=subprocess.PIPE)
    received = 0
    while data := process.stdout.read(1 << 20):
        received += len(data)
        most.append(own.memory_info().rss)
    process.wait()
    assert received == 150 << 20
    assert max(most) - before < 48 << 20


def test_a_terminal_has_a_type_a_size_and_is_the_controlling_one(worker):
    with worker.client() as client:
        channel = client.get_transport().open_session()
        channel.get_pty("vt220", width=91, height=33)
        own = 'test "$(tty)" = "$SSH_TTY" && : </dev/tty && echo own'
        channel.exec_command(f"echo $TERM; stty size; {own}")
        text = channel.makefile().read().decode()
    assert text.splitlines() == ["vt220", "33 91", "own"]


def test_a_terminal_learns_its_new_size(worker):
    with worker.client() as client:
        channel = client.get_transport().open_session()
        channel.get_pty(width=80, height=24)
        channel.exec_command(
            "trap 'stty size; exit' WINCH; echo here; while :; do sleep 0.05; done"
        )
        output = channel.makefile()
        assert output.readline().strip() == "here"
        channel.resize_pty(width=100, height=40)
        assert output.readline().strip() == "40 100"


def test_control_c_on_a_terminal_interrupts_the_command(worker):
    with worker.client() as client:
        channel = client.get_transport().open_session()
        channel.get_pty()
        # Not one long sleep: a signal that comes before it begins would wait for its end.
        channel.exec_command(
            "trap 'echo interrupted; exit 9' INT; echo here; while :; do sleep 0.05; done"
        )
        output = channel.makefile()
        assert output.readline().strip() == "here"
        channel.sendall(b"\x03")
        assert output.read().decode().split()[-1].endswith("interrupted")
        assert channel.recv_exit_status() == 9


def test_an_interactive_shell_is_a_login_shell_with_the_workers_own_programs(worker):
    script = b"shopt -q login_shell && echo name=$(hostname)\nexit 5\n"
    done = worker.ssh(options=["-tt"], given=script)
    assert done.returncode == 5
    assert f"name={worker.records[0].hostname}" in done.stdout.decode()


def test_only_the_clients_language_passes_from_its_environment(worker, monkeypatch):
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("SECRET_OF_CLIENT", "x")
    options = ["-o", "SendEnv=LC_TIME", "-o", "SendEnv=SECRET_OF_CLIENT"]
    lines = worker.ssh("env", options=options).stdout.decode().splitlines()
    names = {line.split("=")[0] for line in lines}
    assert "LC_TIME" in names
    assert "SECRET_OF_CLIENT" not in names


def test_without_a_terminal_a_lost_client_closes_the_pipes_and_kills_nothing(worker):
    process = subprocess.Popen(
        worker.words("echo here; cat; touch after"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"here\n"
    process.kill()
    process.wait()
    eventually((worker.home() / "after").exists)


def test_with_a_terminal_a_lost_client_hangs_up(worker):
    command = "trap 'touch hung-up; exit' HUP; echo here; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        worker.words(command, options=["-tt"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline().strip() == b"here"
    process.kill()
    process.wait()
    eventually((worker.home() / "hung-up").exists)


def test_a_detached_job_outlives_its_connection(worker):
    pid = worker.output("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").strip()
    assert worker.output(f"kill -0 {pid} && echo alive").strip() == "alive"  # in its own system


def test_a_signal_of_the_client_reaches_the_whole_process_group(worker):
    """asyncssh is the client here: it alone sends signal requests."""
    record = worker.records[0]
    command = "trap 'exit 8' TERM; sleep 1000 & echo here; wait"

    async def interrupted() -> int | None:
        keys = {"client_keys": [str(worker.key)], "known_hosts": None}
        async with asyncssh.connect(record.address, record.port, username=USER, **keys) as client:
            process = await client.create_process(command)
            await process.stdout.readline()
            process.send_signal("TERM")
            return (await process.wait()).exit_status

    assert asyncio.run(asyncio.wait_for(interrupted(), 60)) == 8


def test_many_sessions_share_one_connection(worker):
    with worker.client() as client:
        answers: dict[int, str] = {}

        def ask(number: int) -> None:
            answers[number] = client.exec_command(f"echo {number}")[1].read().decode().strip()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert answers == {number: str(number) for number in range(8)}


def test_a_tunnel_reaches_the_workers_own_loopback(worker):
    line = worker.words(f"exec python3 -u -c '{_SERVER}'")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    port = int(process.stdout.readline())
    with worker.client() as client:
        channel = client.get_transport().open_channel("direct-tcpip", ("localhost", port), ("", 0))
        assert channel.recv(5) == b"hello"
    process.kill()
    process.wait()


def test_a_tunnel_to_anywhere_else_is_refused(worker):
    """127.0.0.2 is this machine by another name: a server that tried would reach the listener."""
    with socket.create_server(("127.0.0.2", 0)) as listener, worker.client() as client:
        port = listener.getsockname()[1]
        for host in ("127.0.0.2", "0.0.0.0", "192.0.2.1"):
            with pytest.raises(paramiko.ChannelException, match="Administratively prohibited"):
                client.get_transport().open_channel("direct-tcpip", (host, port), ("", 0))
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


_SERVER = (
    'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1]); '
    's.accept()[0].sendall(b"hello")'
)

"""Commands over a connection: status, streams, deadlines, lost and frozen peers, uploads."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clocks import HandClock
from support.ssh_fixtures import Within
from support.ssh_server import Server

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import DeadlinePassed, TransportFailed
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.fan_out import fan_out
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target
from tpukit.text import quote

pytestmark = pytest.mark.process


def test_the_exit_status_is_the_commands(connection: Connection, within: Within) -> None:
    for status in [0, 1, 7, 127, 255]:
        done = connection.run(f"exit {status}", deadline=within(60))
        assert done.status == status
        assert done.ok == (status == 0)


def test_output_that_comes_after_the_status_is_not_lost(
    connection: Connection, server: Server, within: Within, tmp_path: Path
) -> None:
    server.tells_early, mark, found = 1, tmp_path / "mark", []
    command = f"until [ -e {quote([str(mark)])} ]; do sleep 0.01; done; echo late"
    first = threading.Thread(
        target=lambda: found.append(connection.run(command, deadline=within(60)))
    )
    first.start()
    server.wait_until(lambda: bool(server.commands))
    connection.run("true", deadline=within(60))  # its answer comes after the other's status
    first.join(1.0)
    mark.touch()
    first.join(60)
    assert [done.stdout for done in found] == [b"late\n"]


def test_a_signal_is_128_and_its_number(connection: Connection, within: Within) -> None:
    for name in ["KILL", "TERM", "SEGV"]:
        done = connection.run(f"kill -{name} $$", deadline=within(60))
        assert done.status == 128 + signal.Signals[f"SIG{name}"]


def test_the_streams_are_kept_apart_and_handed_over_as_they_come(
    connection: Connection, within: Within
) -> None:
    seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def note(stream: str, chunk: bytes) -> None:
        seen[stream] += chunk

    command = "printf out; printf err >&2; printf more"
    done = connection.run(command, on_output=note, deadline=within(60))
    assert (done.stdout, done.stderr) == (b"outmore", b"err")
    assert seen == {"stdout": b"outmore", "stderr": b"err"}


def test_output_is_handed_over_before_the_command_ends(
    connection: Connection, within: Within, tmp_path: Path
) -> None:
    """The command waits for a file that only its own first line makes."""
    mark = tmp_path / "mark"
    command = f"echo ready; until [ -e {quote([str(mark)])} ]; do sleep 0.01; done; echo done"
    done = connection.run(command, on_output=lambda *_: mark.touch(), deadline=within(60))
    assert done.stdout == b"ready\ndone\n"


def test_hostile_output_is_bytes_in_the_result_and_harmless_as_text(
    connection: Connection, within: Within
) -> None:
    done = connection.run(r"printf '\033]0;x\007\377\r\nok\n'", deadline=within(60))
    assert done.stdout == b"\x1b]0;x\x07\xff\r\nok\n"
    assert done.text == "\\x1b]0;x\\x07\ufffd\nok\n"


def test_standard_input_arrives_and_ends(connection: Connection, within: Within) -> None:
    data = bytes(range(256)) * 4096
    done = connection.run("cat", stdin=data, deadline=within(60))
    assert done.stdout == data


def test_a_command_that_does_not_read_its_input_still_ends(
    connection: Connection, within: Within
) -> None:
    done = connection.run("exit 3", stdin=b"x" * (16 << 20), deadline=within(60))
    assert done.status == 3


def test_twenty_megabytes_of_output_cost_little_memory_and_keep_the_end(
    distant: tuple[subprocess.Popen[str], Target], connector: Connector, within: Within
) -> None:
    connection, seen = connector.connect(distant[1], within(60)), 0

    def count(_: str, chunk: bytes) -> None:
        nonlocal seen
        seen += len(chunk)

    tracemalloc.start()
    try:
        command = "head -c 20000000 /dev/zero; printf end"
        done = connection.run(command, on_output=count, deadline=within(300), keep=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == 20_000_003
    assert len(done.stdout) == 1 << 20
    assert done.stdout.endswith(b"\x00end")
    assert peak < 14 << 20, "the window is 8 MiB, the tail 1 MiB"


def test_of_each_stream_the_last_bytes_are_kept(connection: Connection, within: Within) -> None:
    command = "printf abcdef; printf uvwxyz >&2; sleep 0.2; printf gh"
    done = connection.run(command, deadline=within(60), keep=4)
    assert (done.stdout, done.stderr) == (b"efgh", b"wxyz")
    assert connection.run("printf abc", deadline=within(60), keep=4).stdout == b"abc"


def test_several_threads_share_one_connection(connection: Connection, within: Within) -> None:
    outcomes = fan_out(range(8), lambda n: connection.run(f"echo {n}", deadline=within(60)).text)
    assert [outcome.value for outcome in outcomes] == [f"{n}\n" for n in range(8)]


def test_a_connection_lost_during_a_command_is_not_an_exit_status(
    connection: Connection, server: Server, within: Within
) -> None:
    with pytest.raises(TransportFailed) as lost:
        connection.run(
            "echo go; sleep 1000", on_output=lambda *_: server.cut(), deadline=within(60)
        )
    assert lost.value.what == "lost demo worker 0 while a command ran"
    assert lost.value.reason == "the connection broke"
    assert "may have run" in lost.value.why
    assert not connection.alive


def test_a_lost_connection_never_repeats_the_command(
    connection: Connection, server: Server, within: Within
) -> None:
    server.loses = lambda number: True
    with pytest.raises(TransportFailed):
        connection.run("echo once >>count", deadline=within(60))
    assert server.commands == ["echo once >>count"]


def test_nothing_has_run_when_no_session_could_be_opened(
    connection: Connection, server: Server, within: Within
) -> None:
    connection.close()
    with pytest.raises(TransportFailed) as failed:
        connection.run("true", deadline=within(5))
    assert failed.value.why == "nothing has run"
    assert server.commands == []


def test_the_deadline_ends_the_wait_and_says_that_the_command_may_run_on(
    connection: Connection, within: Within
) -> None:
    """The command outlasts this test, and its first line brings the deadline."""
    clock = HandClock()
    with pytest.raises(DeadlinePassed) as passed:
        connection.run(
            "echo go; sleep 1000",
            on_output=lambda *_: clock.advance(300),
            deadline=Deadline.after(clock, 300),
        )
    assert "may still be running" in passed.value.why
    assert connection.run("echo on", deadline=within(60)).stdout == b"on\n"


def test_the_session_of_a_command_that_is_given_up_is_closed(
    connection: Connection, server: Server
) -> None:
    clock, over = HandClock(), threading.Event()

    def without_end() -> Iterator[bytes]:
        yield b"x"
        over.wait()

    with pytest.raises(DeadlinePassed):
        connection.run(
            "echo go; cat >input; mv input ended",
            stdin=without_end(),
            on_output=lambda *_: clock.advance(300),
            deadline=Deadline.after(clock, 300),
        )
    try:
        server.wait_until(lambda: (server.home / "ended").exists(), 20)
    finally:
        over.set()


def test_a_frozen_peer_is_noticed_and_every_waiter_is_told(
    distant: tuple[subprocess.Popen[str], Target], key: KeyPair, within: Within
) -> None:
    process, target = distant
    with Connector(key, SystemClock(), silence_seconds=1.5) as connector:
        connection = connector.connect(target, within(60))
        ready = threading.Barrier(4)

        def wait(_: int) -> float:
            try:
                connection.run(
                    "echo go; sleep 1000",
                    on_output=lambda *_: ready.wait(60),
                    deadline=within(300),
                )
            finally:
                ended.append(time.monotonic())
            return 0.0

        ended: list[float] = []
        outcomes: list[object] = []
        waiting = threading.Thread(target=lambda: outcomes.extend(fan_out(range(3), wait)))
        waiting.start()
        ready.wait(60)
        process.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        waiting.join(120)
    assert not waiting.is_alive()
    assert [outcome.error.reason for outcome in outcomes] == ["it was silent for 1.5 s"] * 3
    assert all(0.5 < end - frozen < 8.0 for end in ended)


def test_a_peer_that_freezes_while_it_is_sent_to_is_noticed(
    distant: tuple[subprocess.Popen[str], Target], key: KeyPair, within: Within
) -> None:
    process, target = distant
    with Connector(key, SystemClock(), silence_seconds=3.0) as connector:
        connection = connector.connect(target, within(60))
        with pytest.raises(TransportFailed) as lost:
            connection.run(
                "echo go; exec cat >/dev/null",
                stdin=b"x" * (64 << 20),
                on_output=lambda *_: process.send_signal(signal.SIGSTOP),
                deadline=within(300),
            )
    assert lost.value.reason == "it was silent for 3 s"


@pytest.mark.process
def test_a_long_silent_command_on_a_healthy_worker_is_left_alone(
    server: Server, key: KeyPair, within: Within
) -> None:
    with Connector(key, SystemClock(), silence_seconds=1.5) as connector:
        connection = connector.connect(server.target(), within(60))
        assert connection.run("sleep 4; exit 5", deadline=within(60)).status == 5


def test_closing_a_connection_to_a_frozen_peer_is_prompt(
    distant: tuple[subprocess.Popen[str], Target], connector: Connector, within: Within
) -> None:
    process, target = distant
    connection = connector.connect(target, within(60))
    process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    connection.close()
    assert time.monotonic() - started < 10, "silence is noticed after 12 s"


@pytest.mark.parametrize("path", ["plain", "a b/c'd/$(touch no)", "deep/er/-file", "-x"])
def test_an_upload_arrives_whole_under_its_very_name(
    connection: Connection, server: Server, path: str, within: Within
) -> None:
    data = bytes(range(256)) * 100
    connection.upload(data, path, deadline=within(60))
    assert (server.home / path).read_bytes() == data
    assert (server.home / path).stat().st_mode & 0o7777 == 0o600
    assert len(list((server.home / path).parent.iterdir())) == 1
    assert not (server.home / "no").exists()


def test_an_upload_that_is_cut_short_leaves_the_old_file(
    connection: Connection, server: Server, within: Within
) -> None:
    """To the receiving program a lost connection looks like the end of the file."""
    connection.upload(b"old", "file", deadline=within(60))
    server.on_command = server.cut
    with pytest.raises(TransportFailed):
        connection.upload(b"x" * (32 << 20), "file", deadline=within(60))
    server.wait_until(lambda: [path.name for path in server.home.iterdir()] == ["file"])
    assert (server.home / "file").read_bytes() == b"old"


def test_an_upload_that_cannot_be_written_says_why(
    connection: Connection, server: Server, within: Within
) -> None:
    (server.home / "taken").write_text("")
    with pytest.raises(TransportFailed, match="could not write taken/file") as failed:
        connection.upload(b"x", "taken/file", deadline=within(60))
    assert "taken" in failed.value.reason

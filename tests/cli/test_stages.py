"""What a long command shows of its stages: on a terminal, in a pipe, in its log."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from support.local_cloud import FakeClock

from cli.conftest import Local
from tpukit.cli.stages import HEARTBEAT_SECONDS, LogFile, ProvisionProgress, Stages, timed
from tpukit.console import Console
from tpukit.provision.worker_jobs import ProvisionEvent
from tpukit.ssh.client import Connection
from tpukit.ssh.worker import RemoteWorker


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Listener(io.StringIO):
    """A stream that tells when it gets a text with these words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words, self.heard = words, threading.Event()

    def write(self, text: str) -> int:
        if self.words in text:
            self.heard.set()
        return super().write(text)


def stages(clock: FakeClock, stream: io.StringIO, **given: object) -> Stages:
    flags = {name: given.pop(name) for name in ("quiet", "verbose") if name in given}
    console = Console(io.StringIO(), stream, environ={}, **flags)
    return Stages(console, clock, **given)


def test_off_a_terminal_each_line_has_its_time_and_silence_is_broken_every_30_seconds(
    clock: FakeClock,
) -> None:
    stream = io.StringIO()
    with stages(clock, stream, form=timed) as shown:
        shown.say("create", "CREATING")
        for _ in range(70):
            clock.now += 1.0
            shown.beat()
        shown.done("create", "created")
        clock.now += HEARTBEAT_SECONDS
        shown.beat()
    assert stream.getvalue().splitlines() == [
        "    0.0 s  create     CREATING",
        "   30.0 s  create     CREATING, for 0:30 so far",
        "   60.0 s  create     CREATING, for 1:00 so far",
        "   70.0 s  create     created",
    ]


def test_a_heartbeat_has_the_usual_time_and_the_cost_so_far(clock: FakeClock) -> None:
    stream = io.StringIO()
    with stages(clock, stream, expected={"create": 130.0, "smoke": 4.0}) as shown:
        shown.say("create", "CREATING")
        shown.say("smoke", "computing")
        shown.cost = lambda: "cost so far 0.42"
        clock.now += HEARTBEAT_SECONDS
        shown.beat()
    assert stream.getvalue().splitlines()[2:] == [
        "create: CREATING, for 0:30 so far, usually 2:10, cost so far 0.42",
        "smoke: computing, for 0:30 so far, cost so far 0.42",
    ]


def test_on_a_terminal_a_running_stage_shows_its_usual_time_and_the_end_does_not(
    clock: FakeClock,
) -> None:
    stream = Terminal()
    with stages(clock, stream, expected={"create": 130.0}) as shown:
        shown.say("create", "CREATING")
        shown.cost = lambda: "cost so far 0.42"
        clock.now += 31.0
        shown.progress("create", "CREATING")
        shown._console.repaint()
        shown.done("create", "created")
    text = plain(stream.getvalue())
    assert any(line.endswith("create CREATING 0:31, usually 2:10") for line in text)
    assert "cost so far 0.42" in text
    assert "✓ create created 0:31" in text


@pytest.mark.process
def test_off_a_terminal_silence_is_broken_again_and_again_while_nobody_says_anything(
    clock: FakeClock,
) -> None:
    stream = Listener("so far")
    with stages(clock, stream) as shown:
        shown.say("create", "CREATING")
        for _ in range(2):
            stream.heard.clear()
            clock.now += HEARTBEAT_SECONDS
            assert stream.heard.wait(10)


def test_two_slices_that_are_waited_for_are_told_apart(clock: FakeClock) -> None:
    stream = io.StringIO()
    with stages(clock, stream) as shown:
        shown.say("a", "DELETING")
        shown.say("b", "STOPPING")
        clock.now += HEARTBEAT_SECONDS
        shown.beat()
    assert stream.getvalue().splitlines() == [
        "a: DELETING",
        "b: STOPPING",
        "a: DELETING, for 0:30 so far",
        "b: STOPPING, for 0:30 so far",
    ]


def plain(text: str) -> list[str]:
    """Return the lines that stay on a terminal, without their looks."""
    without = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\r", "\n"))
    return [" ".join(line.split()) for line in without.splitlines() if line.strip()]


def test_on_a_terminal_a_stage_that_is_over_is_one_line_with_its_time(
    clock: FakeClock, tmp_path: Path
) -> None:
    stream = Terminal()
    with stages(clock, stream, log=tmp_path / "logs/demo.log", hint="Ctrl-C is safe") as shown:
        shown.say("create", "CREATING")
        shown.progress("firewall", "asking")
        clock.now += 31.0
        shown.done("create", "READY")
        shown.progress("firewall", "[bold]asked\x1b[2J", ["worker 3 jaxlib (81.5MiB)"])
    text = stream.getvalue()
    assert [line for line in plain(text) if line[0] in "✓✗"] == [
        "✓ create READY 0:31",
        "✓ firewall [bold]asked\\x1b[2J 0:31",
    ]
    assert "Ctrl-C is safe" in text
    # The end names the log whole, however long its path is; the painted line is cut.
    assert f"log: {tmp_path}/logs/demo.log" in plain(text)
    # The painted lines are gone, and the cursor is back.
    assert "\x1b[?25h" in text.rpartition("✓")[2]


def test_a_stage_that_is_over_is_painted_no_more_and_its_colour_is_its_own(
    clock: FakeClock,
) -> None:
    stream = Terminal()
    with stages(clock, stream, hint="Ctrl-C is safe") as shown:
        shown.say("create", "CREATING")
        shown.done("create", "READY")
    over = stream.getvalue().partition("✓ create")[2]
    assert "create" not in over
    assert "\x1b[2mCtrl-C is safe\x1b[0m" in over


def test_what_is_painted_moves_while_nobody_says_anything(clock: FakeClock) -> None:
    class Watched(Listener, Terminal):
        pass

    stream = Watched("0:05")
    with stages(clock, stream) as shown:
        shown.say("create", "CREATING")
        clock.now += 5.0
        assert stream.heard.wait(10)


def test_a_narrow_terminal_has_a_stage_a_line_and_sees_what_was_cut(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream, log = Terminal(), tmp_path / "demo.log"
    told = "opened: tcp:22 from 127.0.0.1/32"
    with stages(clock, stream, log=log) as shown:
        shown.done("firewall", told)
    line = next(line for line in stream.getvalue().splitlines() if "✓" in line)
    assert "✓ firewall    opened: tcp:22 from … 0:00\x1b" in line
    assert f"✓ firewall: {told}\n" in log.read_text()


def test_a_stage_that_fails_is_marked_and_the_log_is_named(
    clock: FakeClock, tmp_path: Path
) -> None:
    stream = Terminal()
    shown = stages(clock, stream, log=tmp_path / "x/a.log")
    shown.say("provision", "packages")
    shown.__exit__(KeyboardInterrupt)
    lines = plain(stream.getvalue())
    assert "✗ provision packages 0:00" in lines
    assert lines[-1] == f"log: {tmp_path}/x/a.log"


def test_quiet_shows_nothing_and_verbose_what_programs_say(clock: FakeClock) -> None:
    for flags, told in (({"quiet": True}, ""), ({}, ""), ({"verbose": True}, "Downloading")):
        stream = io.StringIO()
        with stages(clock, stream, **flags) as shown:
            shown.note("Downloading")
        assert stream.getvalue().strip() == told


def test_the_log_is_for_its_owner_alone_bounded_and_harmless(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "logs/demo.log")
    for _ in range(100):
        log.write("\x1b[2J" + "x" * 100_000)
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert 3_000_000 < log.path.stat().st_size <= 4 << 20
    assert b"\x1b" not in log.path.read_bytes()
    LogFile(log.path).write("anew")
    assert log.path.read_text() == "anew\n"
    (tmp_path / "file").touch()
    LogFile(tmp_path / "file/demo.log").write("where no file can be")


def test_twenty_logs_are_kept(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"{number}.log"
        path.touch()
        os.utime(path, (number, number))
    LogFile(tmp_path / "new.log").write("line")
    kept = {f"{number}.log" for number in range(10, 30)} | {"new.log"}
    assert {path.name for path in tmp_path.glob("*.log")} == kept


def not_connected() -> Connection:
    raise AssertionError


def test_provisioning_shows_how_many_workers_are_past_a_step_and_who_is_behind(
    clock: FakeClock,
) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    class Seen(Stages):
        def progress(self, stage: str, line: str, details: object = ()) -> None:
            seen.append((line, tuple(details)))  # type: ignore[call-overload]

    stream = io.StringIO()
    three = [RemoteWorker(index, not_connected, "demo") for index in range(3)]
    with Seen(Console(io.StringIO(), stream, environ={}), clock) as shown:
        event = ProvisionProgress(shown)
        for worker in three:
            event(ProvisionEvent(worker, "uv", "finished", "unchanged: uv 1"))
        event(ProvisionEvent(three[0], "packages", "started", "missing: jax"))
        event(ProvisionEvent(three[1], "packages", "finished", "changed: jax"))
        event(ProvisionEvent(three[2], "packages", "line", "Downloading jaxlib (81.5MiB)"))
    assert seen[-1] == (
        "packages 1/3 workers",
        ("worker 0 packages: missing: jax", "worker 2 packages: Downloading jaxlib (81.5MiB)"),
    )
    assert stream.getvalue().splitlines() == [
        "provision: worker 0: packages: missing: jax",
        "provision: worker 1: packages: changed: jax",
    ]
    del seen[:]
    pair = [
        RemoteWorker(0, not_connected, f"pair-{at}", slice_index=at, slices=2) for at in range(2)
    ]
    with Seen(Console(io.StringIO(), stream, environ={}), clock) as shown:
        event = ProvisionProgress(shown)
        for worker in pair:
            event(ProvisionEvent(worker, "uv", "started", "there is none"))
    assert seen[-1] == (
        "uv 0/2 workers",
        ("pair-0 worker 0 uv: there is none", "pair-1 worker 0 uv: there is none"),
    )
    assert stream.getvalue().splitlines()[2:] == [
        "provision: pair-0 worker 0: uv: there is none",
    ]


def on_a_terminal(local: Local, *words: str, interrupt: bool = False) -> tuple[int, str, str]:
    """Run a command whose narration goes to a terminal; return its status, stdout and narration.

    The interrupt comes once the first stage is painted.
    """
    master, slave = pty.openpty()
    told = b""
    with subprocess.Popen(
        local.words(*words),
        env={**local.environment, "TERM": "xterm", "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
    ) as process:
        os.close(slave)
        try:
            while data := os.read(master, 65536):
                told += data
                if interrupt and b"CREATING" in told:
                    process.send_signal(signal.SIGINT)
                    interrupt = False
        except OSError:  # EIO: nobody has the other end any more
            pass
        assert process.stdout
        out = process.stdout.read().decode()
    os.close(master)
    return process.returncode, out, told.decode()


@pytest.mark.process
def test_create_on_a_terminal_paints_below_and_keeps_data_on_stdout(local: Local) -> None:
    status, out, told = on_a_terminal(local, "create", "v2-8", "painted")
    assert (status, out) == (0, "painted\n")
    assert any(re.fullmatch(r"✓ painted READY 0:\d\d", line) for line in plain(told))
    status, out, told = on_a_terminal(local, "delete", "painted", "--yes")
    assert (status, out) == (0, "painted\n")
    assert "Traceback" not in told


@pytest.mark.process
def test_ctrl_c_on_a_terminal_gives_the_cursor_back_and_names_what_exists(local: Local) -> None:
    assert local.run("emulator", "clock", "speed", "0.001").status == 0
    try:
        status, out, told = on_a_terminal(local, "create", "v2-8", "stopped", interrupt=True)
    finally:
        local.run("emulator", "clock", "speed", "1")
    assert (status, out) == (130, "")
    assert "Traceback" not in told
    assert told.rindex("\x1b[?25h") > told.rindex("\x1b[?25l")
    lines = plain(told)
    assert any(line.startswith("✗ stopped") for line in lines)
    assert any(line.startswith("exists: slice stopped") for line in lines)
    local.run("delete", "stopped", "--yes")

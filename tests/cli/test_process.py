"""What a command makes of the process that it was given: signals, and open files."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from support.local_cloud import bare_environment

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import Invocation, verb
from tpukit.console import View

#: Runs a command line in its own process, then says what it found there.
PROGRAM = """
import os, resource, signal, sys
{before}
from tpukit.cli.main import status
status(["types", "v3-8"])
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, file=sys.stderr)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], file=sys.stderr)
"""


def after(tmp_path: Path, before: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        env=bare_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stderr.split()


@pytest.mark.parametrize(("given", "kept"), [("SIG_IGN", "True"), ("SIG_DFL", "False")])
def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path, given: str, kept: str) -> None:
    """As nohup leaves it."""
    before = f"signal.signal(signal.SIGHUP, signal.{given})"
    assert after(tmp_path, before)[0] == kept


def test_more_files_may_be_open_than_macos_allows_by_itself(tmp_path: Path) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    before = f"resource.setrlimit(resource.RLIMIT_NOFILE, (256, {allowed}))"
    assert int(after(tmp_path, before)[1]) == min(8192, allowed)


#: Is sent Ctrl-C after its last line, while Python ends: first it calls what was registered, then
#: it puts the signals back as they were, then it removes all objects.
ENDING = """
import atexit, os
class Object:
    def __del__(self, kill=os.kill, own=os.getpid()):
        kill(own, {number})
kept = Object()
atexit.register(os.kill, os.getpid(), {number})
from tpukit.cli.main import main
main(["--version"])
"""


def test_ctrl_c_while_python_ends_changes_neither_the_status_nor_the_output(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING.format(number=int(signal.SIGINT))],
        env=bare_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


class PressedAgain(io.TextIOWrapper):
    """A stream that sends Ctrl-C when it is flushed for the first time."""

    pressed = False

    def flush(self) -> None:
        super().flush()
        before, self.pressed = self.pressed, True
        if not before:
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_again_does_not_change_how_the_first_one_ended_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def left(toolkit: Toolkit) -> View:
        return View({}, rows=[["left"]], status=130)

    app = typer.Typer()
    app.command()(verb(left))
    stream = PressedAgain(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stream)
    command = typer.main.get_command(app)
    assert command.main([], standalone_mode=False, obj=Invocation()) == 130
    assert stream.pressed


#: Waits in its main thread, which does not get the signal: the system gives it to the other one.
WAITING = """
import queue, signal, sys, threading
from tpukit.cli.signals import lose_none
lose_none()
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
try:
    print("waiting", flush=True)
    queue.SimpleQueue().get(timeout=60)
except KeyboardInterrupt:
    print("interrupted")
"""

#: Is sent a signal while it finalises something, where Python ignores what a handler raises. What
#: then tells of it lets the other threads go first, so that what they do at once meets it there.
FINALISING = """
import os, queue, signal, sys, time
from tpukit.cli.signals import end_at_signals, lose_none
end_at_signals()
lose_none()

class Finalised:
    def __del__(self):
        signal.raise_signal({number})
        print("not reached")

def others_first(frame, event, function):
    if event == "c_return" and function is os.write:
        for _ in range(1000):
            time.sleep(0)

sys.setprofile(others_first)
try:
    Finalised()
    queue.SimpleQueue().get(timeout=60)
except KeyboardInterrupt as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("start", ["module", "command"])
def test_ctrl_c_during_the_imports_ends_the_command_quietly(tmp_path: Path, start: str) -> None:
    """A library that takes long to load stands in for all of them."""
    slow = "import time; print('loading', flush=True); time.sleep(60)"
    (tmp_path / "typer.py").write_text(slow)
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    module, _, function = tomllib.loads(pyproject.read_text())["project"]["scripts"][
        "tpukit"
    ].partition(":")
    line = ["-c", f"from {module} import {function}; {function}()"]
    with subprocess.Popen(
        [sys.executable, *(line if start == "command" else ["-m", "tpukit"]), "types"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


def test_a_signal_ends_a_wait_whichever_thread_it_was_given_to() -> None:
    words = [sys.executable, "-c", WAITING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "interrupted\n"


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "TerminationSignal")],
)
def test_a_signal_that_comes_while_something_is_finalised_is_not_lost(
    number: signal.Signals, raised: str
) -> None:
    words = [sys.executable, "-c", FINALISING.format(number=number.value)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == (f"{raised}\n", "")


@pytest.mark.process
@pytest.mark.parametrize(("line", "status"), [("--help >&-", 0), ("types v3-8 >&-", 0)])
def test_closed_streams_are_no_defect(tmp_path: Path, line: str, status: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"{sys.executable}" -m tpukit {line}'],
        env=bare_environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert "defect" not in done.stderr

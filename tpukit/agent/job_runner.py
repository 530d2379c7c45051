"""The runner of a job: the process that leads it, writes its log, and notes its exit status.

It opens no file of the agent while it runs, because an update may remove them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
from typing import Any

from tpukit.agent.job_log import PIECE, Log
from tpukit.agent.main import Request
from tpukit.agent.run_records import RunRecord, save

# Importing pkgutil for this would make each start of the agent take a tenth longer.
_PART = f"{os.path.dirname(__file__)}/scope.sh"
_ENCLOSE = __spec__.loader.get_data(_PART).decode() + 'enclose "$@"'  # type: ignore[union-attr]


def lead(run: RunRecord, request: Request, log: Log) -> None:
    """Run the command, write its log and status; stay while other processes write to the log."""
    enclose(run)
    output, ours = os.pipe()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A signal to the session reaches this process too, but the command leads another group. Signals
    # that come before the command starts are passed on later.
    early: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: early.append(number))
    command = started(run.folder, request["environment"], ours)
    ended = False

    def pass_on(number: int, frame: Any) -> None:
        if command.poll() is None:
            with contextlib.suppress(OSError):  # the command has just ended, or runs as root
                os.killpg(command.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    for caught in early:
        pass_on(caught, None)
    while True:
        ready, _, _ = select.select([output, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
        if not ended and command.poll() is not None:
            ended = True
            # Read the command's last bytes from the pipe; output of other processes can wait.
            left = fcntl.ioctl(output, termios.FIONREAD, bytes(4))
            log.write(os.read(output, int.from_bytes(left, sys.byteorder)))
            if not goes_down():
                code = command.returncode
                run.leave_status(code if code >= 0 else 128 - code)
            os.close(ours)
        elif output in ready:
            data = os.read(output, PIECE)
            if not data:
                break
            log.write(data)


def enclose(run: RunRecord) -> None:
    """Move this process into a separate control group by systemd, if possible."""
    words = ["sh", "-c", _ENCLOSE, "sh", str(run.leader), str(run.born)]
    if subprocess.run(words, check=False).returncode == 0:
        save(f"tpukit-{run.leader}-{run.born}.scope\n", run.folder, "scope")


def started(folder: str, lines: str, output: int) -> subprocess.Popen[bytes]:
    """Start a job's command with sh in a new process group, after lines that may contain secrets.

    sh reads the lines from a pipe, so they are in no file and on no command line.
    """
    process = subprocess.Popen(
        ["sh", "-s", os.path.join(folder, "command")],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, "TPUKIT_JOB": folder},
        preexec_fn=os.setpgrp,
    )
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(f'{lines}\nexec /bin/sh "$1" </dev/null\n'.encode())
    return process


def goes_down() -> bool:
    """Return True if the worker shuts down; then the exit status of commands is meaningless.

    systemd reports this before it ends any process: systemctl(1), is-system-running. Root reaches
    systemd itself, others only through D-Bus, which may end before the command does. Without an
    answer of systemd, return False.
    """
    asked = ["systemctl", "is-system-running"]
    return any("stopping" in _words(line) for line in (["sudo", "-n", *asked], asked))


def _words(line: list[str]) -> list[str]:
    """Return the words that a program prints, if it can run and ends within 20 s.

    It ignores TERM: systemd ends all processes of a control group, also those that start meanwhile.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
            timeout=20,
            check=False,
        )
        return done.stdout.decode("utf-8", "replace").split()
    return []

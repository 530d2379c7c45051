"""The runner of a job: the process that leads it, writes its log, and notes how it ended.

It needs no file of the agent any more once it runs: an update removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pkgutil
import select
import signal
import subprocess
import sys
import termios
from typing import Any

from tpukit.agent.job_log import PIECE, Log
from tpukit.agent.main import Request
from tpukit.agent.run_records import RunRecord, save

_ENCLOSE = (pkgutil.get_data("tpukit.agent", "scope.sh") or b"").decode() + 'enclose "$@"'


def lead(run: RunRecord, request: Request, log: Log) -> None:
    """Run the command, write its log, then its status; stay while anything else writes to it."""
    enclose(run)
    output, ours = os.pipe()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # TERM to the session comes here too; the command leads a group of its own. Until it is there,
    # what comes is kept for it.
    early: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: early.append(number))
    command = started(run.folder, request["environment"], ours)
    ended = False

    def pass_on(number: int, frame: Any) -> None:
        if command.poll() is None:
            with contextlib.suppress(OSError):  # it has just gone, or is root's
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
            # What the command has left in the pipe; what others go on writing can wait.
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
    """Have systemd put this process into a control group of its own, if it can."""
    words = ["sh", "-c", _ENCLOSE, "sh", str(run.leader), str(run.born)]
    if subprocess.run(words, check=False).returncode == 0:
        save(f"tpukit-{run.leader}-{run.born}.scope\n", run.folder, "scope")


def started(folder: str, lines: str, output: int) -> subprocess.Popen[bytes]:
    """Let sh run a job's command in a process group of its own, after lines that may hold secrets.

    It reads those from a pipe: they are in no file, and on no command line.
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
    """Return True if the worker goes down, so that how its commands end says nothing of them.

    systemd says so from when that is asked for, before it ends anything: systemctl(1),
    is-system-running. If there is no systemd, or it does not answer, nobody knows.
    """
    answer = os.popen("timeout 5 systemctl is-system-running 2>/dev/null")
    return answer.read().strip() == "stopping"

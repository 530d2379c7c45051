"""`tpukit` as a process of its own that need not load its modules first: half a second of CPU.

A server that has loaded the client, and started nothing, forks: warm_tpukit_server.py. The child is
given the command's words, variables, folder and files, and runs `python -m tpukit` to its end. What
a start loads, and how long that takes, is not to be seen so: tests/test_house.py and
`scripts/bench startup` are for that.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from support import fork_client, fork_server, fork_servers

#: As the installed script does, -P leaves the working directory out of the imports.
TPUKIT = (sys.executable, "-P", "-m", "tpukit")
#: What Python, libc and coverage read of the environment as they start.
_READ_AT_START = ("PYTHON", "COVERAGE", "LC_", "LANG", "LD_", "TZ")
_SERVER = Path(__file__).with_name("warm_tpukit_server.py")


def run(
    words: Sequence[str], *, timeout: float = 300, stdin: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `tpukit` with these words to its end, as subprocess.run does; return what it printed."""
    pipe = subprocess.PIPE
    with WarmTpukit(words, stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class WarmTpukit(subprocess.Popen[str]):
    """A Popen of `tpukit` with these words: a fork of the server, or a Python of its own.

    It has that where more is asked for than variables, a folder, files and a session.
    """

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        self._caller: socket.socket | None = None
        super().__init__([*TPUKIT, *words], text=True, **options)

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        """Start the child with what Popen has made ready, in the order of Python 3.11 to 3.14."""
        words, _, before, _, descriptors, cwd, environment = given[:7]
        pipes, session = given[10:16], given[21]
        variables = dict(os.environ if environment is None else environment)
        own = "session" if session else ""
        request = [words[len(TPUKIT) :], variables, str(cwd or Path.cwd()), own]
        message = json.dumps(request, default=os.fspath).encode()
        if before or descriptors or len(message) > fork_server.LARGEST // 2:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        files = [
            own if own != -1 else number for number, own in enumerate((pipes[0], *pipes[3::2]))
        ]
        self._caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._caller.connect(str(_address(read_at_start(variables))))
        socket.send_fds(self._caller, [message], files)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = int(self._caller.recv(fork_server.NUMBER))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._caller is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if not select.select([self._caller], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        status = int(self._caller.recv(fork_server.NUMBER))
        self._caller.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **named: Any) -> int | None:
        if self._caller is None:
            return super()._internal_poll(_deadstate, **named)  # type: ignore[misc,no-any-return]
        if self._caller.fileno() < 0 and self.returncode is None:
            self.returncode = _deadstate  # nobody has read how it ended, and nobody can
        # While another thread waits, nothing is known yet; it holds the lock.
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def read_at_start(variables: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what a server has to be started with to become a command with these variables."""
    return tuple(sorted((k, v) for k, v in variables.items() if k.startswith(_READ_AT_START)))


def script(variables: Mapping[str, str]) -> str:
    """Return a program for sh that is `tpukit`, a fork where its variables are as these here."""
    at_start = read_at_start(variables)
    client = [sys.executable, "-IS", fork_client.__file__, str(_address(at_start))]
    checked = [json.dumps(_READ_AT_START), json.dumps(dict(at_start)), sys.executable]
    return f'#!/bin/sh\nexec {shlex.join([*client, *checked])} "$@"\n'


@cache
def _address(at_start: tuple[tuple[str, str], ...]) -> Path:
    name = hashlib.sha256(json.dumps(at_start).encode()).hexdigest()[:12]
    environment = {"PATH": os.defpath, **dict(at_start)}

    def line(*descriptors: int) -> tuple[list[str | Path], Mapping[str, str]]:
        return [sys.executable, _SERVER, *map(str, descriptors)], environment

    return fork_servers.address(f"tpukit-{name}", line)

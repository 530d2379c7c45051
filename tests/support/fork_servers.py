"""The servers that become commands in forks: one of a kind for all processes of a run of tests."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

#: Names the folder that the processes of a run share.
_VARIABLE = "TPUKIT_TESTS_SERVERS"
#: Commands that wait for a server while it loads.
_BACKLOG = 64

#: Returns the line that starts a server, of the numbers of what it listens on and of its lock; and
#: its variables.
Line = Callable[[int, int], tuple[list[str | Path], Mapping[str, str]]]


@contextlib.contextmanager
def fork_servers() -> Iterator[None]:
    """Let this process and those that it starts have servers; end them, and wait for their end."""
    with tempfile.TemporaryDirectory(prefix="tpukit-servers-") as made:
        alive = Path(made, "alive")
        os.mkfifo(alive)
        held = os.open(alive, os.O_RDWR)  # a server's stdin ends with this process at the latest
        os.environ[_VARIABLE] = made
        try:
            yield
        finally:
            del os.environ[_VARIABLE]
            os.close(held)
            for path in Path(made).glob("*.runs"):
                with path.open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                sys.stderr.write(path.with_suffix(".log").read_text())


def folder() -> Path:
    """Return the folder that the processes of this run share; a program of its own makes one."""
    if _VARIABLE not in os.environ:
        stack = contextlib.ExitStack()
        stack.enter_context(fork_servers())
        atexit.register(stack.close)
    return Path(os.environ[_VARIABLE])


@cache
def address(name: str, line: Line) -> Path:
    """Return the socket of a server; the first process that asks starts it."""
    shared = folder()
    path = shared / f"{name}.socket"
    with (shared / f"{name}.starts").open("w") as lock, contextlib.ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        runs = stack.enter_context((shared / f"{name}.runs").open("w"))
        fcntl.flock(runs, fcntl.LOCK_SH)  # the server has it, too, to its end
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(str(path))
        listener.listen(_BACKLOG)
        words, variables = line(listener.fileno(), runs.fileno())
        subprocess.Popen(
            words,
            env=variables,
            stdin=stack.enter_context((shared / "alive").open()),
            stdout=subprocess.DEVNULL,
            # Who waits for the end of what its first caller prints does not wait for the server.
            stderr=stack.enter_context((shared / f"{name}.log").open("w")),
            pass_fds=[listener.fileno(), runs.fileno()],
            start_new_session=True,  # Ctrl-C at the tests is not for it
        )
    return path

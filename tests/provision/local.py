"""A worker that is a private home folder on this machine: real shells, no network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import DeadlinePassed, TransportFailed
from tpukit.remote.values import Completed
from tpukit.remote.worker import RemoteWorker

_GLANCE = 0.1


class LocalWorker:
    """One home folder with its environment; counts the commands that it was given."""

    def __init__(self, home: Path, index: int = 0, environment: Mapping[str, str] = {}) -> None:
        self.home = home
        self.index = index
        self.environment = {**_environment(home), **environment}
        self.commands: list[str] = []

    def remote(self) -> RemoteWorker:
        return RemoteWorker(self.index, lambda: LocalConnection(self))


class LocalConnection:
    """What `tpukit.remote.ssh.Connection` is, over `/bin/sh` in the worker's home folder."""

    def __init__(self, worker: LocalWorker) -> None:
        self.worker = worker
        self.label = f"local worker {worker.index}"
        self.alive = True
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self, command, *, stdin=b"", on_output=None, deadline, keep=4 << 20) -> Completed:
        self.worker.commands.append(command)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.worker.home,
            env=self.worker.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with self._lock:
            self._running.append(process)
        try:
            stdout, stderr = _communicated(process, stdin, deadline)
        except subprocess.TimeoutExpired:
            _end(process)
            raise DeadlinePassed(f"a command on {self.label} did not end in time") from None
        finally:
            # What a command has left behind goes on: a job that it started is not ended with it.
            with self._lock:
                self._running.remove(process)
        if not self.alive:
            raise TransportFailed(f"lost {self.label} while a command ran")
        status = process.returncode
        return Completed(status if status >= 0 else 128 - status, stdout[-keep:], stderr[-keep:])

    def upload(self, data, path, mode=0o600, *, deadline=None) -> None:
        target = self.worker.home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

    def close(self) -> None:
        self.alive = False
        with self._lock:
            for process in self._running:
                _end(process)

    def __enter__(self):
        return self

    def __exit__(self, *raised) -> None:
        self.close()


class HastyClock(SystemClock):
    """The machine's clock, many times as fast, for what gives up after minutes."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def monotonic(self) -> float:
        return super().monotonic() * self.speed

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / self.speed)


def seconds(count: float, clock: SystemClock | None = None) -> Deadline:
    return Deadline.after(clock or SystemClock(), count)


def _communicated(
    process: subprocess.Popen[bytes], stdin: bytes, deadline: Deadline
) -> tuple[bytes, bytes]:
    """Look at the deadline now and then: its clock need not be the machine's."""
    given: bytes | None = stdin
    while True:
        try:
            return process.communicate(given, timeout=_GLANCE)
        except subprocess.TimeoutExpired:
            if deadline.passed():
                raise
            given = None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(home: Path) -> dict[str, str]:
    """Return this process's environment with another home, but the package caches of this one."""
    caches = Path.home() / ".cache"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TPUKIT_")}
    python = Path(sys.executable).resolve().parent
    return {
        "UV_CACHE_DIR": str(caches / "uv"),
        "PIP_CACHE_DIR": str(caches / "pip"),
        **own,
        "HOME": str(home),
        "PATH": f"{python}:/usr/bin:/bin",
    }

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
from tpukit.ssh.target import Completed
from tpukit.ssh.worker import RemoteWorker

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
    """What a `Connection` is, over `/bin/sh` in the worker's home folder."""

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
        streams = _Streams(process, stdin, on_output)
        try:
            streams.wait(deadline)
        except DeadlinePassed:
            _end(process)
            raise DeadlinePassed(f"a command on {self.label} did not end in time") from None
        finally:
            # What a command has left behind goes on: a job that it started is not ended with it.
            with self._lock:
                self._running.remove(process)
        if not self.alive:
            raise TransportFailed(f"lost {self.label} while a command ran")
        status = process.returncode
        stdout, stderr = streams.stdout[-keep:], streams.stderr[-keep:]
        return Completed(status if status >= 0 else 128 - status, bytes(stdout), bytes(stderr))

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


class _Streams:
    """What goes into a process and what comes out of it, each in a thread of its own."""

    def __init__(self, process, stdin, on_output) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self._process = process
        self._on_output = on_output or (lambda stream, chunk: None)
        pieces = [stdin] if isinstance(stdin, bytes) else stdin
        self._readers = [
            self._start(self._read, "stdout", process.stdout, self.stdout),
            self._start(self._read, "stderr", process.stderr, self.stderr),
        ]
        self._start(self._write, pieces)

    def _start(self, work, *given) -> threading.Thread:
        thread = threading.Thread(target=work, args=given, daemon=True)
        thread.start()
        return thread

    def wait(self, deadline: Deadline) -> None:
        """Wait for the end of the output; look at the deadline now and then: its clock may be any.

        Raises:
            DeadlinePassed: with the process still there.
        """
        for thread in self._readers:
            while thread.is_alive():
                thread.join(_GLANCE)
                if thread.is_alive():
                    deadline.check("the command still runs")
        self._process.wait()

    def _read(self, name: str, pipe, into: bytearray) -> None:
        while chunk := os.read(pipe.fileno(), 1 << 16):
            into += chunk
            self._on_output(name, chunk)
        pipe.close()

    def _write(self, pieces) -> None:
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            for piece in pieces:
                pipe.write(piece)
                pipe.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(home: Path) -> dict[str, str]:
    """Return this process's environment with another home, but the package caches of this one."""
    caches = Path.home() / ".cache"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TPUKIT_")}
    python = Path(sys.executable).resolve().parent
    # On a merged system /bin is /usr/bin: every Python there would be looked at twice.
    system = "/usr/bin" if Path("/bin").is_symlink() else "/usr/bin:/bin"
    return {
        "UV_CACHE_DIR": str(caches / "uv"),
        "PIP_CACHE_DIR": str(caches / "pip"),
        **own,
        "HOME": str(home),
        "PATH": f"{python}:{system}",
    }

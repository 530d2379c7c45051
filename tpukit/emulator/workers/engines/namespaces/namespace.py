"""A worker's namespaces: the process that holds them, and its network."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpukit.emulator.workers import processes
from tpukit.emulator.workers.engines.engine import EmulatedWorker
from tpukit.emulator.workers.engines.namespaces.network import NetworkNamespace
from tpukit.errors import TpukitError
from tpukit.text import one_line

_SECONDS = 30.0  #: how long the first process may print nothing
_MOST = 4096
_READY = re.compile(rb"^ready ([1-9][0-9]*)\n", re.MULTILINE)
#: --kill-child: the end of `unshare` kills the first process, and so all others.
_UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
_ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid")


@dataclass(frozen=True)
class WorkerNamespaces:
    """One worker's namespaces, which live as long as its first process."""

    network: NetworkNamespace
    holder: subprocess.Popen[bytes]
    first: int  #: the first process's number on this machine
    life: int  #: a pipe that ends when the emulator ends

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.first}/root")

    @property
    def alive(self) -> bool:
        return self.holder.poll() is None

    def end(self) -> None:
        """Kill all processes inside and wait for them; mounts and interfaces end with them."""
        os.close(self.life)
        if self.alive:  # otherwise another process may have the number by now
            # When the first process has been reaped, all others are gone too.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.first, signal.SIGKILL)
        self.holder.wait()
        self.network.close()


def entering(process: int) -> tuple[str, ...]:
    """Return the words that start a command in a process's namespaces, as a session's leader."""
    return ("nsenter", "--target", str(process), *_ENTER, "--", "setsid")


def make_namespaces(
    worker: EmulatedWorker, network: NetworkNamespace, program: str, *arguments: str
) -> WorkerNamespaces:
    """Start a program of the worker's `bin` as the first process in new namespaces.

    Raises `TpukitError` if the system does not allow it.
    """
    words = [*_UNSHARE, "--", "/bin/sh", str(worker.folder / "bin" / program)]
    words += [worker.record.hostname, *arguments]
    theirs, life = os.pipe()
    try:
        holder = network.inside(lambda: _started(words, worker, theirs))
    finally:
        os.close(theirs)
    output = _output(holder)
    ready = _READY.search(output)
    if ready is None:
        os.close(life)
        holder.kill()
        holder.wait()
        raise TpukitError(
            "a worker's namespaces cannot be made", why=one_line(output.decode(errors="replace"))
        )
    return WorkerNamespaces(network, holder, int(ready[1]), life)


def _started(words: Sequence[str], worker: EmulatedWorker, life: int) -> subprocess.Popen[bytes]:
    environment = {"PATH": f"{os.defpath}:/usr/sbin:/sbin", processes.MARKER: worker.marker}
    return subprocess.Popen(
        words,
        cwd=worker.folder,
        env=environment,
        stdin=life,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _output(holder: subprocess.Popen[bytes]) -> bytes:
    """Return the first process's output until it is ready, ends or is silent for too long."""
    assert holder.stdout
    output = b""
    with holder.stdout:
        while not _READY.search(output):
            waited = select.select([holder.stdout], [], [], _SECONDS)[0]
            read = os.read(holder.stdout.fileno(), _MOST) if waited else b""
            if not read:
                break
            output += read
    return output

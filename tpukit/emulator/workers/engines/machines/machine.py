"""One machine: a system that boots in its own namespaces."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tpukit.emulator.workers.engines.engine import EmulatedWorker
from tpukit.emulator.workers.engines.machines.control_groups import make_groups, remove_groups
from tpukit.emulator.workers.engines.namespaces.namespace import (
    WorkerNamespaces,
    entering,
    make_namespaces,
)
from tpukit.emulator.workers.engines.namespaces.network import NetworkNamespace
from tpukit.emulator.workers.engines.namespaces.networked_engine import connect
from tpukit.errors import TpukitError
from tpukit.text import one_line

_BOOT_SECONDS = 120.0
_POLL_SECONDS = 0.1
_SECONDS = 60.0
_LAST_LINES = 5
#: systemd(1), "Signals": power the machine off.
_POWER_OFF = signal.SIGRTMIN + 4


@dataclass
class BootedMachine:
    """A worker's machine, which lives as long as its first process."""

    worker: EmulatedWorker
    namespaces: WorkerNamespaces
    groups: str  #: the name of its control groups
    leader: int = 0  #: process number of its systemd on this machine
    _admitted: Sequence[tuple[str, str]] | None = None
    _changing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def alive(self) -> bool:
        return self.namespaces.alive

    @property
    def network(self) -> NetworkNamespace:
        return self.namespaces.network

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.leader}/root")

    def wait_for_ssh(self) -> None:
        """Wait until the SSH server answers; raise `TpukitError` if the machine does not boot."""
        give_up_at = time.monotonic() + _BOOT_SECONDS
        while self.alive and time.monotonic() < give_up_at:
            with contextlib.suppress(OSError):
                connect(self.network, self.worker.address, 22).close()
                self.leader = _leader(self.namespaces.first)
                return
            time.sleep(_POLL_SECONDS)
        raise TpukitError("a worker's machine does not boot", why=self._last_lines())

    def admit(self, keys: Sequence[tuple[str, str]]) -> None:
        """Give each user an account, and admit only these keys."""
        with self._changing:
            if keys == self._admitted:
                return
            lines = "".join(f"{user} {one_line(key)}\n" for user, key in keys)
            words = (*entering(self.leader), "/opt/emulated-worker/bin/accounts")
            done = subprocess.run(
                words, input=lines, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            if done.returncode:
                raise TpukitError("an account cannot be made", why=one_line(done.stderr))
            self._admitted = keys

    def press_power_button(self) -> None:
        """Ask the system to power off."""
        if self.alive and self.leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader, _POWER_OFF)

    def end(self, give_up_at: float = 0.0) -> None:
        """Wait until the machine ends, kill it at `give_up_at`, and remove its traces."""
        while self.alive and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS)
        self.namespaces.end()
        remove_groups(self.groups)

    def _last_lines(self) -> str:
        console = self.worker.folder / "console"
        lines = console.read_text(errors="replace").splitlines() if console.exists() else []
        return "\n".join(one_line(line) for line in lines[-_LAST_LINES:])


def boot(
    worker: EmulatedWorker, network: NetworkNamespace, root: Path, groups: str, options: list[str]
) -> BootedMachine:
    """Start a machine on a root file system; `options` are systemd-nspawn's.

    Raises `TpukitError` or `OSError` if the system does not allow it, and `TpukitError` if the
    machine does not boot. On an error it closes the network.
    """
    try:
        folders = make_groups(groups)
        words = [str(root), str(len(folders)), *map(str, folders), *options]
        namespaces = make_namespaces(worker, network, "machine", *words)
    except (OSError, TpukitError):
        network.close()
        remove_groups(groups)
        raise
    machine = BootedMachine(worker, namespaces, groups)
    try:
        machine.wait_for_ssh()
    except TpukitError:
        machine.end()
        raise
    return machine


def _leader(first: int) -> int:
    """Return the process number of the machine's systemd; raise `TpukitError` if it has ended."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(first).children(recursive=True):
            if process.name() == "systemd-nspawn":
                return int(process.children()[0].pid)
    raise TpukitError("a worker's machine has ended")

"""The effects of one worker's faults on its SSH server and its processes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import asyncssh
import psutil

from tpukit.emulator.faults.worker_faults import DEVICE_KINDS, WorkerFault, WorkerFaults
from tpukit.emulator.workers import processes
from tpukit.emulator.workers.engines.engine import EmulatedWorker, install, make_folders
from tpukit.emulator.workers.sshd.link import (
    LimitedLink,
    deliver_packets,
    drop_packets,
    reset_on_close,
)
from tpukit.text import quote

_APT_LOCK = "etc/apt-lock"  #: in the worker's folder; the stand-in for apt-get waits for its end
_POLL_SECONDS = 0.1  #: how often a held connection checks if the worker is still frozen
#: A title, a cleared screen, a copy to the clipboard, a link, reversed text and rich's markup:
#: `text.sanitize` and the console must neutralise them all.
_HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b]52;c;b3duZWQ=\x07"
    "\x1b]8;;http://evil.example/\x1b\\link\x1b]8;;\x1b\\ [bold]markup[/] \u202etxt.exe\rover\n"
)


class FaultTarget(Protocol):
    """The SSH server that faults act on."""

    worker: EmulatedWorker
    connections: set[asyncssh.SSHServerConnection]
    sockets: set[socket.socket]  #: the clients' connections

    @property
    def listener(self) -> socket.socket | None:
        """The listening socket, or None while the server refuses connections."""
        ...

    def open(self) -> None:
        """Listen again."""
        ...

    def shut(self) -> None:
        """Stop listening."""
        ...


class FaultEffects:
    """Applies the rules for one worker, and undoes their effects when they end."""

    def __init__(self, target: FaultTarget, faults: WorkerFaults) -> None:
        self._target = target
        self._faults = faults
        self._place = target.worker.facts.node, target.worker.index
        # A lock that outlived the emulator counts as active, so that `refresh` can remove it.
        self._active = {"apt-lock"} if (self._folder / _APT_LOCK).exists() else set()
        self._dropping: list[socket.socket] = []
        #: The host key of the fault "swapped-host-key".
        self._other_key: asyncssh.SSHKey | None = None

    # Methods for each event.

    def in_force(self, kind: str) -> bool:
        return self._faults.find(self._place, kind) is not None

    def take(self, kind: str) -> WorkerFault | None:
        """Return the rule that affects this event, and count it, or None."""
        return self._faults.take(self._place, kind)

    async def wait_while_frozen(self) -> None:
        """Hold a new connection while the worker is frozen, or dead without a packet filter."""
        if self.in_force("frozen"):
            self.take("frozen")
        while self.in_force("frozen") or self.in_force("dead"):
            await asyncio.sleep(_POLL_SECONDS)

    def through_link(self, connection: socket.socket) -> tuple[socket.socket, LimitedLink | None]:
        """Return the socket to serve in place of a connection, and the link between them."""
        slow, cut = self.take("slow"), self.take("cut")
        if not slow and not cut:
            return connection, None
        near, far = socket.socketpair()
        rate, most = slow.rate if slow else 0, cut.bytes if cut else 0
        return near, LimitedLink(connection, far, rate, most)

    def host_key(self, own: asyncssh.SSHKey) -> asyncssh.SSHKey:
        if not self.take("swapped-host-key"):
            return own
        self._other_key = self._other_key or asyncssh.generate_private_key("ssh-ed25519")
        return self._other_key

    def command(self, command: str | None) -> str | None:
        """Return the command to run in place of a command."""
        if self.take("disk-full"):
            command = f"exec disk-full {quote([command or 'exec bash -l'])}"
        rules = [(kind, self.take(kind)) for kind in DEVICE_KINDS]
        if lies := " ".join(f"{kind}={rule.device}" for kind, rule in rules if rule):
            command = f"exec lying-devices {quote([lies, command or 'exec bash -l'])}"
        if self.take("hostile-output"):
            noise = f"printf %s {quote([_HOSTILE])}"
            command = f"{noise}; {noise} >&2\n{command or 'exec bash -l'}"
        return command

    def banner(self) -> str:
        return _HOSTILE if self.in_force("hostile-output") else ""

    # Methods for changes of the rules.

    async def refresh(self) -> None:
        """Apply new faults, and undo those that ended."""
        for kind, begin, stop in (
            ("refusing", self._refuse, self._target.open),
            ("dead", self._die, self._revive),
            ("frozen", self._freeze, self._unfreeze),
            ("apt-lock", self._lock, self._unlock),
            ("disk-full", lambda: self._install("disk-full"), lambda: None),
            *((kind, self._install_lies, lambda: None) for kind in DEVICE_KINDS),
        ):
            await self._apply(kind, begin, stop)

    async def _apply(self, kind: str, begin: Callable[[], None], stop: Callable[[], None]) -> None:
        wanted, active = self.in_force(kind), kind in self._active
        if wanted and not active:
            self._active.add(kind)
            await asyncio.to_thread(self._to_processes, kind, True)
            begin()
        elif active and not wanted:
            self._active.discard(kind)
            stop()
            await asyncio.to_thread(self._to_processes, kind, False)

    def _to_processes(self, kind: str, begins: bool) -> None:
        """Stop the processes when a fault begins; let them continue, or end them, when it ends.

        A dead worker's processes end only with the fault: before, clients would notice their end.
        """
        if kind == "dead" and not begins:
            processes.end(self._processes, grace=0)
        elif kind in ("frozen", "dead"):
            number = signal.SIGSTOP if begins else signal.SIGCONT
            for process in self._processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        marker = self._target.worker.marker
        # The marker of worker 1 also begins that of worker 10.
        marked = processes.marked(marker)
        return [process for process in marked if processes.marker(process) in ("", marker)]

    def _refuse(self) -> None:
        self.take("refusing")
        self._target.shut()
        self._cut_off()

    def _cut_off(self) -> None:
        """Reset every connection."""
        for client in self._target.sockets:
            with contextlib.suppress(OSError):  # it has just ended
                reset_on_close(client)
        for connection in list(self._target.connections):
            connection.abort()

    def _die(self) -> None:
        self.take("dead")
        listener = self._target.listener
        self._drop_packets_of([*([listener] if listener else []), *self._target.sockets])

    def _freeze(self) -> None:
        for _ in self._target.sockets:
            self.take("frozen")
        self._drop_packets_of(self._target.sockets)

    def _drop_packets_of(self, ends: Iterable[socket.socket]) -> None:
        for end in ends:
            with contextlib.suppress(OSError):  # it has just ended
                drop_packets(end)
                self._dropping.append(end)

    def _revive(self) -> None:
        """Answer again, and reset the old connections, as a rebooted machine does."""
        self._unfreeze()
        self._cut_off()

    def _unfreeze(self) -> None:
        for end in self._dropping:
            deliver_packets(end)
        self._dropping.clear()

    def _lock(self) -> None:
        self.take("apt-lock")
        for name in ("apt-get", "apt"):
            self._install("apt-get", name)
        (self._folder / _APT_LOCK).touch()

    def _unlock(self) -> None:
        for name in (_APT_LOCK, "bin/apt-get", "bin/apt"):
            (self._folder / name).unlink(missing_ok=True)

    def _install_lies(self) -> None:
        for name in ("lying-devices", "lying-devices-hook"):
            self._install(name)

    def _install(self, standin: str, name: str = "") -> None:
        make_folders(self._target.worker, ("bin", "etc"))
        install(standin, self._folder / "bin" / (name or standin), 0o700)

    @property
    def _folder(self) -> Path:
        return self._target.worker.folder

"""One worker's faults as its SSH server feels them."""

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

from tpukit.emulator import processes
from tpukit.emulator.engine import EmulatedWorker, install, make_folders
from tpukit.emulator.line import Relay, mute, reset_on_close, unmute
from tpukit.emulator.worker_faults import WorkerFault, WorkerFaults
from tpukit.text import quote

_APT_LOCK = "etc/apt-lock"  #: in the worker's folder; the stand-in for apt-get waits for its end
_LOOK_AGAIN = 0.1  #: seconds between two looks of a connection that a frozen worker holds
#: A title, a cleared screen, a copy to the clipboard, a link, the end of a line turned round, and
#: markup of rich: what `text.sanitize` and the console have to withstand.
_HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b]52;c;b3duZWQ=\x07"
    "\x1b]8;;http://evil.example/\x1b\\link\x1b]8;;\x1b\\ [bold]markup[/] \u202etxt.exe\rover\n"
)


class Patient(Protocol):
    """What an ailment acts on."""

    worker: EmulatedWorker
    connections: set[asyncssh.SSHServerConnection]
    sockets: set[socket.socket]  #: those of the clients

    @property
    def listener(self) -> socket.socket | None:
        """The listening socket; None while connections are refused."""
        ...

    def open(self) -> None:
        """Listen again."""
        ...

    def shut(self) -> None:
        """Listen no more."""
        ...


class Ailments:
    """Asks the rules for one worker, and keeps what they do to it in step with them."""

    def __init__(self, patient: Patient, faults: WorkerFaults) -> None:
        self._patient = patient
        self._faults = faults
        self._place = patient.worker.facts.node, patient.worker.index
        # A lock that outlived the emulator is taken back like one that ended.
        self._felt = {"apt-lock"} if (self._folder / _APT_LOCK).exists() else set()
        self._muted: list[socket.socket] = []
        #: The key of the machine that answers in the worker's place.
        self._impostor: asyncssh.SSHKey | None = None

    # At each event

    def has(self, kind: str) -> bool:
        return self._faults.find(self._place, kind) is not None

    def strike(self, kind: str) -> WorkerFault | None:
        """Return the rule that spoils this event, and account for it."""
        return self._faults.strike(self._place, kind)

    async def thaw(self) -> None:
        """Hold a new connection while the worker is frozen, or dead where nothing drops packets."""
        for kind in ("frozen", "dead"):
            if self.has(kind) and self.strike(kind):
                while self.has(kind):
                    await asyncio.sleep(_LOOK_AGAIN)

    def line(self, connection: socket.socket) -> tuple[socket.socket, Relay | None]:
        """Return the socket to serve in place of a connection, and what carries its bytes."""
        slow, cut = self.strike("slow"), self.strike("cut")
        if not slow and not cut:
            return connection, None
        near, far = socket.socketpair()
        rate, most = slow.rate if slow else 0, cut.bytes if cut else 0
        return near, Relay(connection, far, rate, most)

    def host_key(self, own: asyncssh.SSHKey) -> asyncssh.SSHKey:
        if not self.strike("swapped-host-key"):
            return own
        self._impostor = self._impostor or asyncssh.generate_private_key("ssh-ed25519")
        return self._impostor

    def command(self, command: str | None) -> str | None:
        """Return what runs in place of a command."""
        if self.strike("disk-full"):
            command = f"exec disk-full {quote([command or 'exec bash -l'])}"
        if self.strike("hostile-output"):
            noise = f"printf %s {quote([_HOSTILE])}"
            command = f"{noise}; {noise} >&2\n{command or 'exec bash -l'}"
        return command

    def banner(self) -> str:
        return _HOSTILE if self.has("hostile-output") else ""

    # Whenever rules came or went

    async def refresh(self) -> None:
        """Put in force what begins, and take back what ended."""
        for kind, begin, stop in (
            ("refusing", self._refuse, self._patient.open),
            ("dead", self._die, self._revive),
            ("frozen", self._freeze, self._melt),
            ("apt-lock", self._lock, self._unlock),
            ("disk-full", lambda: self._install("disk-full"), _nothing),
        ):
            await self._apply(kind, begin, stop)

    async def _apply(self, kind: str, begin: Callable[[], None], stop: Callable[[], None]) -> None:
        ails, felt = self.has(kind), kind in self._felt
        if ails and not felt:
            self._felt.add(kind)
            await asyncio.to_thread(self._to_processes, kind, True)
            begin()
        elif felt and not ails:
            self._felt.discard(kind)
            stop()
            await asyncio.to_thread(self._to_processes, kind, False)

    def _to_processes(self, kind: str, begins: bool) -> None:
        """Stop processes, and let them go on, or end them as a reboot does.

        Those of a dead worker are only stopped: their end would be told to their clients.
        """
        if kind == "dead" and not begins:
            processes.end(self._processes, grace=0)
        elif kind in ("frozen", "dead"):
            number = signal.SIGSTOP if begins else signal.SIGCONT
            for process in self._processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        marker = self._patient.worker.marker
        # The marker of worker 1 also begins that of worker 10.
        return [each for each in processes.marked(marker) if _marker(each) in ("", marker)]

    def _refuse(self) -> None:
        self.strike("refusing")
        self._patient.shut()
        self._cut_off()

    def _cut_off(self) -> None:
        """Reset every connection."""
        for client in self._patient.sockets:
            with contextlib.suppress(OSError):  # it has just ended
                reset_on_close(client)
        for connection in list(self._patient.connections):
            connection.abort()

    def _die(self) -> None:
        self.strike("dead")
        listener = self._patient.listener
        self._silence([*([listener] if listener else []), *self._patient.sockets])

    def _freeze(self) -> None:
        for _ in self._patient.sockets:
            self.strike("frozen")
        self._silence(self._patient.sockets)

    def _silence(self, ends: Iterable[socket.socket]) -> None:
        for end in ends:
            with contextlib.suppress(OSError):  # it has just ended
                mute(end)
                self._muted.append(end)

    def _revive(self) -> None:
        """Answer again; the connections of before are unknown to the machine that came back."""
        self._melt()
        self._cut_off()

    def _melt(self) -> None:
        for end in self._muted:
            unmute(end)
        self._muted.clear()

    def _lock(self) -> None:
        self.strike("apt-lock")
        for name in ("apt-get", "apt"):
            self._install("apt-get", name)
        (self._folder / _APT_LOCK).touch()

    def _unlock(self) -> None:
        for name in (_APT_LOCK, "bin/apt-get", "bin/apt"):
            (self._folder / name).unlink(missing_ok=True)

    def _install(self, standin: str, name: str = "") -> None:
        make_folders(self._patient.worker, ("bin", "etc"))
        install(standin, self._folder / "bin" / (name or standin), 0o700)

    @property
    def _folder(self) -> Path:
        return self._patient.worker.folder


def _marker(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(processes.MARKER, ""))
    except (psutil.Error, OSError):
        return ""


def _nothing() -> None:
    """What ends by itself needs no end."""

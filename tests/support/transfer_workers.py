"""Several real SSH servers with homes of their own, as the workers of one slice."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from support.login_account import Account
from support.openssh_server import UbuntuServer, finds_sshd, ubuntu_server
from support.ssh_server import Server
from tpukit.clock import Deadline, SystemClock
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.worker import RemoteWorker

NEVER = Deadline.never(SystemClock())
#: Bytes of a file to copy.
SIZE = 3 << 20


@dataclass
class ByteCounter:
    """Adds up what it hears."""

    expected: int = 0
    moved: int = 0

    def expect(self, size: int) -> None:
        self.expected += size

    def advance(self, size: int) -> None:
        self.moved += size


@dataclass
class CuttingGauge(ByteCounter):
    """Acts once, in the middle of a transfer."""

    act: Callable[[], object] = lambda: None
    at: int = SIZE // 2

    def advance(self, size: int) -> None:
        before, self.moved = self.moved, self.moved + size
        if before < self.at <= self.moved:
            self.act()


@dataclass
class Fleet:
    """The servers, and the workers that the client sees in them."""

    connector: Connector
    servers: list[Server | UbuntuServer]
    addresses: list[str]
    dead: dict[int, socket.socket] = field(default_factory=dict)
    patience: float = 60.0  #: for a worker that answers

    @property
    def workers(self) -> list[RemoteWorker]:
        return [
            RemoteWorker(
                index,
                lambda index=index: self._connect(index),
                "demo",
                replace(server.target(), internal_address=self.addresses[index]),
            )
            for index, server in enumerate(self.servers)
        ]

    def home(self, index: int) -> Path:
        return self.servers[index].home

    def end(self, index: int) -> None:
        """Let a worker answer nobody any more, and no other test's server get its port."""
        target = self.servers[index].target()
        self.servers[index].close()
        self.dead[index] = holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((self.addresses[index], target.port))

    def taken(self, index: int) -> int:
        """Return how often this worker received something from the client."""
        return verbs(self.servers[index]).count("receive_upload")

    def _connect(self, index: int) -> Connection:
        target = self.servers[index].target()
        patience = 2.0 if index in self.dead else self.patience
        return self.connector.connect(target, Deadline.after(SystemClock(), patience))


def verbs(server: Server | UbuntuServer) -> list[str]:
    """Return what the agent on a worker was asked to do, and an empty text for other commands."""
    ends = [re.search(r"DEVICES:-\}\" ([a-z_]+)", command) for command in server.commands]
    return [end[1] if end else "" for end in ends]


def openssh_account(request: pytest.FixtureRequest) -> Account | None:
    """Return who logs in to a fleet of OpenSSH's servers, where the test is `on_openssh`."""
    wanted = getattr(request, "param", "") and finds_sshd(request)
    return request.getfixturevalue("account") if wanted else None


def on_openssh(fleet: str) -> pytest.MarkDecorator:
    """Let a test run on OpenSSH's servers: what it does matters to real workers."""
    return pytest.mark.parametrize(fleet, ["openssh"], indirect=True)


@contextmanager
def fleet(
    directory: Path, key: KeyPair, count: int, account: Account | None = None
) -> Iterator[Fleet]:
    """Run so many workers: OpenSSH's, where an account is given that logs in."""
    with ExitStack() as cleanup:
        servers: list[Server | UbuntuServer] = []
        for index in range(count):
            if account:
                servers.append(cleanup.enter_context(ubuntu_server(account, key)))
                continue
            home = directory / f"home-{index}"
            home.mkdir()
            servers.append(Server(home).accept(key))
        with Connector(key, SystemClock(), attempt_seconds=30.0) as connector:
            found = Fleet(connector, servers, ["127.0.0.1"] * count)
            yield found
        for holder in found.dead.values():
            holder.close()
        for index in set() if account else set(range(count)) - {*found.dead}:
            servers[index].close()

"""Fixtures of the SSH tests: a key, a real server, a connector."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import ssh_server
from support.login_account import Account, login_account
from support.openssh_server import UbuntuServer, finds_sshd, ubuntu_server
from support.ssh_server import Server
from tpukit.clock import Deadline, SystemClock
from tpukit.ssh.client import Connection, Connector
from tpukit.ssh.keys import KeyPair, ensure_key_pair
from tpukit.ssh.target import Target
from tpukit.ssh.worker import RemoteWorker

Within = Callable[[float], Deadline]


@pytest.fixture
def within() -> Within:
    return lambda seconds: Deadline.after(SystemClock(), seconds)


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_key_pair(tmp_path_factory.mktemp("keys") / "private")


@pytest.fixture
def server(tmp_path: Path, key: KeyPair) -> Iterator[Server]:
    home = tmp_path / "home"
    home.mkdir()
    server = Server(home).accept(key)
    yield server
    server.close()


@pytest.fixture(scope="session")
def account() -> Iterator[Account]:
    """An ordinary user, as a TPU VM has; its servers have homes of their own."""
    with TemporaryDirectory(prefix="tpukit-account-") as home:
        Path(home).chmod(0o755)  # a session begins there
        with login_account(Path(home)) as found:
            yield found


@pytest.fixture
def ubuntu(account: Account, key: KeyPair) -> Iterator[UbuntuServer]:
    """A worker as TPU VMs are: OpenSSH's server, an ordinary user with bash and sudo."""
    with ubuntu_server(account, key) as found:
        yield found


#: For a test whose server loses answers, shows another Python or greets nobody: OpenSSH's do not.
OURS = pytest.mark.parametrize("server", ["ours"], indirect=True)
ALL_OURS = pytest.mark.parametrize("servers", ["ours"], indirect=True)


def ubuntu_or_ours(request: pytest.FixtureRequest) -> Server:
    """Return what `server` is in tests that matter to a real worker: OpenSSH's where it is."""
    ours = hasattr(request, "param") or not finds_sshd(request)
    return request.getfixturevalue("server" if ours else "ubuntu")


@pytest.fixture
def distant(tmp_path: Path, key: KeyPair) -> Iterator[tuple[subprocess.Popen[str], Target]]:
    """A server in a process of its own, and where it answers."""
    words = [sys.executable, ssh_server.__file__, str(tmp_path)]
    process = subprocess.Popen(
        [*words, " ".join(key.public.split()[:2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    )
    assert process.stdout is not None
    port, host_key = process.stdout.readline().strip().split(" ", 1)
    with process:  # it ends with its stdin, and what runs there with it
        yield process, Target("demo worker 1", 1, "127.0.0.1", int(port), "tester", (host_key,))
        process.send_signal(signal.SIGCONT)


@pytest.fixture
def connector(key: KeyPair) -> Iterator[Connector]:
    with Connector(key, SystemClock(), attempt_seconds=30.0) as connector:
        yield connector


@pytest.fixture
def connection(connector: Connector, server: Server, within: Within) -> Connection:
    return connector.connect(server.target(), within(60))


@pytest.fixture
def servers(tmp_path: Path, key: KeyPair) -> Iterator[list[Server]]:
    """Three workers of one slice."""
    started = []
    for index in range(3):
        home = tmp_path / f"home-{index}"
        home.mkdir()
        started.append(Server(home).accept(key))
        started[index].variables["WORKER"] = str(index)
    yield started
    for server in started:
        server.close()


@pytest.fixture
def ubuntus(account: Account, key: KeyPair) -> Iterator[list[UbuntuServer]]:
    """Three workers of one slice, as TPU VMs are."""
    with ExitStack() as cleanup:
        started = [cleanup.enter_context(ubuntu_server(account, key)) for _ in range(3)]
        for index, each in enumerate(started):
            each.variables["WORKER"] = str(index)
        yield started


def ubuntus_or_ours(request: pytest.FixtureRequest) -> list[Server]:
    """Return what `servers` is in tests that matter to real workers: OpenSSH's where it is."""
    ours = hasattr(request, "param") or not finds_sshd(request)
    return request.getfixturevalue("servers" if ours else "ubuntus")


@pytest.fixture
def workers(servers: list[Server], connector: Connector, within: Within) -> list[RemoteWorker]:
    def connect(server: Server) -> Callable[[], Connection]:
        return lambda: connector.connect(server.target(), within(60))

    return [RemoteWorker(index, connect(server), "demo") for index, server in enumerate(servers)]

"""A key of the user's own opens workers: OpenSSH's own server, agent and key files say so."""

from __future__ import annotations

import base64
import hashlib
import select
import socket
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.openssh_server import UbuntuServer
from support.processes import eventually
from support.ssh_fixtures import Within

from tpukit.clock import SystemClock
from tpukit.errors import AuthenticationFailed, BadInput, SecurityRefusal
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair, own_key_pair
from tpukit.ssh.openssh import OpenSsh

pytestmark = pytest.mark.process

PASSPHRASE = "correct horse"


def keygen(*words: object) -> None:
    command = ["ssh-keygen", "-q", *map(str, words)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def new_key(folder: Path, kind: str = "ed25519", passphrase: str = "") -> KeyPair:
    keygen("-t", kind, "-N", passphrase, "-f", folder / "mine")
    return own_key_pair(folder / "mine")


def nobody(path: Path) -> str:
    raise AssertionError(f"asked for the passphrase of {path}")


@pytest.fixture
def within_a_minute(within: Within) -> Any:
    return within(60)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(prefix="tpukit-agent-") as folder:
        path = Path(folder, "agent")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL) as agent:
            eventually(path.exists)
            yield path
            agent.terminate()


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def greeted(server: UbuntuServer, key: KeyPair, deadline: Any, ask: Any = nobody) -> bool:
    """Return True if a worker runs a command for who has the key."""
    with Connector(key, SystemClock()) as connector:
        connector.unlock(ask)
        connector.unlock(nobody)  # it is ready
        connection = connector.connect_once(server.target(), deadline)
        return connection.run("echo welcome", deadline=deadline).stdout.endswith(b"welcome\n")


def all_at_once(server: UbuntuServer, key: KeyPair, deadline: Any) -> bool:
    """Return True if several connections at the same time are accepted."""
    with Connector(key, SystemClock()) as connector, ThreadPoolExecutor(3) as threads:
        connector.unlock(nobody)
        connect = [threads.submit(connector.connect, server.target(), deadline) for _ in range(3)]
        return all(future.result().alive for future in connect)


def greeted_by_openssh(server: UbuntuServer, key: KeyPair, folder: Path) -> bool:
    target = replace(server.target(), alias="tpukit.demo.0")
    words = OpenSsh(key, folder, silence=60).command(target, "-T", remote="echo welcome")
    # Without a terminal, OpenSSH has nobody to ask for a passphrase.
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    return done.stdout.endswith(b"welcome\n")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_an_unlocked_key_needs_no_passphrase_any_more(tmp_path: Path, kind: str) -> None:
    """As ssh-keygen reads it; a key that needed none is not given away."""
    key = new_key(tmp_path, kind, PASSPHRASE)
    connector = Connector(key, SystemClock())
    assert connector.unlocked() == b""
    connector.unlock(lambda path: PASSPHRASE)
    opened = tmp_path / "opened"
    opened.touch(0o600)
    opened.write_bytes(connector.unlocked())
    words = ["ssh-keygen", "-y", "-P", "", "-f", opened]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.split()[:2] == key.public.split()[:2]
    (tmp_path / "plain").mkdir()
    plain = Connector(new_key(tmp_path / "plain", kind), SystemClock())
    plain.unlock(nobody)
    assert plain.unlocked() == b""


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_key_of_the_user_s_own_opens_a_worker(
    ubuntu: UbuntuServer, tmp_path: Path, within_a_minute: Any, kind: str
) -> None:
    key = new_key(tmp_path, kind)
    ubuntu.accept(key)
    assert greeted(ubuntu, key, within_a_minute)
    assert greeted_by_openssh(ubuntu, key, tmp_path)


def test_its_passphrase_is_asked_for_and_may_be_mistyped(
    ubuntu: UbuntuServer, tmp_path: Path, within_a_minute: Any
) -> None:
    key = new_key(tmp_path, passphrase=PASSPHRASE)
    ubuntu.accept(key)
    typed = iter(["wrong", PASSPHRASE])
    assert greeted(ubuntu, key, within_a_minute, lambda path: next(typed))
    with pytest.raises(AuthenticationFailed, match="cannot be used") as caught:
        greeted(ubuntu, key, within_a_minute, lambda path: "wrong")
    assert str(caught.value.fix) == f"ssh-add {key.private_path}"


def test_an_agent_that_says_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key(tmp_path)
    with (
        TemporaryDirectory(prefix="tpukit-agent-") as folder,
        socket.socket(socket.AF_UNIX) as silent,
        Connector(key, SystemClock(), attempt_seconds=0.1) as connector,
    ):
        silent.bind(f"{folder}/agent")
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/agent")
        with pytest.raises(AuthenticationFailed, match="your agent cannot be asked"):
            connector.unlock(nobody)


def test_a_key_that_an_agent_alone_has_opens_workers(
    ubuntu: UbuntuServer, tmp_path: Path, within_a_minute: Any, agent: Path
) -> None:
    key = new_key(tmp_path)
    ubuntu.accept(key)
    subprocess.run(["ssh-add", "-q", key.private_path], check=True, capture_output=True)
    key.private_path.unlink()
    assert all_at_once(ubuntu, key, within_a_minute)
    assert greeted_by_openssh(ubuntu, key, tmp_path)


def test_another_key_of_the_agent_is_not_offered(
    ubuntu: UbuntuServer, tmp_path: Path, within_a_minute: Any, agent: Path
) -> None:
    (tmp_path / "other").mkdir()
    other, key = new_key(tmp_path / "other"), new_key(tmp_path)
    ubuntu.accept(other)
    subprocess.run(["ssh-add", "-q", other.private_path], check=True, capture_output=True)
    with pytest.raises(AuthenticationFailed, match="does not accept our key"):
        greeted(ubuntu, key, within_a_minute)
    assert not greeted_by_openssh(ubuntu, key, tmp_path)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("known", ["authority", "key"])
def test_a_worker_that_knows_a_key_or_the_authority_of_its_certificate_is_opened(
    ubuntu: UbuntuServer,
    tmp_path: Path,
    within_a_minute: Any,
    agent: Path,
    known: str,
    held: bool,
) -> None:
    """If the worker knows the key alone, the certificate is for others, such as a jump host."""
    (tmp_path / "authority").mkdir()
    authority, key = new_key(tmp_path / "authority"), new_key(tmp_path)
    signed = replace(authority, public=f"cert-authority {authority.public}")
    ubuntu.accept(signed if known == "authority" else key)
    user = ubuntu.account.name if known == "authority" else "tester"
    keygen("-s", authority.private_path, "-I", "tester", "-n", user, key.public_path)
    if held:
        subprocess.run(["ssh-add", "-q", key.private_path], check=True, capture_output=True)
        key.private_path.unlink()
    assert greeted(ubuntu, key, within_a_minute)
    assert greeted_by_openssh(ubuntu, key, tmp_path)


def test_a_security_key_is_used_through_the_agent(
    ubuntu: UbuntuServer, tmp_path: Path, within_a_minute: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of ours signs as OpenSSH's does for a FIDO token; OpenSSH's server verifies it."""
    with TemporaryDirectory(prefix="tpukit-agent-") as folder:
        monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/agent")
        with SecurityKeyAgent(f"{folder}/agent", AgentRequest) as token:
            threading.Thread(target=token.serve_forever, daemon=True).start()
            (tmp_path / "mine.pub").write_text(token.public_line())
            key = own_key_pair(tmp_path / "mine")
            ubuntu.accept(key)
            assert all_at_once(ubuntu, key, within_a_minute)
            assert not token.hurried, "it was asked before it had answered"
            assert greeted_by_openssh(ubuntu, key, tmp_path)
            token.shutdown()


def test_a_key_that_nobody_has_is_said_to_be_missing(tmp_path: Path) -> None:
    key = new_key(tmp_path)
    key.private_path.unlink()
    with (
        Connector(key, SystemClock()) as connector,
        pytest.raises(AuthenticationFailed, match="neither a file nor in your agent") as caught,
    ):
        connector.unlock(nobody)
    assert str(caught.value.fix) == "ssh-add -l"


def test_a_public_half_of_another_key_is_refused_before_a_worker_gets_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    key, other = new_key(tmp_path), new_key(tmp_path / "other")
    key.public_path.write_text(other.public)
    key = own_key_pair(key.private_path)
    with (
        Connector(key, SystemClock()) as connector,
        pytest.raises(BadInput, match=r"\.pub is not the public half of") as caught,
    ):
        connector.unlock(nobody)
    assert caught.value.fix
    subprocess.run(caught.value.fix.arguments, check=True)
    with Connector(own_key_pair(key.private_path), SystemClock()) as connector:
        connector.unlock(nobody)


def test_what_is_no_key_pair_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with pytest.raises(BadInput, match="public half of the SSH key"):
        own_key_pair(path)
    for public in ("", "ssh-dss AAAA", "ssh-ed25519 AAAA\\nme:ssh", "cert-authority ssh-rsa AAAA"):
        (tmp_path / "mine.pub").write_text(public)
        with pytest.raises(BadInput, match="is not the public half"):
            own_key_pair(path)
    path.unlink(missing_ok=True)
    (tmp_path / "mine.pub").unlink()
    new_key(tmp_path)
    path.chmod(0o640)
    with pytest.raises(SecurityRefusal, match="others can read the SSH key"):
        own_key_pair(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BadInput, match="mine is a folder"):
        own_key_pair(path)


def packed(*parts: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


class SecurityKeyAgent(socketserver.ThreadingUnixStreamServer):
    """An agent with a key of the kind sk-ssh-ed25519@openssh.com: OpenSSH's PROTOCOL.u2f."""

    KIND, APPLICATION = b"sk-ssh-ed25519@openssh.com", b"ssh:"
    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.hurried = False
        self.key = Ed25519PrivateKey.generate()
        raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        public = self.key.public_key().public_bytes(*raw)
        self.blob = packed(self.KIND, public, self.APPLICATION)

    def public_line(self) -> str:
        return f"{self.KIND.decode()} {base64.b64encode(self.blob).decode()} token\n"

    def answer(self, request: bytes) -> bytes:
        if request[0] == 11:  # which keys
            return b"\x0c" + struct.pack(">I", 1) + packed(self.blob, b"token")
        if request[0] != 13:  # it has no extensions, and signs
            return b"\x05"
        size = struct.unpack(">I", request[1:5])[0]
        assert request[5 : 5 + size] == self.blob
        data = request[9 + size :][: struct.unpack(">I", request[5 + size : 9 + size])[0]]
        touched = struct.pack(">BI", 1, 7)  # somebody was there, for the seventh time
        signed = hashlib.sha256(self.APPLICATION).digest() + touched + hashlib.sha256(data).digest()
        return b"\x0e" + packed(packed(self.KIND, self.key.sign(signed)) + touched)


class AgentRequest(socketserver.StreamRequestHandler):
    server: SecurityKeyAgent
    rbufsize = 0  # what is not read yet can be seen

    def handle(self) -> None:
        while head := self.rfile.read(4):
            request = self.rfile.read(*struct.unpack(">I", head))
            self.server.hurried |= bool(select.select([self.connection], [], [], 0.5)[0])
            self.wfile.write(packed(self.server.answer(request)))

"""The system's OpenSSH client, run for real against a real server."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from support.ssh_server import Server

from tpukit.remote.connection import openssh
from tpukit.remote.connection.keys import KeyPair, ensure_key_pair, write_known_hosts
from tpukit.remote.connection.target import Target
from tpukit.text import quote


@pytest.fixture
def known_hosts(tmp_path: Path, server: Server) -> Path:
    """A folder whose name ssh_config would take apart if it were not quoted."""
    folder = tmp_path / "known hosts 100%h"
    folder.mkdir()
    write_known_hosts(folder / "pins", [("tpukit.demo.0", [server.public])])
    return folder / "pins"


def target_of(server: Server, alias: str = "tpukit.demo.0") -> Target:
    return replace(server.target(), alias=alias)


def run(words: list[str], known_hosts: Path) -> subprocess.CompletedProcess[bytes]:
    """Run with a home folder whose configuration would break every connection."""
    home = known_hosts.parent
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "config").write_text("Host *\n  Port 1\n  ProxyCommand false\n")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SSH_AUTH_SOCK": "/nonexistent"}
    return subprocess.run(words, env=environment, capture_output=True, timeout=120, check=False)


def test_openssh_is_here() -> None:
    """Without it the tests below would say nothing."""
    assert openssh.available()


def test_a_command_passes_through_with_its_status(
    server: Server, key: KeyPair, known_hosts: Path
) -> None:
    remote = quote(["sh", "-c", "echo $0; exit 7", "a b"])
    words = openssh.command(target_of(server), key, known_hosts, "-T", remote=remote)
    done = run(words, known_hosts)
    assert (done.returncode, done.stdout) == (7, b"a b\n"), done.stderr
    assert set(server.offered) == server.accepted, "OpenSSH asks first, then signs"


def test_a_key_in_a_folder_with_a_strange_name_is_found(
    tmp_path: Path, server: Server, known_hosts: Path
) -> None:
    key = ensure_key_pair(tmp_path / 'my "keys" 50%u', "me")
    words = openssh.command(target_of(server.accept(key)), key, known_hosts, remote="true")
    assert run(words, known_hosts).returncode == 0


def test_an_impostor_is_refused_before_our_key_is_used(
    server: Server, key: KeyPair, known_hosts: Path
) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    write_known_hosts(known_hosts, [("tpukit.demo.0", [" ".join(other.split()[:2])])])
    words = openssh.command(target_of(server), key, known_hosts, remote="true")
    done = run(words, known_hosts)
    assert done.returncode == 255
    assert b"Host key verification failed" in done.stderr
    assert server.offered == []


def test_an_unknown_worker_is_refused(server: Server, key: KeyPair, known_hosts: Path) -> None:
    words = openssh.command(target_of(server, "tpukit.demo.1"), key, known_hosts, remote="true")
    assert run(words, known_hosts).returncode == 255
    assert server.offered == []


def test_a_hostile_address_stays_an_address(key: KeyPair, known_hosts: Path) -> None:
    address = "-oProxyCommand=touch canary"
    target = Target("demo worker 0", 0, address, 22, "tester", (), alias="tpukit.demo.0")
    words = openssh.command(target, key, known_hosts, remote="true")
    done = run(words, known_hosts)
    assert done.returncode == 255
    assert not Path("canary").exists()
    assert not (known_hosts.parent / "canary").exists()


def test_a_worker_is_reached_through_another_with_the_same_strictness(
    server: Server, key: KeyPair, known_hosts: Path
) -> None:
    """Folders with blanks, quotes and percent signs pass a shell and OpenSSH twice each."""
    server.tunnels = True
    strange = ensure_key_pair(known_hosts.parent / 'it\'s "a" 50%u key', "me")
    target = target_of(server.accept(strange))
    jump = openssh.command(target, strange, known_hosts, "-W", f"[127.0.0.1]:{server.port}")
    words = openssh.command(target, key, known_hosts, remote="echo there", proxy=jump)
    done = run(words, known_hosts)
    assert (done.returncode, done.stdout) == (0, b"there\n"), done.stderr
    offered = list(server.offered)
    impostor = openssh.command(replace(target, alias="x"), key, known_hosts, "-W", "[127.0.0.1]:1")
    done = run(
        openssh.command(target, key, known_hosts, remote="true", proxy=impostor), known_hosts
    )
    assert b"Host key verification failed" in done.stderr
    assert (done.returncode, server.offered) == (255, offered)


def test_the_agent_is_never_forwarded_nor_asked(
    server: Server, key: KeyPair, known_hosts: Path
) -> None:
    """OpenSSH's own reading of our options, printed by `ssh -G`."""
    words = openssh.command(target_of(server), key, known_hosts, "-t")
    read = run(["ssh", "-G", *words[1:]], known_hosts).stdout.decode().splitlines()
    wanted = {
        "forwardagent no", "identityagent none", "identitiesonly yes", "controlmaster false",
        "stricthostkeychecking true", "serveraliveinterval 5", "serveralivecountmax 3",
        f"userknownhostsfile {known_hosts}", "requesttty true", "forwardx11 no",
    }  # fmt: skip
    assert wanted <= set(read)

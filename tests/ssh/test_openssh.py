"""The system's OpenSSH client, run for real against a real server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncssh
import pytest
from support.ssh_server import Server

from tpukit.errors import BadInput
from tpukit.ssh.keys import KeyPair, ensure_key_pair
from tpukit.ssh.openssh import OpenSsh
from tpukit.ssh.target import Target
from tpukit.text import quote

ALIAS = "tpukit.demo.0"


@pytest.fixture
def ours(tmp_path: Path, key: KeyPair) -> OpenSsh:
    """With a folder whose name ssh_config would take apart if it were not quoted."""
    folder = tmp_path / "known hosts 100%h"
    folder.mkdir()
    return OpenSsh(key, folder, silence=60)


@pytest.fixture
def target(server: Server) -> Target:
    return replace(server.target(), alias=ALIAS)


def run(words: list[str], ours: OpenSsh) -> subprocess.CompletedProcess[bytes]:
    """Run with a home folder whose configuration would break every connection."""
    home = ours.directory
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh" / "config").write_text("Host *\n  Port 1\n  ProxyCommand false\n")
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SSH_AUTH_SOCK": "/nonexistent"}
    return subprocess.run(words, env=environment, capture_output=True, timeout=120, check=False)


def read_by_openssh(words: list[str], ours: OpenSsh) -> set[str]:
    """Return what OpenSSH itself makes of our options, printed by `ssh -G`."""
    return set(run(["ssh", "-G", *words[1:]], ours).stdout.decode().splitlines())


def other_key() -> str:
    public = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    return " ".join(public.split()[:2])


def test_openssh_is_here() -> None:
    """Without it the tests below would say nothing."""
    assert shutil.which("ssh")


def test_a_command_passes_through_with_its_status(
    server: Server, ours: OpenSsh, target: Target
) -> None:
    remote = quote(["sh", "-c", "echo $0; exit 7", "a b"])
    done = run(ours.command(target, "-T", remote=remote), ours)
    assert (done.returncode, done.stdout) == (7, b"a b\n"), done.stderr
    assert set(server.offered) == server.accepted, "OpenSSH asks first, then signs"


def test_a_key_in_a_folder_with_a_strange_name_is_found(
    tmp_path: Path, server: Server, ours: OpenSsh, target: Target
) -> None:
    key = ensure_key_pair(tmp_path / 'my "keys" 50%u')
    server.accept(key)
    words = replace(ours, key=key).command(target, remote="true")
    assert run(words, ours).returncode == 0


def test_an_impostor_is_refused_before_our_key_is_used(
    server: Server, ours: OpenSsh, target: Target
) -> None:
    words = ours.command(replace(target, host_keys=(other_key(),)), remote="true")
    done = run(words, ours)
    assert done.returncode == 255
    assert b"Host key verification failed" in done.stderr
    assert server.offered == []


def test_an_unknown_worker_is_refused(server: Server, ours: OpenSsh, target: Target) -> None:
    words = ours.command(replace(target, host_keys=()), remote="true")
    assert run(words, ours).returncode == 255
    assert server.offered == []


def test_a_hostile_address_stays_an_address(ours: OpenSsh, target: Target) -> None:
    hostile = replace(target, address="-oProxyCommand=touch canary")
    done = run(ours.command(hostile, remote="true"), ours)
    assert done.returncode == 255
    assert not Path("canary").exists()
    assert not (ours.directory / "canary").exists()


def test_a_worker_is_reached_through_another_with_the_same_strictness(
    server: Server, ours: OpenSsh, target: Target
) -> None:
    """Folders with blanks, quotes and percent signs pass a shell and OpenSSH twice each."""
    server.tunnels = True
    strange = replace(ours, key=ensure_key_pair(ours.directory / 'it\'s "a" 50%u key'))
    server.accept(strange.key)
    jump = strange.command(target, "-W", f"[127.0.0.1]:{server.port}")
    done = run(ours.command(target, remote="echo there", proxy=jump), ours)
    assert (done.returncode, done.stdout) == (0, b"there\n"), done.stderr
    server.offered.clear()
    impostor = replace(target, alias="tpukit.demo.1", host_keys=(other_key(),))
    jump = strange.command(impostor, "-W", f"[127.0.0.1]:{server.port}")
    done = run(ours.command(target, remote="true", proxy=jump), ours)
    assert b"Host key verification failed" in done.stderr
    assert (done.returncode, server.offered) == (255, [])


def test_the_agent_is_never_forwarded_nor_asked(ours: OpenSsh, target: Target) -> None:
    read = read_by_openssh(ours.command(target, "-t"), ours)
    wanted = {
        "forwardagent no", "identityagent none", "identitiesonly yes", "controlmaster false",
        "controlpersist no", "stricthostkeychecking true", "requesttty true", "forwardx11 no",
        f"userknownhostsfile {ours.directory}/known_hosts.{ALIAS}",
    }  # fmt: skip
    assert wanted <= read
    assert not any(line.startswith("controlpath") for line in read)


@pytest.mark.parametrize(("silence", "interval"), [(60, 20), (30, 10), (10, 4), (1, 1)])
def test_a_silent_worker_is_given_up_as_soon_as_by_ourselves_and_no_sooner(
    ours: OpenSsh, target: Target, silence: int, interval: int
) -> None:
    """OpenSSH ends with the third interval in which nothing came, where the count is 2."""
    read = read_by_openssh(replace(ours, silence=silence).command(target), ours)
    assert {f"serveraliveinterval {interval}", "serveralivecountmax 2"} <= read


@pytest.fixture
def staying(ours: OpenSsh, target: Target) -> Iterator[OpenSsh]:
    """OpenSSH whose connections stay, and are ended with the test."""
    with TemporaryDirectory(prefix="a 100%h ") as short:
        found = replace(ours, directory=Path(short), persist=600)
        yield found
        run(found.command(target, "-O", "exit"), found)


def test_a_connection_that_stays_serves_who_comes_next(
    server: Server, staying: OpenSsh, target: Target
) -> None:
    assert not staying.persists(target)
    assert run(staying.command(target, remote="echo one"), staying).stdout == b"one\n"
    assert staying.persists(target)
    assert run(staying.command(target, remote="echo two"), staying).stdout == b"two\n"
    assert len(server.connections) == 1


def test_a_connection_that_stays_serves_no_other_worker_route_or_host_key(
    server: Server, staying: OpenSsh, target: Target
) -> None:
    """OpenSSH's own %C would take it for that of any worker with this address."""
    server.tunnels = True
    assert run(staying.command(target, remote="true"), staying).returncode == 0
    through = replace(staying, persist=0).command(target, "-W", f"[127.0.0.1]:{server.port}")
    assert not staying.persists(target, proxy=through)
    assert not staying.persists(replace(target, alias="tpukit.other.0"))
    anew = replace(target, host_keys=(other_key(),))
    assert not staying.persists(anew)
    assert run(staying.command(anew, remote="true"), staying).returncode == 255


def test_a_folder_whose_path_is_too_long_for_a_socket_is_refused(
    ours: OpenSsh, target: Target
) -> None:
    folder = ours.directory / ("x" * 80)
    folder.mkdir()
    with pytest.raises(BadInput, match="too long a path"):
        replace(ours, directory=folder, persist=60).command(target)

"""The file that OpenSSH includes: strict hosts for workers, and the user's own file unharmed."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tpukit.access.ssh_config import Host, SshConfig, UserConfig, host_names
from tpukit.errors import BadInput
from tpukit.models import Slice
from tpukit.ssh.keys import ensure_key_pair
from tpukit.ssh.openssh import OpenSsh
from tpukit.ssh.target import Target

DAY = 1_700_000_000.0
_NAMES = ("tpu.demo.0", "tpu.demo.1", "tpu.demo-1.0", "tpu.demo-1.1", "tpu.own", "tpu.own.1")
DEMO = Slice("demo", "p", "us-central1-a", "v3-8", "tpu-ubuntu2204-base", "READY")


@pytest.fixture
def openssh(tmp_path: Path) -> OpenSsh:
    return OpenSsh(ensure_key_pair(tmp_path / "a key"), tmp_path / "ssh", silence=30)


@pytest.fixture
def ours(tmp_path: Path) -> SshConfig:
    return SshConfig(tmp_path / "ssh")


def hosts(openssh: OpenSsh, slice_: Slice = DEMO, count: int = 2, **changes: str) -> list[Host]:
    public = " ".join(openssh.key.public.split()[:2])
    return [
        Host(
            host_names(slice_, index),
            replace(
                Target(f"w{index}", index, f"10.0.0.{index}", 22, "ada", (public,)),
                alias=f"tpukit.p.{slice_.zone}.{slice_.name}.{index}",
                **changes,  # type: ignore[arg-type]
            ),
        )
        for index in range(count)
    ]


def effective(config: Path, host: str) -> dict[str, str]:
    """Return what OpenSSH itself makes of a configuration."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_openssh_understands_every_host_as_strictly_as_we_do(
    ours: SshConfig, openssh: OpenSsh
) -> None:
    ours.put(DEMO, hosts(openssh), openssh)
    for name, address in (("", "10.0.0.0"), (".0", "10.0.0.0"), (".1", "10.0.0.1")):
        found = effective(ours.path, f"tpu.demo{name}")
        wanted = {
            "hostname": address,
            "user": "ada",
            "port": "22",
            "identitiesonly": "yes",
            "identityfile": str(openssh.key.private_path),
            "identityagent": "none",
            "stricthostkeychecking": "true",
            "globalknownhostsfile": "/dev/null",
            "userknownhostsfile": str(ours.directory / "known_hosts.demo"),
            "hostkeyalias": f"tpukit.p.us-central1-a.demo.{address[-1]}",
            "forwardagent": "no",
        }
        assert {name: found[name] for name in wanted} == wanted
        assert "proxycommand" not in found


def test_what_a_user_says_for_all_hosts_changes_nothing(
    ours: SshConfig, openssh: OpenSsh, tmp_path: Path
) -> None:
    user = UserConfig(tmp_path / "home" / ".ssh" / "config")
    user.path.parent.mkdir(parents=True)
    user.path.write_text(
        "Host *\n  ProxyJump bastion\n  ForwardAgent yes\n  StrictHostKeyChecking no\n"
        "  User root\n  ControlMaster auto\n"
    )
    ours.put(DEMO, hosts(openssh), openssh)
    user.install(ours, DAY)
    found = effective(user.path, "tpu.demo.1")
    assert "proxyjump" not in found
    names = ("forwardagent", "stricthostkeychecking", "user", "controlmaster")
    assert [found[name] for name in names] == ["no", "true", "ada", "false"]
    assert effective(user.path, "elsewhere")["user"] == "root"


def test_files_are_for_their_owner_alone(ours: SshConfig, openssh: OpenSsh) -> None:
    ours.put(DEMO, hosts(openssh), openssh)
    assert ours.directory.stat().st_mode & 0o777 == 0o700
    for file in ours.directory.iterdir():
        assert file.stat().st_mode & 0o077 == 0


def test_a_slice_takes_the_place_of_what_had_its_name(ours: SshConfig, openssh: OpenSsh) -> None:
    ours.put(DEMO, hosts(openssh, count=4), openssh)
    ours.put(DEMO, hosts(openssh, count=1), openssh)
    assert ours.path.read_text().count("Host ") == 1


def test_only_the_slice_that_is_gone_is_forgotten(ours: SshConfig, openssh: OpenSsh) -> None:
    other = replace(DEMO, name="other")
    ours.put(DEMO, hosts(openssh), openssh)
    ours.put(other, hosts(openssh, other), openssh)
    ours.forget(replace(DEMO, zone="us-central1-b"))
    assert "Host tpu.demo " in ours.path.read_text()
    ours.forget(DEMO)
    assert "demo" not in ours.path.read_text()
    assert not (ours.directory / "known_hosts.demo").exists()
    assert effective(ours.path, "tpu.other.1")["hostname"] == "10.0.0.1"


def test_forgetting_makes_no_files(ours: SshConfig) -> None:
    ours.forget(DEMO)
    assert not ours.directory.exists()


def test_a_host_of_the_user_s_own_that_is_named_as_a_slice_stays_what_it_was(
    ours: SshConfig, openssh: OpenSsh, tmp_path: Path
) -> None:
    user = UserConfig(tmp_path / "config")
    user.path.write_text("Host demo demo-1 own\n  HostName machine.example.com\n  User root\n")
    before = {name: effective(user.path, name) for name in ("demo", "demo-1", "own")}
    for found in (DEMO, replace(DEMO, name="own"), replace(DEMO, name="demo-1")):
        ours.put(found, hosts(openssh, found), openssh)
    user.install(ours, DAY)
    assert {name: effective(user.path, name) for name in before} == before
    known = {name: effective(user.path, name)["hostkeyalias"] for name in _NAMES}
    assert len(set(known.values())) == len(_NAMES), "no two workers share a name"


@pytest.mark.parametrize(
    "change",
    [
        {"user": "ada\n  ProxyCommand touch /tmp/canary"},
        {"user": "ada ProxyCommand"},
        {"address": "10.0.0.1\nHost *"},
        {"address": "$(touch canary)"},
    ],
)
def test_no_value_of_the_api_becomes_a_line_of_its_own(
    ours: SshConfig, openssh: OpenSsh, change: dict[str, str]
) -> None:
    with pytest.raises(BadInput):
        ours.put(DEMO, hosts(openssh, **change), openssh)
    assert not ours.path.exists()


def test_many_at_once_lose_no_slice(ours: SshConfig, openssh: OpenSsh) -> None:
    slices = [replace(DEMO, name=f"s{index}x") for index in range(8)]
    threads = [
        threading.Thread(target=ours.put, args=(slice_, hosts(openssh, slice_), openssh))
        for slice_ in slices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ours.path.read_text().count("# slice ") == 8


def test_installing_twice_adds_one_dated_line_and_removing_restores_every_byte(
    ours: SshConfig, tmp_path: Path
) -> None:
    user = UserConfig(tmp_path / "config")
    before = b"# mine, in latin-1: \xe9\n\nHost *\n  User ada\n"
    user.path.write_bytes(before)
    user.path.chmod(0o640)
    user.install(ours, DAY)
    user.install(ours, DAY)
    text = user.path.read_bytes().decode("latin-1")
    assert text.count("Include ") == 1
    assert text.startswith("# tpukit: its slices' workers; added 2023-11-14 by")
    assert user.includes(ours)
    assert user.path.stat().st_mode & 0o777 == 0o640
    assert user.uninstall()
    assert user.path.read_bytes() == before
    assert not user.uninstall()


def test_a_linked_configuration_stays_a_link(ours: SshConfig, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_text("Host *\n")
    user = UserConfig(tmp_path / "config")
    user.path.symlink_to(real)
    user.install(ours, DAY)
    assert user.path.is_symlink()
    assert "Include" in real.read_text()


def test_a_new_configuration_is_for_its_owner_alone(ours: SshConfig, tmp_path: Path) -> None:
    user = UserConfig(tmp_path / ".ssh" / "config")
    user.install(ours, DAY)
    assert user.path.stat().st_mode & 0o777 == 0o600
    assert user.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_path_that_include_would_expand_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot include"):
        UserConfig(tmp_path / "config").install(SshConfig(tmp_path / "a*b"), DAY)

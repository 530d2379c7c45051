"""Our key pair, published host keys, the known-hosts file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import asyncssh
import pytest

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.ssh.keys import ensure_key_pair, write_known_hosts

KINDS = ["ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ssh-rsa"]


def public(kind: str) -> str:
    line = asyncssh.generate_private_key(kind).export_public_key().decode()
    return " ".join(line.split()[:2])


def test_a_key_is_made_once_and_only_for_us(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = ensure_key_pair(tmp_path / "deep" / "keys")
    finally:
        os.umask(before)
    assert made.private_path.stat().st_mode & 0o7777 == 0o600
    assert made.private_path.parent.stat().st_mode & 0o7777 == 0o700
    assert made.public.startswith("ssh-ed25519 AAAA")
    assert made.public.endswith(" tpukit")
    assert ensure_key_pair(made.private_path.parent) == made
    assert os.listdir(made.private_path.parent) == [made.private_path.name]


def test_many_processes_at_once_end_with_one_key(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tpukit.ssh.keys import ensure_key_pair\n"
        "sys.stdin.read(); print(ensure_key_pair(Path(sys.argv[1])).public)"
    )
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "keys")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(8)
    ]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.close()
    answers = set()
    for starter in starters:
        assert starter.stdout is not None
        answers.add(starter.stdout.read())
        assert starter.wait(60) == 0
    assert len(answers) == 1
    assert len(os.listdir(tmp_path / "keys")) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused_with_what_to_type(tmp_path: Path, mode: int) -> None:
    path = ensure_key_pair(tmp_path / "my keys").private_path
    path.chmod(mode)
    with pytest.raises(SecurityRefusal) as refused:
        ensure_key_pair(tmp_path / "my keys")
    assert str(refused.value.fix) == f"chmod 600 '{path}'"
    assert f"mode {mode:04o}" in refused.value.reason


def test_a_folder_that_others_can_enter_is_closed_before_a_key_lies_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert ensure_key_pair(folder).private_path.exists()
    assert folder.stat().st_mode & 0o7777 == 0o700


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symbolic_link_in_place_of_the_key_is_refused(tmp_path: Path, dangling: bool) -> None:
    path = ensure_key_pair(tmp_path / "keys").private_path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / ("nowhere" if dangling else "elsewhere"))
    with pytest.raises(SecurityRefusal, match="symbolic link"):
        ensure_key_pair(tmp_path / "keys")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file away")
def test_a_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = ensure_key_pair(tmp_path / "keys").private_path
    os.chown(path, 65534, -1)
    with pytest.raises(SecurityRefusal, match="belongs to another user"):
        ensure_key_pair(tmp_path / "keys")


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_a_broken_key_file_is_named_and_kept(tmp_path: Path, content: bytes) -> None:
    path = ensure_key_pair(tmp_path / "keys").private_path
    path.write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read") as refused:
        ensure_key_pair(tmp_path / "keys")
    assert str(path) in refused.value.what
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot make the directory"):
        ensure_key_pair(tmp_path / "file" / "keys")


def test_a_host_key_of_each_type_is_written_on_a_line_of_its_own(tmp_path: Path) -> None:
    lines = [public(kind) for kind in KINDS]
    write_known_hosts(tmp_path / "known_hosts", [("demo-0", [f"{line}\n" for line in lines])])
    written = (tmp_path / "known_hosts").read_text()
    assert written.splitlines() == [f"demo-0 {line}" for line in lines]


GARBAGE = {
    "empty": ("ssh-ed25519", ""),
    "not base64": ("ssh-ed25519", "AAAA*"),
    "truncated": ("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIILGGbOiS"),
    "another type's body": ("ssh-ed25519", public("ssh-rsa").split()[1]),
    "unknown type": ("ssh-unknown", "AAAAC3NzaC1lZDI1NTE5"),
    "legacy type": ("ssh-dss", public("ssh-dss").split()[1]),
    "two words": ("ssh-ed25519", public("ssh-ed25519").split()[1] + " x"),
    "second line": ("ssh-ed25519", public("ssh-ed25519").split()[1] + "\n* ssh-rsa AAAA"),
    "not ascii": ("ssh-ed25519", "ÄÄÄ"),
}


def test_garbage_is_no_host_key(tmp_path: Path) -> None:
    for kind, value in GARBAGE.values():
        with pytest.raises(SecurityRefusal):
            write_known_hosts(tmp_path / "known_hosts", [("demo-0", [f"{kind} {value}"])])
    assert os.listdir(tmp_path) == []


def test_known_hosts_are_replaced_whole_and_private(tmp_path: Path) -> None:
    path, key, other = tmp_path / "known_hosts", public("ssh-ed25519"), public("ssh-rsa")
    path.write_text("old\n")
    path.chmod(0o644)
    write_known_hosts(path, [("demo-0", [key, other]), ("demo-1", [key])])
    assert path.read_text() == f"demo-0 {key}\ndemo-0 {other}\ndemo-1 {key}\n"
    assert path.stat().st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path) == ["known_hosts"]


def test_an_alias_that_means_more_than_one_worker_is_refused(tmp_path: Path) -> None:
    for alias in ["*", "a b", "a,b", "@cert-authority", "a\nb", "", "|1|x"]:
        with pytest.raises(BadInput):
            write_known_hosts(tmp_path / "known_hosts", [(alias, [public("ssh-ed25519")])])
        assert os.listdir(tmp_path) == []

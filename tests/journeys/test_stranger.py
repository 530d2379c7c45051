"""Another user of the machine: of token, state, shells and ports, nothing is to be had."""

from __future__ import annotations

import ipaddress
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.emulated_workers import make_key
from support.login_account import login_account

from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process.daemon import running

pytestmark = [pytest.mark.journey, pytest.mark.kills]

PROGRAM = Path(__file__).with_name("stranger_program.py")
PYTHON = "/usr/bin/python3"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home that everybody may enter: what is closed in it is closed by tpukit."""
    if os.geteuid() or not Path(PYTHON).exists():
        pytest.skip("only root can be another user: NOT checked by this run")
    folder = Path(tempfile.mkdtemp(prefix="tpukit-home-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def listeners(pid: int) -> list[tuple[str, int]]:
    found = psutil.Process(pid).net_connections("tcp")
    open_ones = [result.laddr for result in found if result.status == psutil.CONN_LISTEN]
    return sorted((at.ip.removeprefix("::ffff:"), at.port) for at in open_ones)


def test_a_stranger_learns_nothing_and_makes_us_listen_nowhere(home):
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TPUKIT_LOCAL": "1"}

    def tpukit(*words: str) -> str:
        line = [sys.executable, "-P", "-m", "tpukit", *words]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    tpukit("emulator", "start", "--impersonate", "--grpc-port", "0", "--create-seconds", "0.1")
    try:
        with login_account(home / "stranger") as account:
            assert account.made
            tpukit("create", "v3-8", "mine", "--quiet")
            tpukit("firewall", "apply", "mine")
            tpukit("ssh", "mine", "--", "echo private > note; sleep 1000 >/dev/null 2>&1 &")
            [directory] = home.rglob("emulator.json")
            look_around(directory.parent, account.name, home)
            assert tpukit("ssh", "mine", "--", "cat note").strip() == "private"
    finally:
        tpukit("emulator", "stop")


def look_around(directory: Path, stranger: str, home: Path) -> None:
    process = running(directory)
    assert process is not None
    before = listeners(process.pid)
    # HTTP, gRPC, TLS, the worker's SSH and its metadata server.
    assert len(before) >= 5
    assert all(ipaddress.ip_address(address).is_loopback for address, _ in before)
    inside = [child.pid for child in psutil.Process(process.guardian).children(recursive=True)]
    given = {"processes": [process.guardian, *inside], "listeners": before}
    had = as_user(stranger, [PYTHON, "-I", str(copied(home)), str(directory), json.dumps(given)])
    commands = {what: text for kind, what, text in had if kind == "command"}
    assert len(commands) == len(given["processes"])
    assert not [text for text in commands.values() if process.token in text]
    assert [each for each in had if each[0] != "command"] == []
    assert listeners(process.pid) == before
    log = EmulatorClient(process.url, process.token).log()
    assert not [entry for entry in log if "guess" in json.dumps(entry)]
    # Its own key opens no worker, whatever the name.
    key = make_key(home / "key")
    shutil.chown(key, stranger)
    ssh = [(address, port) for address, port in before if speaks_ssh(address, port)]
    assert ssh
    for user in (stranger, "root"):
        options = ["-i", str(key), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-F", "none"]
        options += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
        for address, port in ssh:
            line = ["ssh", *options, "-p", str(port), "-l", user, address, "id"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=60, user=stranger)
            assert (done.returncode, done.stdout) == (255, ""), done.stderr


def speaks_ssh(address: str, port: int) -> bool:
    line = f"exec 3<>/dev/tcp/{address}/{port}; head -c 4 <&3"
    done = subprocess.run(["timeout", "2", "bash", "-c", line], capture_output=True)
    return done.stdout == b"SSH-"


def copied(home: Path) -> Path:
    path = home / "program.py"
    path.write_text(PROGRAM.read_text())
    path.chmod(0o644)
    return path


def as_user(name: str, words: list[str]) -> Any:
    account = pwd.getpwnam(name)
    done = subprocess.run(
        words,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)

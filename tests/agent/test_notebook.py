"""The agent keeps Jupyter on a worker: on the loopback, for as long as its lease is renewed.

A small server takes Jupyter's place under its name; the real one runs in the journeys.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent_program import agent_words
from support.measured_python import measuring
from support.processes import eventually

from tpukit.ssh import agent_client

pytestmark = pytest.mark.process

SERVER = """
import os, socket, sys
options = dict(each.removeprefix("--ServerApp.").split("=") for each in sys.argv[1:])
open("served", "w").write(f"{os.getpid()} {options['ip']} {os.environ['JUPYTER_TOKEN']}")
server = socket.create_server((options["ip"], int(options["port"])))
while True:
    server.accept()
"""
Start = Callable[[float], "subprocess.Popen[str]"]
Ahead = Callable[["subprocess.Popen[str]", float], None]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The packages of an environment, and an interpreter for them beside it."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    measuring(environment / "bin/python", tmp_path / "python")
    return environment / f"lib/python3.{sys.version_info.minor}/site-packages"


@pytest.fixture
def start(tmp_path: Path, packages: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def call(seconds: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            agent_words(tmp_path, "serve_notebook", python=str(tmp_path / "python")),
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "TPUKIT_JOB": str(tmp_path),
                "JUPYTER_TOKEN": "hidden",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin
        process.stdin.write(json.dumps({"seconds": seconds}) + "\n")
        process.stdin.flush()
        started.append(process)
        return process

    yield call
    for process in started:
        process.terminate()  # it ends the server, which would keep the pipe open
        process.communicate(timeout=60)


@pytest.fixture
def jupyter(packages: Path) -> None:
    folder = packages / "jupyterlab"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(SERVER)


#: Python reads this before any program: a clock that a file sets forward, and that counts.
CLOCK = """
import time
real = time.monotonic
def shifted():
    with open("looks", "a") as file:
        file.write("x")
    with open("ahead") as file:
        return real() + float(file.read())
time.monotonic = shifted
"""


@pytest.fixture
def ahead(tmp_path: Path, packages: Path) -> Ahead:
    """Set the program's clock forward, and return when it has looked at it often, or has ended."""
    # Not sitecustomize: Debian's Python has one of its own.
    (packages / "clock_ahead.py").write_text(CLOCK)
    (packages / "clock_ahead.pth").write_text("import clock_ahead\n")
    (tmp_path / "ahead").write_text("0")

    def ahead(process: subprocess.Popen[str], seconds: float) -> None:
        (tmp_path / "new").write_text(str(seconds))
        (tmp_path / "new").replace(tmp_path / "ahead")
        before, looks = (tmp_path / "looks").stat().st_size, tmp_path / "looks"
        eventually(lambda: process.poll() is not None or looks.stat().st_size > before + 3)

    return ahead


def served(folder: Path) -> list[str]:
    return (folder / "served").read_text().split()


def said(process: subprocess.Popen[str]) -> agent_client.AgentAnswer:
    """Return the first answer."""
    assert process.stdout
    text = "".join(process.stdout.readline() for _ in range(2))
    (answer,) = agent_client.answers_in("worker 0", text.encode())
    return answer


@pytest.mark.usefixtures("jupyter")
def test_it_serves_on_the_loopback_and_ends_when_nobody_renews_the_lease(
    start: Start, tmp_path: Path, ahead: Ahead
) -> None:
    process = start(100)
    port = said(process).number("port")
    pid, address, token = served(tmp_path)
    assert (address, token) == ("127.0.0.1", "hidden")
    socket.create_connection((address, port)).close()
    ahead(process, 90)
    assert process.poll() is None
    ahead(process, 110)
    process.wait(60)
    assert not Path("/proc", pid).exists()


@pytest.mark.usefixtures("jupyter")
def test_each_renewal_begins_the_lease_anew(start: Start, tmp_path: Path, ahead: Ahead) -> None:
    process = start(100)
    said(process)
    for seconds in (80, 160):
        ahead(process, seconds)
        assert process.poll() is None, seconds
        os.utime(tmp_path / "lease", (seconds, seconds))
        ahead(process, seconds)  # it has seen that
        assert process.poll() is None, seconds
    ahead(process, 270)
    assert process.wait(60) is not None


@pytest.mark.usefixtures("jupyter")
def test_a_worker_whose_wall_clock_is_set_ends_nothing(
    start: Start, tmp_path: Path, ahead: Ahead
) -> None:
    process = start(100)
    said(process)
    os.utime(tmp_path / "lease", (1, 1))
    ahead(process, 0)
    assert process.poll() is None


@pytest.mark.usefixtures("jupyter")
def test_it_ends_when_it_is_asked_to(start: Start, tmp_path: Path) -> None:
    process = start(3600)
    said(process)
    process.terminate()
    process.wait(60)
    assert not Path("/proc", served(tmp_path)[0]).exists()


def test_without_jupyter_it_says_so(start: Start) -> None:
    process = start(3600)
    assert said(process).flag("absent")
    assert process.wait(60) == 0

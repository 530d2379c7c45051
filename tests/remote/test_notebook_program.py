"""The program that keeps Jupyter on a worker: on the loopback, for as long as its lease is renewed.

A small server takes Jupyter's place under its name; the real one runs in the journeys.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpukit.remote.program import program_text

SERVER = """
import os, socket, sys
options = dict(each.removeprefix("--ServerApp.").split("=") for each in sys.argv[1:])
open("served", "w").write(f"{os.getpid()} {options['ip']} {os.environ['JUPYTER_TOKEN']}")
server = socket.create_server((options["ip"], int(options["port"])))
while True:
    server.accept()
"""
Start = Callable[[float], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    (tmp_path / "serve.py").write_text(program_text("notebook.py"))
    started: list[subprocess.Popen[str]] = []

    def call(seconds: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "serve.py", str(seconds)],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(tmp_path / "packages"),
                "TPUKIT_JOB": str(tmp_path),
                "JUPYTER_TOKEN": "hidden",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def jupyter(tmp_path: Path) -> None:
    folder = tmp_path / "packages" / "jupyterlab"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(SERVER)


def served(folder: Path) -> list[str]:
    return (folder / "served").read_text().split()


def first_line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    return process.stdout.readline().split()


@pytest.mark.usefixtures("jupyter")
def test_it_serves_on_the_loopback_and_ends_when_nobody_renews_the_lease(
    start: Start, tmp_path: Path
) -> None:
    process = start(3600)
    word, port = first_line(process)
    assert (word, port.isdigit()) == ("tpukit-notebook", True)
    pid, address, token = served(tmp_path)
    assert (address, token) == ("127.0.0.1", "hidden")
    long_ago = time.time() - 4000
    os.utime(tmp_path / "lease", (long_ago, long_ago))
    process.wait(60)
    assert not Path("/proc", pid).exists()
    assert not (tmp_path / "lease").exists()


@pytest.mark.usefixtures("jupyter")
def test_it_goes_on_while_the_lease_is_renewed_and_ends_when_it_is_told_to(
    start: Start, tmp_path: Path
) -> None:
    process = start(3600)
    first_line(process)
    assert process.poll() is None
    process.terminate()
    process.wait(60)
    assert not Path("/proc", served(tmp_path)[0]).exists()
    assert not (tmp_path / "lease").exists()


def test_without_jupyter_it_says_so(start: Start) -> None:
    process = start(3600)
    assert first_line(process) == ["tpukit-notebook", "absent"]
    assert process.wait(60) == 69

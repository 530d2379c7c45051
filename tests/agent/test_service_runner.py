"""The agent runs a service on the loopback, and says where it answers once it does."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent_program import agent_words
from support.processes import eventually

pytestmark = pytest.mark.process

#: Answers 503 until the file `loaded` is there.
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open("asked", "a").write(self.path + "\\n")
        self.send_response(200 if os.path.exists("loaded") else 503)
        self.end_headers()
open("served", "w").write(str(os.getpid()))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def call(command: str, emulated: bool = True, **table: Any) -> subprocess.Popen[bytes]:
        request = {"command": command, "ready": "/live", "stand_in": "", "model": "m", **table}
        process = subprocess.Popen(
            agent_words(tmp_path, "run_service", emulated=emulated),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "TPUKIT_JOB": str(tmp_path)},
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()


def noted(folder: Path) -> dict[str, Any]:
    eventually((folder / "service").exists)
    known: dict[str, Any] = json.loads((folder / "service").read_text())
    return known


def test_it_is_ready_once_its_path_answers_200(start: Start, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    start("exec python3 server.py {port}")
    eventually(lambda: (tmp_path / "asked").exists() and asked(tmp_path) > 2)
    assert not (tmp_path / "service").exists()
    (tmp_path / "loaded").touch()
    known = noted(tmp_path)
    assert known["port"] > 0
    assert not known["stand_in"]
    assert {*(tmp_path / "asked").read_text().split()} == {"/live"}


def asked(folder: Path) -> int:
    return len((folder / "asked").read_text().splitlines())


def test_a_service_that_ends_leaves_its_status_and_is_never_ready(
    start: Start, tmp_path: Path
) -> None:
    assert start("exit 7").wait(60) == 7
    assert not (tmp_path / "service").exists()


def test_a_signal_to_the_run_ends_the_service_and_its_status_is_kept(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "loaded").touch()
    process = start("exec python3 server.py {port}")
    noted(tmp_path)
    os.killpg(process.pid, 15)
    assert process.wait(60) == 143


def test_only_an_emulated_worker_runs_the_stand_in(start: Start, tmp_path: Path) -> None:
    table = {"stand_in": "openai", "ready": "/health"}
    assert start("exit 7", emulated=False, **table).wait(60) == 7
    start("exit 7", **table)
    assert noted(tmp_path)["stand_in"] is True

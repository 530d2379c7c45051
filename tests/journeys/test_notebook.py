"""Jupyter on a worker: reached with its token alone, over losses, and gone with its command."""

from __future__ import annotations

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.command_line import Tpukit
from support.processes import eventually

pytestmark = pytest.mark.journey


@contextmanager
def opened(tpukit: Tpukit) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Open Jupyter and yield the command with the address that it prints."""
    words = ("--local", "notebook", "demo", "--port", "0", "--install")
    with tpukit.start(*words) as process:
        try:
            assert process.stdout
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def jupyters(tpukit: Tpukit) -> list[psutil.Process]:
    return [process for process in tpukit.processes() if "jupyterlab" in words_of(process)]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def runs(tpukit: Tpukit) -> list[str]:
    """Return the notebooks that the worker knows of."""
    jobs = tpukit.document("--local", "jobs", "demo")["jobs"]
    return [job["run"] for job in jobs if job["run"].startswith("notebook-")]


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read stderr up to a line with these words."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if words in line:
            return
    raise AssertionError(f"no line has {words!r}:\n{''.join(lines)}")


def test_jupyter_is_reached_with_its_token_alone_and_ends_with_the_command(
    tpukit: Tpukit,
) -> None:
    absent = tpukit.ends_with(3, "--local", "notebook", "demo", "--port", "0")
    assert "fix: add --install" in absent.stderr
    with opened(tpukit) as (process, url):
        address, _, token = url.partition("/?token=")
        assert len(token) == 32, url
        assert status_of(f"{address}/api/contents?token={token}") == 200
        assert status_of(f"{address}/api/contents") == 403
        assert len(jupyters(tpukit)) == 1
        assert not any(token in " ".join(words_of(process)) for process in psutil.process_iter())
    assert process.returncode == 130
    assert not jupyters(tpukit)
    # Its log and its token are gone from the worker as well.
    assert not runs(tpukit)


def test_jupyter_that_ends_by_itself_ends_the_command_which_says_how(tpukit: Tpukit) -> None:
    with opened(tpukit) as (process, _):
        (jupyter,) = jupyters(tpukit)
        jupyter.kill()
        _, told = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "error: Jupyter on demo worker 0 has ended (status 137)" in told
    assert not runs(tpukit)


def test_a_lost_connection_is_made_again_to_the_same_jupyter_whose_lease_goes_on(
    tpukit: Tpukit,
) -> None:
    emulator = tpukit.emulator
    with opened(tpukit) as (process, url):
        before = jupyters(tpukit)
        address, _, token = url.partition("/?token=")
        # An answer shows that there is a connection, which can be lost.
        assert status_of(f"{address}/api/contents?token={token}") == 200
        emulator.add_worker_fault({"node": "demo", "fault": "refusing"})
        try:
            read_until(process, "the connection is lost")
        finally:
            emulator.clear_worker_faults("demo")
        read_until(process, "connected again")
        assert status_of(f"{address}/api/contents?token={token}") == 200
        assert jupyters(tpukit) == before
        assert len(runs(tpukit)) == 1
        lease = lease_of(tpukit)
        renewed = lease.stat().st_mtime
        eventually(lambda: lease.stat().st_mtime > renewed, seconds=180)
    assert process.returncode == 130


def lease_of(tpukit: Tpukit) -> Path:
    (path,) = tpukit.home.rglob(".tpukit/jobs/run.notebook-*/lease")
    return path

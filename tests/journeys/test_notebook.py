"""Jupyter on a worker: asked for, reached with its token alone, and gone after Ctrl-C."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import psutil
import pytest

from journeys.command_line import Tpukit

pytestmark = pytest.mark.journey


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def command_lines() -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        found.append(" ".join(process.info["cmdline"] or ()))
    return found


def test_jupyter_is_reached_with_its_token_alone_and_ends_with_the_command(
    tpukit: Tpukit,
) -> None:
    absent = tpukit.ends_with(3, "--local", "notebook", "demo", "--port", "0")
    assert "fix: add --install" in absent.stderr
    with tpukit.start("--local", "notebook", "demo", "--port", "0", "--install") as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            address, _, token = url.partition("/?token=")
            assert len(token) == 32, url
            assert status_of(f"{address}/api/contents?token={token}") == 200
            assert status_of(f"{address}/api/contents") == 403
            lines = command_lines()
            assert any(f"{tpukit.home}" in line and "-m jupyterlab" in line for line in lines)
            assert not any(token in line for line in lines)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    assert process.returncode == 130
    assert not any(f"{tpukit.home}" in line and "jupyter" in line for line in command_lines())
    # Its log and its token are gone from the worker as well.
    jobs = json.loads(tpukit.succeeds("--local", "jobs", "demo", "--json").stdout)["jobs"]
    assert not [each for each in jobs if each["run"].startswith("notebook-")]

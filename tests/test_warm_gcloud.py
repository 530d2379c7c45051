"""A gcloud in a fork of the tests' server is what it is in a Python of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import warm_gcloud
from support.local_cloud import FakeClock, running_cloud

pytestmark = [pytest.mark.process, pytest.mark.gcloud]

TPU_VM = "compute tpus tpu-vm"
MADE = "--accelerator-type=v3-8 --version=tpu-ubuntu2204-base"
LINES = (
    f"{TPU_VM} create demo {MADE} --async",
    f"{TPU_VM} list",
    f"{TPU_VM} describe none",
    f"{TPU_VM} describe",
    "config set core/project other",
    # The interpreter, the folders, the variables and the search path that gcloud finds itself with.
    "info --format=json(basic,config.paths,config.properties,installation,env_proxy)",
)


def environment(around: Mapping[str, str]) -> dict[str, str]:
    """Return variables whose home is new, without those that Python reads as it starts."""
    home = Path(around["HOME"])
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    return {
        **{name: value for name, value in around.items() if not name.startswith("PYTHON")},
        "CLOUDSDK_CONFIG": str(home / "config"),
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }


def needs_a_server() -> dict[str, str]:
    found = warm_gcloud.environment()
    if not found:
        pytest.skip("no gcloud with a Python of its own: it is the one that is NOT forked")
    return found


def test_a_command_does_and_prints_what_it_does_alone(tmp_path: Path, clock: FakeClock) -> None:
    server = needs_a_server()
    with running_cloud(tmp_path, clock=clock) as cloud:  # the slice stays CREATING

        def told(given: Mapping[str, str]) -> list[tuple[str, int, str, str]]:
            variables = {**environment(cloud.environment()), **given}
            runs = [(line, run(line, variables)) for line in LINES]
            cloud.vanish("demo")
            return [
                (line, done.returncode, shown(done.stdout), shown(done.stderr))
                for line, done in runs
            ]

        alone = told({})
        assert [status for _, status, _, _ in alone] == [0, 0, 1, 2, 0, 0]
        for cold, warm in zip(alone, told(server), strict=True):
            assert warm == cold


def run(line: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["gcloud", *line.split()],
        env=variables,
        cwd=variables["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def shown(text: str) -> str:
    """Return a text without what differs from call to call."""
    return re.sub(r"operation-[\w-]+|\d{4}-\d\d-\d\dT[\d:.]+Z", "…", text)


def test_a_signal_ends_it_and_what_it_waits_for(tmp_path: Path) -> None:
    server = needs_a_server()
    around = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        variables = {
            **environment(around),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": url,
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
            "CLOUDSDK_CORE_PROJECT": "p",
        }
        (tmp_path / "token").write_text("secret")
        for number in (signal.SIGINT, signal.SIGKILL):
            alone, forked = (
                _ended_by(number, silent, {**variables, **given}) for given in ({}, server)
            )
            assert forked == alone
            assert alone[0] == -number


def _ended_by(
    number: signal.Signals, silent: socket.socket, variables: Mapping[str, str]
) -> tuple[int, str]:
    """Send a signal to a gcloud that waits for an answer; return its status and what it told."""
    with subprocess.Popen(
        ["gcloud", *TPU_VM.split(), "list", "--zone=z"],
        env=variables,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(300)
            assert connection.recv(1)
            process.send_signal(number)
            _, told = process.communicate(timeout=300)
            while connection.recv(1 << 16):  # until the one that asked has ended
                pass
        return process.returncode, told

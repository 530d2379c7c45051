"""The ways in which a worker cannot be reached, each told from the others."""

from __future__ import annotations

import shlex
import time

import asyncssh
import pytest
from support.command_line import Tpukit
from support.local_cloud import let_everybody_in
from support.stopped_state import stopped_state

pytestmark = pytest.mark.journey


def test_a_missing_firewall_rule_is_named_within_seconds_with_the_command_that_adds_it(
    tpukit: Tpukit,
) -> None:
    tpukit.succeeds("--local", "firewall", "remove", "demo")
    led = tpukit.document("emulator", "env")["environment"]
    let_everybody_in(led, allowed=False)
    started = time.monotonic()
    done = tpukit.ends_with(255, "--local", "ssh", "demo", "--", "true")
    assert time.monotonic() - started < 60, "a worker that does not answer costs 300 s"
    assert "no firewall rule of network default admits tcp:22 from 127.0.0.1" in done.stderr
    (fix,) = [line for line in done.stderr.splitlines() if line.startswith("fix: ")]
    program, *words = shlex.split(fix.removeprefix("fix: "))
    assert program == "tpukit"
    tpukit.succeeds(*words)
    tpukit.succeeds("--local", "ssh", "demo", "--", "true")
    let_everybody_in(led, allowed=True)


def test_a_worker_with_another_host_key_than_it_publishes_gets_no_command(tpukit: Tpukit) -> None:
    impostor = asyncssh.generate_private_key("ssh-ed25519").export_private_key().decode()
    command = ("--local", "ssh", "demo", "--", "mkdir ran")
    genuine = _present_host_key(tpukit, "demo", impostor)
    try:
        done = tpukit.ends_with(9, *command)
    finally:
        _present_host_key(tpukit, "demo", genuine)
    assert "is not demo worker 0" in done.stderr
    assert "our key was not used" in done.stderr
    # Had it run before, the folder would be there now and the command fail.
    tpukit.succeeds(*command)


def test_a_stopped_slice_says_so_and_is_reached_again_after_a_start(tpukit: Tpukit) -> None:
    tpukit.succeeds("--local", "stop", "demo")
    done = tpukit.ends_with(1, "--local", "ssh", "demo", "--", "true")
    assert "slice demo is STOPPED" in done.stderr
    assert "fix: tpukit --local start demo" in done.stderr
    tpukit.succeeds("--local", "start", "demo")
    assert tpukit.document("--local", "smoke", "demo")["smoke"]["ok"]


def _present_host_key(tpukit: Tpukit, name: str, private_key: str) -> str:
    """Give worker 0 a private host key while the emulator is stopped; return the one it had.

    What its guest attributes publish stays as it is.
    """
    tpukit.succeeds("emulator", "stop")
    (file,) = tpukit.home.rglob("state.db")
    with stopped_state(file.parent) as state:
        key = next(key for key in state.nodes if key.endswith(f"/{name}"))
        (worker,) = state.nodes[key]["workers"]
        changed = [{**worker, "host_private_key": private_key}]
        state.nodes[key] = {**state.nodes[key], "workers": changed}
    return str(worker["host_private_key"])

"""`tpukit run --keep` and `tpukit connections` against the real emulator."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from cli.conftest import Local

pytestmark = pytest.mark.process


@pytest.fixture
def crew(local: Local) -> Iterator[str]:
    """A slice of four workers whose rule admits us, and no connections when it is done."""
    name = "kept"
    assert local.run("create", "v3-32", name).status == 0
    assert local.run("firewall", "apply", name).status == 0
    yield name
    local.run("connections", "stop")
    local.run("delete", name, "--yes")


def addresses(local: Local) -> list[str]:
    document = local.run("connections", "list", "--json").document
    return sorted(each["address"] for each in document["connections"])


def test_a_second_run_needs_neither_the_api_nor_new_connections(local: Local, crew: str) -> None:
    first = local.run("run", crew, "--keep", "--", "echo $TPU_WORKER_ID")
    assert sorted(first.out.splitlines()) == [f"[{index}] {index}" for index in range(4)]
    kept = addresses(local)
    assert len(kept) == 4
    asked = len(local.run("emulator", "log", "--json").document["requests"])
    second = local.run("run", crew, "--keep", "--worker", "1-2", "--", "exit $TPU_WORKER_ID")
    assert second.status == 2
    assert "kept worker 2 exited with status 2" in second.err
    assert addresses(local) == kept
    assert len(local.run("emulator", "log", "--json").document["requests"]) == asked


def test_a_slice_made_anew_is_found_again(local: Local, crew: str) -> None:
    assert local.run("run", crew, "--keep", "--", "true").status == 0
    assert local.run("delete", crew, "--yes").status == 0
    gone = local.run("run", crew, "--keep", "--", "true")
    assert gone.status == 3
    assert local.run("create", "v3-32", crew).status == 0
    assert local.run("firewall", "apply", crew).status == 0
    again = local.run("run", crew, "--keep", "--", "echo x >>runs; cat runs")
    assert sorted(again.out.splitlines()) == ["[0] x", "[1] x", "[2] x", "[3] x"]


def test_ctrl_c_ends_a_kept_command_on_every_worker(local: Local, crew: str) -> None:
    running = local.start("run", crew, "--keep", "--", "echo started; sleep 1000")
    assert running.stdout
    assert [running.stdout.readline().partition(" ")[2] for _ in range(4)] == ["started\n"] * 4
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "the command was ended on every worker" in err


@pytest.mark.parametrize("flag", ["--stdin", "--fail-fast", "--internal-ips", "--detach"])
def test_what_cannot_be_kept_is_refused(local: Local, flag: str) -> None:
    done = local.run("run", "demo", "--keep", flag, "--", "true")
    done.says(2)
    assert "--keep" in done.err


def test_nothing_kept_is_said_so(local: Local) -> None:
    assert local.run("connections", "list", "--json").document["connections"] == []
    done = local.run("connections", "stop")
    assert (done.status, done.err) == (0, "no connections are kept\n")

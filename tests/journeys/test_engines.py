"""What workers are made of is the user's choice, and the same jobs run on all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.emulated_workers import needs_root

pytestmark = pytest.mark.journey


@pytest.fixture
def tpukit(tmp_path: Path) -> Iterator[Tpukit]:
    with Tpukit(tmp_path) as tpukit:
        yield tpukit


@needs_root
@pytest.mark.full_size
def test_up_of_two_workers_passes_where_each_has_a_machine_to_itself(tpukit: Tpukit) -> None:
    tpukit.succeeds("emulator", "start", "--engine", "namespaces", "--create-seconds", "0.2")
    done = tpukit.succeeds("--local", "up", "v4-16", "two", "--json", timeout=900)
    for worker in json.loads(done.stdout)["smoke"]["workers"]:
        assert (worker["devices"], worker["global_devices"], worker["processes"]) == (4, 8, 2)
        assert worker["global_sum"] == sum(range(1, 9))
    names = tpukit.succeeds("--local", "run", "two", "--worker", "all", "--", "hostname").stdout
    assert len({line.split()[1] for line in names.splitlines()}) == 2
    again = tpukit.document("--local", "provision", "two", "jax")
    assert again["provision"]["changes"] == 0


@pytest.mark.parametrize(
    "engine", ["auto", pytest.param("namespaces", marks=needs_root)], ids=["auto", "namespaces"]
)
def test_status_says_which_engine_runs_why_and_what_it_lacks(tpukit: Tpukit, engine: str) -> None:
    tpukit.succeeds("emulator", "start", "--engine", engine)
    emulator = tpukit.document("emulator", "status")["emulator"]
    assert emulator["engine"] == ("portable" if engine == "auto" else engine)
    assert emulator["reason"]
    shown = tpukit.succeeds("emulator", "status").stdout
    assert emulator["limits"]
    assert all(f"lacks\t{limit}" in shown for limit in emulator["limits"])


def test_an_engine_that_does_not_exist_is_refused_before_anything_starts(tpukit: Tpukit) -> None:
    done = tpukit("emulator", "start", "--engine", "docker")
    assert done.returncode == 2
    assert "docker" in done.stderr
    assert not tpukit.processes()


@needs_root
def test_stop_all_lists_every_emulator_of_the_user_and_asks(tmp_path: Path) -> None:
    """In a process namespace, so that no other emulator of this machine is found."""
    program = [sys.executable, "-P", "-m", "tpukit"]
    script = f"""
        set -e
        for home in one two; do TPUKIT_HOME={tmp_path}/$home "$@" emulator start; done >&2
        TPUKIT_HOME={tmp_path}/three "$@" emulator stop --all >&2 || echo "asked $?" >&2
        TPUKIT_HOME={tmp_path}/one "$@" emulator status >&2
        TPUKIT_HOME={tmp_path}/three "$@" emulator stop --all --yes --json
        TPUKIT_HOME={tmp_path}/one "$@" emulator status >&2 || echo "gone $?" >&2
    """
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*alone, "bash", "-c", script, "bash", *program],
        env={**os.environ, "CLOUDSDK_CONFIG": str(tmp_path / "gcloud")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["emulators"]) == 2
    for home in ("one", "two"):
        assert done.stderr.count(f"runs: {tmp_path}/{home}/state/emulator\n") == 2
    assert "needs an answer\nfix: add --yes\nasked 2\n" in done.stderr
    assert "gone 3" in done.stderr

"""Each exit code of the contract, reached by a command line."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import warm_tpukit
from support.local_cloud import ZONE, Cloud, running_cloud
from support.warm_tpukit import WarmTpukit

from tpukit.slices import naming

pytestmark = pytest.mark.process

Arrange = Callable[[Cloud], None]


def nothing(cloud: Cloud) -> None:
    """Leave the cloud empty."""


def a_slice(cloud: Cloud) -> None:
    cloud.tpu.create(naming.labelled(cloud.request(), "ada", "nonce"))


def another_s(cloud: Cloud) -> None:
    cloud.tpu.create(naming.labelled(cloud.request(), "eve", "nonce"))


def preempted(cloud: Cloud) -> None:
    a_slice(cloud)
    cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")


def fault(**rule: object) -> Arrange:
    return lambda cloud: cloud.fault(**rule)


#: What is there, what is typed, how it ends. 8, 130 and 143 have tests of their own below; 10, 255
#: and the status of a remote command need workers: tests/cli/test_local.py.
TABLE: list[tuple[int, Arrange, str]] = [
    (0, nothing, "list"),
    (0, a_slice, "describe demo"),
    (1, fault(method="nodes.list", status="FAILED_PRECONDITION", message="no"), "list"),
    (2, nothing, "list --zone nowhere"),
    (3, nothing, "describe demo"),
    (4, fault(preset="permission-denied", method="nodes.list"), "list"),
    (
        4,
        fault(method="nodes.list", status="UNAUTHENTICATED", message="no", probability=1.0),
        "list",
    ),
    (5, another_s, "create v3-8 demo"),
    (5, a_slice, "create v2-8 demo"),
    (6, fault(preset="stockout"), "create v3-8 demo"),
    (7, preempted, "create v3-8 demo"),
    (7, preempted, "ssh demo -- true"),
    (7, preempted, "wait demo"),
    (9, a_slice, "firewall apply demo --source-range 0.0.0.0/0"),
]


def run(cloud: Cloud, line: str) -> subprocess.CompletedProcess[str]:
    return warm_tpukit.run(line.split(), env=cloud.environment())


@pytest.mark.parametrize(
    ("code", "arrange", "line"), TABLE, ids=[f"{code} {line}" for code, _, line in TABLE]
)
def test_a_command_line_ends_with_its_code(
    prompt_cloud: Cloud, code: int, arrange: Arrange, line: str
) -> None:
    arrange(prompt_cloud)
    done = run(prompt_cloud, line)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("error:") == (code != 0)


def test_a_deadline_is_8_and_names_what_exists(tmp_path: Path) -> None:
    with running_cloud(tmp_path, create_seconds=600.0) as cloud:
        done = run(cloud, "create v3-8 demo --timeout 3s")
        assert done.returncode == 8
        assert f"exists: slice demo in {ZONE}, CREATING" in done.stderr
        assert f"fix: tpukit delete demo --zone {ZONE}" in done.stderr
        assert len(cloud.nodes()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_of_a_create_names_slice_and_command(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with running_cloud(tmp_path, create_seconds=600.0) as cloud:
        process = WarmTpukit(
            ["create", "v3-8", "demo"],
            env=cloud.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "CREATING" in line:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, said
        assert out == ""
        assert f"exists: slice demo in {ZONE}, CREATING" in err
        assert f"fix: tpukit delete demo --zone {ZONE}" in err
        assert len(cloud.nodes()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_where_nothing_was_made_is_told_too(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with running_cloud(tmp_path) as cloud:
        cloud.fault(method="nodes.list", kind="status", probability=1.0)
        process = WarmTpukit(
            ["list"],
            env=cloud.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        assert "again in" in process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code
        assert out == ""
        assert err.count("error:") == 1


@pytest.mark.parametrize("same", [True, False])
def test_two_processes_at_once_make_one_slice(prompt_cloud: Cloud, same: bool) -> None:
    kinds = ["v3-8", "v3-8" if same else "v2-8"]
    started = [
        WarmTpukit(
            ["create", kind, "demo"],
            env=prompt_cloud.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for kind in kinds
    ]
    errors_said = [process.communicate(timeout=300)[1] for process in started]
    codes = sorted(process.returncode for process in started)
    assert codes == ([0, 0] if same else [0, 5]), errors_said
    assert len(prompt_cloud.nodes()) == 1
    assert same or any("accelerator type is" in text for text in errors_said)

"""The guard ends its slice when the labels say so, and only on what it has just read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.agent_program import agent_words
from support.clocks import AwayClock
from support.local_cloud import (
    PROJECT,
    TOKEN,
    ZONE,
    Cloud,
    FakeClock,
    json_reply,
    running_cloud,
    scripted,
)
from support.measured_python import measuring
from support.processes import eventually
from support.slices import labelled

from tpukit.emulator.core.emulator_clock import parse_timestamp
from tpukit.slices.lifetime import CLAIM, EXPIRES, IDLE, moment, seconds_of
from tpukit.ssh.agent_client import AgentAnswer, answers_in

pytestmark = pytest.mark.process

#: Stands for systemctl: no test reaches the systemd of the machine that runs it, which machines'
#: tests have (tests/journeys/test_machines.py).
SYSTEMCTL = "#!/bin/sh\necho offline\n"
FAR = "2099-01-01t00-00-00z"


@contextmanager
def running(home: Path, words: Sequence[str], given: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program as on a worker of the cloud: with a metadata server, and without systemd."""
    tools = home / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "systemctl").write_text(SYSTEMCTL)
    (tools / "systemctl").chmod(0o755)
    with scripted(json_reply(200, {"access_token": TOKEN})) as metadata:
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(home),
            "GCE_METADATA_HOST": metadata.url.removeprefix("http://"),
        }
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        assert process.stdin
        process.stdin.write(given)
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@contextmanager
def guarding(home: Path, verb: str, request: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Have the agent do `verb`."""
    python = measuring(Path(sys.executable), home / "measured/python3")
    words = agent_words(home, verb, python=str(python))
    with running(home, words, json.dumps(request) + "\n") as process:
        yield process


def watched(cloud: Cloud, **other: str) -> dict[str, str]:
    """Return the request for the guard of the slice demo."""
    node = cloud.server.service.context.state.nodes[cloud.full_name("demo")]["node"]
    location = f"{cloud.url}/v2/projects/{PROJECT}/locations/{ZONE}"
    return {"location": location, "name": "demo", "id": node["id"], **other}


def ended(cloud: Cloud, home: Path, **other: str) -> str:
    """Let the guard run until it ends by itself, and return what it said."""
    with guarding(home, "guard", watched(cloud, **other)) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


def test_it_deletes_the_slice_when_its_time_is_up_and_then_ends(
    prompt_cloud: Cloud, tmp_path: Path
) -> None:
    soon = moment(prompt_cloud.clock.time() + 2)
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels={EXPIRES: soon}))
    assert "its time is up: deleting 200" in ended(prompt_cloud, tmp_path)
    assert prompt_cloud.nodes() == []


def test_it_deletes_a_slice_that_nobody_has_claimed(prompt_cloud: Cloud, tmp_path: Path) -> None:
    """The earlier of two ends counts."""
    labels = {CLAIM: moment(prompt_cloud.clock.time() + 2), EXPIRES: FAR}
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels=labels))
    assert "nobody claimed it: deleting 200" in ended(prompt_cloud, tmp_path)
    assert prompt_cloud.nodes() == []


@pytest.mark.parametrize("days", [2, -2])
def test_the_time_is_up_by_the_api_s_clock_where_the_worker_s_is_wrong(
    tmp_path: Path, days: int
) -> None:
    with running_cloud(tmp_path, 0.0, AwayClock(days * 86400.0)) as cloud:
        end = moment(cloud.clock.time() + 3)
        cloud.tpu.create(labelled(cloud, labels={EXPIRES: end}))
        assert "its time is up: deleting 200" in ended(cloud, tmp_path)
        (asked,) = cloud.calls("nodes.delete")
        assert parse_timestamp(asked["time"]) >= (seconds_of(end) or 0)
        assert cloud.nodes() == []


@pytest.mark.parametrize(
    ("label", "later"), [(EXPIRES, {EXPIRES: FAR}), (CLAIM, {})], ids=["put off", "claimed"]
)
def test_a_slice_whose_end_was_put_off_in_the_last_second_stays(
    cloud: Cloud, clock: FakeClock, tmp_path: Path, label: str, later: dict[str, str]
) -> None:
    """It reads the labels again when the first end has come."""
    end = clock.now + 2
    cloud.tpu.create(labelled(cloud, labels={label: moment(end)}))
    with guarding(tmp_path, "guard", watched(cloud)) as process:
        eventually(lambda: cloud.calls("nodes.get"))
        looks = len(cloud.calls("nodes.get"))
        cloud.change("demo", labels=later)
        clock.now = end + 1
        eventually(lambda: len(cloud.calls("nodes.get")) > looks)
        assert process.poll() is None
    assert cloud.nodes()
    assert not cloud.calls("nodes.delete")


@pytest.mark.slow
def test_devices_in_use_keep_it_and_idle_ones_end_it(prompt_cloud: Cloud, tmp_path: Path) -> None:
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels={EXPIRES: FAR, IDLE: "2"}))
    device = tmp_path / ".tpukit/emulated-devices/0"
    device.parent.mkdir(parents=True)
    with device.open("w"), guarding(tmp_path, "guard", watched(prompt_cloud)) as process:
        eventually(lambda: len(prompt_cloud.calls("nodes.get")) >= 5)
        assert process.poll() is None
        assert not prompt_cloud.calls("nodes.delete")
    assert "idle for 2 s: deleting 200" in ended(prompt_cloud, tmp_path)


def test_another_slice_of_its_name_is_none_of_its(prompt_cloud: Cloud, tmp_path: Path) -> None:
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels={EXPIRES: moment(0)}))
    assert ended(prompt_cloud, tmp_path, id="1") == ""
    assert prompt_cloud.nodes()


def test_what_cannot_be_read_or_deleted_is_said_and_tried_again(
    prompt_cloud: Cloud, tmp_path: Path
) -> None:
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels={EXPIRES: moment(0)}))
    for method in ("nodes.get", "nodes.delete"):
        prompt_cloud.fault(preset="permission-denied", method=method)
        with guarding(tmp_path, "guard", watched(prompt_cloud)) as process:
            assert process.stdout
            assert "403" in process.stdout.readline()
            assert process.poll() is None
    assert prompt_cloud.nodes()


def test_a_slice_of_a_queued_resource_goes_with_it(prompt_cloud: Cloud, tmp_path: Path) -> None:
    parent = f"projects/{PROJECT}/locations/{ZONE}"
    node = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    spec = {"parent": parent, "nodeId": "demo", "node": {**node, "labels": {EXPIRES: moment(0)}}}
    url = f"{prompt_cloud.url}/v2/{parent}/queuedResources?queuedResourceId=q"
    prompt_cloud.session.rest("ask", "POST", url, body={"tpu": {"nodeSpec": [spec]}})
    assert prompt_cloud.tpu.get(ZONE, "demo").queued_resource == "q"
    ended(prompt_cloud, tmp_path)
    assert prompt_cloud.tpu.list_queued("-").requests == ()


def installed(cloud: Cloud, home: Path) -> AgentAnswer:
    location = f"{cloud.url}/v2/projects/{PROJECT}/locations/{ZONE}"
    request = {"location": location, "name": "demo"}
    with guarding(home, "install_guard", request) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    (answer,) = answers_in("worker 0", out.encode())
    return answer


def test_it_is_installed_only_where_it_may_delete_and_says_so(
    prompt_cloud: Cloud, tmp_path: Path
) -> None:
    prompt_cloud.tpu.create(labelled(prompt_cloud))
    for method, name in (("nodes.delete", "tpukit-guard-probe-*"), ("nodes.get", "demo")):
        prompt_cloud.fault(preset="permission-denied", method=method, name=name)
        report = installed(prompt_cloud, tmp_path)
        assert (report.flag("may_delete"), report.text("kept_by")) == (False, "")
        assert report.text("why").startswith("403: ")
    prompt_cloud.fault(method="nodes.delete", kind="status", status="UNAVAILABLE")
    report = installed(prompt_cloud, tmp_path)
    assert (report.has("may_delete"), report.text("kept_by")) == (False, "")
    assert not (tmp_path / ".tpukit/guard").exists()


def installed_process(cloud: Cloud, home: Path) -> int:
    report = installed(cloud, home)
    assert (report.flag("may_delete"), report.text("kept_by")) == (True, "process")
    return int((home / ".tpukit/guard/pid").read_text())


def test_a_second_one_takes_the_place_of_the_first(prompt_cloud: Cloud, tmp_path: Path) -> None:
    prompt_cloud.tpu.create(labelled(prompt_cloud))
    pids = []
    try:
        pids.append(installed_process(prompt_cloud, tmp_path))
        pids.append(installed_process(prompt_cloud, tmp_path))
        eventually(lambda: not alive(pids[0]))
        assert alive(pids[1])
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_it_needs_no_agent_that_a_client_has_sent(prompt_cloud: Cloud, tmp_path: Path) -> None:
    """systemd starts it again after that one has gone: here we do."""
    prompt_cloud.tpu.create(labelled(prompt_cloud, labels={EXPIRES: FAR}))
    pid = installed_process(prompt_cloud, tmp_path)
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(tmp_path / ".tpukit/agent")
    prompt_cloud.change("demo", labels={EXPIRES: moment(0)})
    request = (tmp_path / ".tpukit/guard/request.json").read_text()
    with running(tmp_path, words, request) as process:
        assert "its time is up: deleting 200" in process.communicate(timeout=60)[0]
    assert prompt_cloud.nodes() == []


def alive(pid: int) -> bool:
    try:
        return ".tpukit/guard/" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False

"""tpukit and the real gcloud on one emulator: each works with what the other made."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support import warm_gcloud
from support.command_line import Finished, Tpukit

pytestmark = [pytest.mark.journey, pytest.mark.gcloud]

GCLOUD = shutil.which("gcloud")


@dataclass(frozen=True)
class Cloud:
    """An emulator, and both clients pointed at it by `tpukit emulator env` alone."""

    tpukit: Tpukit
    gcloud: Callable[..., Finished]  #: of `gcloud compute tpus tpu-vm`
    any_gcloud: Callable[..., Finished]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    if GCLOUD is None:
        pytest.skip("gcloud is not installed: its interplay with tpukit is NOT checked by this run")
    home = tmp_path_factory.mktemp("interplay")
    starter = Tpukit(home)
    starter.succeeds("emulator", "start", "--create-seconds", "1")
    try:
        # As a user does it: the shell evaluates the lines, and both programs inherit the variables.
        lines = starter.succeeds("emulator", "env").stdout
        printed = subprocess.run(
            ["bash", "-c", 'eval "$1" && env -0', "bash", lines],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        pairs = (pair.partition("=") for pair in printed.split("\0"))
        variables = {key: value for key, _, value in pairs if key.startswith("CLOUDSDK_")}
        gcloud = _gcloud(home, variables)
        yield Cloud(Tpukit(home, variables), partial(gcloud, "compute", "tpus", "tpu-vm"), gcloud)
    finally:
        starter("emulator", "stop")


def _gcloud(home: Path, variables: dict[str, str]) -> Callable[..., Finished]:
    environment = {
        **variables,
        "PATH": os.environ["PATH"],
        **warm_gcloud.environment(),
        "HOME": str(home),
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    }

    def call(*words: str) -> Finished:
        done = subprocess.run(
            [str(GCLOUD), *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done

    return call


def test_gcloud_lists_describes_and_deletes_the_slice_that_tpukit_made(cloud: Cloud) -> None:
    cloud.tpukit.succeeds("create", "v3-8", "ours")
    (row,) = cloud.gcloud("list", "--format=value(name,acceleratorType,state)").stdout.splitlines()
    assert row.split() == ["ours", "v3-8", "READY"]
    described = json.loads(cloud.gcloud("describe", "ours", "--format=json").stdout)
    assert described["labels"]["tpukit-managed"] == "1"
    cloud.gcloud("delete", "ours", "--quiet")
    cloud.tpukit.ends_with(3, "describe", "ours")


def test_gcloud_runs_a_command_over_ssh_on_the_slice_that_tpukit_made(cloud: Cloud) -> None:
    _needs_port_22()
    cloud.tpukit.succeeds("create", "v3-8", "ours")
    cloud.tpukit.succeeds("firewall", "apply", "ours")
    # The first ssh makes gcloud's key and reports it on the same stream.
    *_, theirs = cloud.gcloud("ssh", "ours", "--command=hostname").stdout.splitlines()
    # gcloud has put its key beside ours, and has not locked us out.
    assert theirs == cloud.tpukit.succeeds("ssh", "ours", "--", "hostname").stdout.strip()
    cloud.tpukit.succeeds("delete", "ours", "--yes")


def test_tpukit_lists_reaches_and_deletes_the_slice_that_gcloud_made(cloud: Cloud) -> None:
    spec = ("--accelerator-type=v3-8", "--version=tpu-ubuntu2204-base")
    cloud.gcloud("create", "theirs", *spec)
    (slice_,) = cloud.tpukit.document("list")["slices"]
    assert (slice_["name"], slice_["state"]) == ("theirs", "READY")
    refused = cloud.tpukit.ends_with(5, "up", "v3-8", "theirs")
    assert "was not made by tpukit" in refused.stderr
    cloud.tpukit.succeeds("firewall", "apply", "theirs")
    cloud.tpukit.succeeds("ssh", "theirs", "--", "true")
    cloud.tpukit.succeeds("delete", "theirs", "--yes")
    assert cloud.gcloud("list", "--format=value(name)").stdout.strip() == ""
    assert cloud.tpukit.document("firewall", "list")["rules"] == []


def test_gcloud_sees_and_deletes_all_that_a_search_a_race_a_reap_and_an_interrupt_leave(
    cloud: Cloud,
) -> None:
    tpukit, (full, free) = cloud.tpukit, ("us-central1-b", "us-central1-c")
    tpukit.succeeds("emulator", "fault", "add", "stockout", "--name", "sought", "--zone", full)
    tpukit.succeeds("create", "v2-8", "sought", "--zones", f"{full},{free}", "--keep-trying")
    racers = [tpukit.start("create", "v2-8", "raced") for _ in range(2)]
    for racer in racers:
        _, told = racer.communicate(timeout=120)
        assert racer.returncode == 0, told
    for name in ("dead", "alive"):
        tpukit.succeeds("create", "v2-8", name)
    tpukit.succeeds("emulator", "preempt", "dead")
    tpukit.succeeds("reap", "--yes")
    at_work = re.compile("CREATING|READY")
    status, told = tpukit.interrupted(
        signal.SIGINT, lambda line: bool(at_work.search(line)), "up", "v2-8", "cut"
    )
    assert status == 130, told
    tpukit.succeeds("queue", "create", "v2-8", "pair", "--count", "2")
    tpukit.succeeds("queue", "wait", "pair")

    columns = "value[separator=' '](name.segment(3),name.basename())"
    slices = cloud.gcloud("list", "--zone=-", f"--format={columns}").stdout.split("\n")[:-1]
    names = {line.split()[1] for line in slices}
    assert names == {"sought", "raced", "alive", "cut", "pair-0", "pair-1"}
    ours = tpukit.document("list")["slices"]
    assert f"{free} sought" in slices
    assert sorted(slices) == sorted(f"{our['zone']} {our['name']}" for our in ours)
    rules = cloud.any_gcloud(
        "compute", "firewall-rules", "list", "--filter=name~^tpukit-", "--format=value(name)"
    ).stdout.split()
    assert sorted(rules) == sorted(
        rule["name"] for rule in tpukit.document("firewall", "list")["rules"]
    )

    queued = ("alpha", "compute", "tpus", "queued-resources")
    zone = next(our["zone"] for our in ours if our["name"] == "pair-0")
    requests = cloud.any_gcloud(*queued, "list", "--zone=-", "--format=value(name.basename())")
    assert requests.stdout.split() == ["pair"]
    cloud.any_gcloud(*queued, "delete", "pair", f"--zone={zone}", "--force", "--quiet")
    for line in slices:
        place, name = line.split()
        if not name.startswith("pair-"):
            cloud.gcloud("delete", name, f"--zone={place}", "--quiet")
    if rules:
        cloud.any_gcloud("compute", "firewall-rules", "delete", *rules, "--quiet")
    assert tpukit.document("list")["slices"] == tpukit.document("queue", "list")["requests"] == []
    assert tpukit.document("firewall", "list")["rules"] == []


def test_gcloud_deletes_the_data_disk_that_reap_says_a_slice_has_left(cloud: Cloud) -> None:
    tpukit = cloud.tpukit
    zone = tpukit.document("config", "explain")["settings"]["zone"]["value"]
    for name in ("data", "other"):
        cloud.any_gcloud("compute", "disks", "create", name, f"--zone={zone}", "--size=10GB")
    project = tpukit.document("config", "explain")["settings"]["project"]["value"]
    disk = f"projects/{project}/zones/{zone}/disks/data"
    tpukit.succeeds("create", "v2-8", "with-disk", "--data-disk", disk)
    assert tpukit.document("reap", "--dry-run")["disks_left_over"] == []
    cloud.gcloud("delete", "with-disk", "--quiet")
    told = tpukit.succeeds("reap", "--yes", "--json")
    left = json.loads(told.stdout)
    assert left["disks_left_over"] == [{"source": disk, "size_gb": 10, "slice": "with-disk"}]
    assert f"data disk data ({zone}, 10 GB) of former slice with-disk is unused" in told.stderr
    (line,) = [each for each in left["next"] if each["arguments"][:1] == ["gcloud"]]
    cloud.any_gcloud(*line["arguments"][1:], "--quiet")
    assert tpukit.document("reap", "--yes")["disks_left_over"] == []
    cloud.any_gcloud("compute", "disks", "delete", "other", f"--zone={zone}", "--quiet")


def _needs_port_22() -> None:
    """gcloud knows no other port, and only an address of the worker's own has it free."""
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("127.77.255.1", 22))
    except OSError as error:
        pytest.skip(f"port 22 cannot be bound ({error}): gcloud's ssh is NOT checked by this run")

"""The real gcloud's ssh and scp, unmodified, to the emulator's workers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import warm_gcloud

from tpukit.emulator.process import daemon

pytestmark = [pytest.mark.process, pytest.mark.gcloud]

GCLOUD = shutil.which("gcloud")
Finished = subprocess.CompletedProcess[str]
Gcloud = Callable[..., Finished]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    mktemp = tmp_path_factory.mktemp("emulator")
    daemon.start(mktemp, create_seconds=0.4)
    yield mktemp
    daemon.stop(mktemp)


@pytest.fixture(scope="module")
def run(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    """Return a function that runs `gcloud compute …` in a home of its own."""
    if GCLOUD is None:
        pytest.skip("gcloud is not installed: conformance with gcloud ssh is NOT checked")
    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir(mode=0o700)
    environment = {
        "PATH": os.environ["PATH"],
        **warm_gcloud.environment(),
        "HOME": str(home),
        "CLOUDSDK_CONFIG": str(home / "config"),
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        **daemon.environment(directory),
    }

    def call(*words: str) -> Finished:
        return subprocess.run(
            [GCLOUD, "compute", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return call


@pytest.fixture(scope="module")
def four(run: Gcloud) -> str:
    """A slice of four workers that a firewall rule opens to this machine."""
    rule = ("--allow=tcp:22", "--source-ranges=127.0.0.0/8")
    assert run("firewall-rules", "create", "ssh", *rule).returncode == 0
    shape = ("--accelerator-type=v2-32", "--version=tpu-ubuntu2204-base")
    made = run("tpus", "tpu-vm", "create", "four", *shape)
    assert made.returncode == 0, made.stderr
    attributes = run("tpus", "tpu-vm", "get-guest-attributes", "four", "--query-path=ssh/port")
    if "port" in attributes.stdout:
        pytest.skip("this account may not bind port 22: gcloud ssh is NOT checked by this run")
    return "four"


def ssh(run: Gcloud, key: Path, *words: str) -> Finished:
    return run("tpus", "tpu-vm", "ssh", *words, f"--ssh-key-file={key}")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where gcloud makes its key at the first call."""
    return tmp_path_factory.mktemp("key") / "google_compute_engine"


def test_a_command_runs_on_every_worker_after_gcloud_has_sent_its_key(run, four, key):
    done = ssh(run, key, four, "--worker=all", "--command=echo worker $(hostname | sed s,.*-,,)")
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("worker ")]
    assert sorted(printed) == [f"worker {index}" for index in range(4)]
    assert "Propagating SSH public key to all TPU workers" in done.stderr


def test_the_exit_status_of_a_command_is_gclouds(run, four, key):
    assert ssh(run, key, four, "--worker=0", "--command=exit 7").returncode == 7


def test_gcloud_pins_an_instance_s_host_key_and_runs_a_command(run, four, key):
    made = run(
        *("instances", "create", "host", "--zone=us-east5-b", "--machine-type=ct6e-standard-1t"),
        "--image-project=ubuntu-os-accelerator-images",
        "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        *("--boot-disk-size=100GB", "--maintenance-policy=TERMINATE"),
        "--metadata=enable-guest-attributes=TRUE,enable-oslogin=FALSE",
    )
    assert made.returncode == 0, made.stderr
    command = (
        'hostname; curl -s -H "Metadata-Flavor: Google" '
        "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/accelerator-type"
    )
    words = ("ssh", "host", "--zone=us-east5-b", f"--ssh-key-file={key}", f"--command={command}")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["host", "v6e-1"]

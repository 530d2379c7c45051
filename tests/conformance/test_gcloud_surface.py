"""Every command of the real gcloud that is about TPU VMs, once, in GA and in alpha."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support import warm_gcloud

from conformance.required import GCLOUD, command_of, required
from tpukit.emulator.control_client import EmulatorClient
from tpukit.emulator.process import daemon
from tpukit.google.worker_identity import read_identity
from tpukit.ssh.dial import iap_command
from tpukit.ssh.target import Target

pytestmark = [pytest.mark.process, pytest.mark.gcloud]

SHAPE = ("--accelerator-type=v3-8", "--version=tpu-ubuntu2204-base")
QUEUED = ("--accelerator-type=v3-8", "--runtime-version=tpu-ubuntu2204-base")
VM, QR = ("tpus", "tpu-vm"), ("tpus", "queued-resources")

Finished = subprocess.CompletedProcess[str]


class Cloud:
    """gcloud of one track, an emulator with real workers, and a key that exists."""

    def __init__(self, track: str, directory: Path, home: Path, tally: Any) -> None:
        self.track, self.home, self._tally = track, home, tally
        self._directory = directory
        self.key = home / "key"
        self._environment = {
            "PATH": os.environ["PATH"],
            **warm_gcloud.environment(),
            "HOME": str(home),
            "CLOUDSDK_CONFIG": str(home / "config"),
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_CORE_ACCOUNT": "ada@example.com",
            **daemon.environment(directory),
        }
        # Two threads of `queued-resources ssh` would make the key at once, and fail.
        words = ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(self.key)]
        subprocess.run(words, check=True)

    def __call__(self, *words: str, status: int = 0, track: str = "") -> Finished:
        """Run `gcloud compute WORDS` in the cloud's track or another, and note it."""
        assert GCLOUD is not None
        track = track or self.track
        done = subprocess.run(
            [GCLOUD, *(["alpha"] if track == "alpha" else []), "compute", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
        client = f"gcloud {track}"
        self._tally.note(client, command_of(client, words))
        return done

    @contextmanager
    def slowed_down(self) -> Iterator[None]:
        """Let a second of the emulator last twenty of this machine's."""
        running = daemon.running(self._directory)
        assert running is not None
        emulator = EmulatorClient(running.url, running.token)
        emulator.move_clock(speed=0.05)
        try:
            yield
        finally:
            emulator.move_clock(speed=1.0)

    def guest_attributes(self, name: str) -> Any:
        """Return what each worker of a slice has published, as the API has it."""
        running = daemon.running(self._directory)
        assert running is not None
        node = f"projects/tpukit-local/locations/emulator-local1-a/nodes/{name}"
        request = Request(f"{running.url}/v2/{node}:getGuestAttributes", b"{}", method="POST")
        request.add_header("Authorization", f"Bearer {running.token}")
        request.add_header("Content-Type", "application/json")
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)["guestAttributes"]

    def ssh_key(self) -> str:
        return f"--ssh-key-file={self.key}"

    def described(self, *words: str) -> Any:
        return json.loads(self(*words, "--format=json").stdout)

    def needs(self, *words: str) -> None:
        """Skip the test where this track has no such command, by gcloud's own account."""
        if (f"gcloud {self.track}", " ".join(words)) not in required():
            pytest.skip(f"gcloud {self.track} has no command {' '.join(words)}")


@pytest.fixture(scope="module", params=["GA", "alpha"])
def cloud(request: Any, tmp_path_factory: pytest.TempPathFactory, tally: Any) -> Iterator[Cloud]:
    if GCLOUD is None:
        pytest.skip("gcloud is not installed: its surface is NOT checked by this run")
    directory = tmp_path_factory.mktemp("emulator")
    daemon.start(directory, create_seconds=0.4)
    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir(mode=0o700)
    yield Cloud(request.param, directory, home, tally)
    daemon.stop(directory)


@pytest.fixture(scope="module")
def node(cloud: Cloud) -> str:
    """A READY slice that a firewall rule opens to this machine."""
    rule = ("--allow=tcp:22", "--source-ranges=127.0.0.0/8,10.0.0.0/8")
    cloud("firewall-rules", "create", "ssh", *rule, track="GA")
    cloud(*VM, "create", "shared", *SHAPE, "--labels=a=b")
    attributes = cloud(*VM, "get-guest-attributes", "shared", "--query-path=ssh/port")
    if "port" in attributes.stdout:
        pytest.skip("this account may not bind port 22: gcloud's ssh is NOT checked by this run")
    return "shared"


@pytest.fixture(scope="module")
def queued(cloud: Cloud, node: str) -> str:
    """An ACTIVE queued resource of two nodes."""
    shape = ("--node-count=2", "--node-prefix=part", *QUEUED)
    assert "Created queued_resource [queued]." in cloud(*QR, "create", "queued", *shape).stderr
    for _ in range(600):
        if cloud.described(*QR, "describe", "queued")["state"]["state"] == "ACTIVE":
            return "queued"
        threading.Event().wait(0.1)
    raise AssertionError("the queued resource did not become ACTIVE")


def test_a_node_is_described_and_listed(cloud, node):
    described = cloud.described(*VM, "describe", node)
    assert (described["state"], described["health"]) == ("READY", "HEALTHY")
    assert described["networkEndpoints"][0]["accessConfig"]["externalIp"]
    rows = cloud(*VM, "list").stdout.splitlines()
    (row,) = [row.split() for row in rows if row.startswith(f"{node} ")]
    assert row[1:6] == ["emulator-local1-a", "v3-8", "V3", "2x2", "default"]
    assert row[-1] == "READY"


def test_guest_attributes(cloud, node):
    assert "ssh-ed25519" in cloud(*VM, "get-guest-attributes", node).stdout


def test_update(cloud, node):
    change = ("--update-labels=team=x", "--add-tags=more", "--description=words")
    cloud(*VM, "update", node, *change, "--update-metadata=k=v")
    described = cloud.described(*VM, "describe", node)
    assert (described["labels"], described["tags"]) == ({"a": "b", "team": "x"}, ["more"])
    assert described["metadata"]["k"] == "v"


def test_ssh(cloud, node):
    done = cloud(
        *VM, "ssh", node, cloud.ssh_key(), "--command=echo worker $(hostname | sed s,.*-,,)"
    )
    assert "worker 0" in done.stdout


def test_scp(cloud, node):
    there, back = cloud.home / "there", cloud.home / "back"
    there.write_text("hello\n")
    for source, target in ((str(there), f"{node}:there"), (f"{node}:there", str(back))):
        cloud(*VM, "scp", source, target, cloud.ssh_key())
    assert back.read_text() == "hello\n"


def test_a_node_is_stopped_started_and_deleted(cloud):
    cloud(*VM, "create", "brief", *SHAPE)
    for verb, state in (("stop", "STOPPED"), ("start", "READY")):
        cloud(*VM, verb, "brief")
        assert cloud.described(*VM, "describe", "brief")["state"] == state
    assert "Deleted tpu [brief]." in cloud(*VM, "delete", "brief").stderr


def test_maintenance_of_a_node(cloud, node):
    cloud.needs(*VM, "perform-maintenance")
    with cloud.slowed_down():  # the event lasts 10 s
        cloud(*VM, "simulate-maintenance-event", node, "--workers=0")
        assert cloud.described(*VM, "describe", node)["health"] == "UNHEALTHY_MAINTENANCE"
    cloud(*VM, "perform-maintenance", node)
    assert cloud.described(*VM, "describe", node)["health"] == "HEALTHY"


def test_disks_come_and_go(cloud, node):
    cloud.needs(*VM, "attach-disk")
    disk = "projects/tpukit-local/zones/emulator-local1-a/disks/d1"
    cloud(*VM, "attach-disk", node, f"--disk={disk}", "--mode=read-only")
    attached = cloud.described(*VM, "describe", node)["dataDisks"]
    assert [entry["sourceDisk"] for entry in attached] == [disk]
    cloud(*VM, "detach-disk", node, f"--disk={disk}")
    assert not cloud.described(*VM, "describe", node).get("dataDisks")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((*VM, "accelerator-types", "list"), "v3-8"),
        ((*VM, "accelerator-types", "describe", "v3-8"), "topology: 2x2"),
        ((*VM, "versions", "list"), "tpu-ubuntu2204-base"),
        ((*VM, "versions", "describe", "v2-alpha-tpuv6e"), "v2-alpha-tpuv6e"),
        ((*VM, "service-identity", "create"), "@cloud-tpu.iam.gserviceaccount.com"),
        (("tpus", "accelerator-types", "list"), "v3-8"),
        (("tpus", "accelerator-types", "describe", "v3-8"), "v3-8"),
        (("tpus", "versions", "list"), "2.17.0"),
        (("tpus", "versions", "describe", "2.17.0"), "2.17.0"),
        (("tpus", "topologies", "list"), "2x2"),
        (("tpus", "locations", "list"), "us-central1-a"),
        (("tpus", "locations", "describe", "us-central1-a"), "us-central1-a"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_can_be_read(cloud, words, text):
    assert text in cloud(*words).stdout


@pytest.mark.parametrize("verb", ["describe", "delete", "start", "stop", "reimage"])
def test_no_node_of_the_old_architecture_is_there(cloud, verb):
    version = ("--version=2.17.0",) if verb == "reimage" else ()
    assert "NOT_FOUND" in cloud("tpus", verb, "old", *version, status=1).stderr


def test_the_old_architecture_is_refused_in_the_words_of_the_service(cloud):
    old = ("--accelerator-type=v3-8", "--version=2.17.0")
    refused = cloud("tpus", "create", "old", *old, status=1).stderr
    assert "Please migrate to TPU VM Architecture" in refused
    assert "Listed 0 items." in cloud("tpus", "list").stderr


def test_os_login_gives_the_user_name_and_takes_the_key(cloud, node):
    cloud(*VM, "create", "login", *SHAPE, "--metadata=enable-oslogin=TRUE")
    words = (cloud.ssh_key(), "--command=echo $HOME")
    done = cloud(*VM, "ssh", "login", *words)
    assert done.stdout.strip().endswith("/ada_example_com")
    cloud(*VM, "delete", "login", "--async")


def test_reservations_are_listed(cloud):
    cloud.needs("tpus", "reservations", "list")
    assert "Listed 0 items." in cloud("tpus", "reservations", "list").stderr


def test_the_project_of_a_reservation_s_short_name_is_looked_up_here(cloud):
    if cloud.track == "GA":
        pytest.skip("gcloud GA has no short names of reservations")
    cloud(*VM, "create", "reserved", *SHAPE, "--reserved", "--reservation=r1", "--async")


def test_a_queued_resource_is_listed_with_its_nodes(cloud, queued):
    row = cloud(*QR, "list").stdout.splitlines()[1].split()
    # Recorded: the node of a request has no acceleratorConfig, so that two columns are empty.
    assert row == ["queued", "emulator-local1-a", "2", "v3-8", "ACTIVE"]


def test_iap_leads_gcloud_and_tpukit_to_the_same_name(cloud):
    """`--dry-run` prints the line of OpenSSH, with the tunnel as its ProxyCommand."""
    if cloud.track == "GA":
        pytest.skip("gcloud GA has no --tunnel-through-iap for TPU VMs")
    cloud(*VM, "create", "behind", *SHAPE, "--internal-ips")
    shown = cloud(*VM, "ssh", "behind", "--tunnel-through-iap", "--dry-run", cloud.ssh_key())
    _, _, theirs = shown.stdout.partition("start-iap-tunnel")
    (told,) = cloud.guest_attributes("behind")
    target = Target("", 0, "", 22, "", (), hostname=read_identity(0, told).hostname)
    ours = iap_command("p", target)
    name = ours[ours.index("start-iap-tunnel") + 1]
    assert re.fullmatch(r"t1v-n-[0-9a-f]{8}-w-0", name)
    assert theirs.split()[0].strip("'\"") == name
    table = cloud(*VM, "get-guest-attributes", "behind", "--query-path=deviceInfo/hostname").stdout
    # The table that gcloud printed for a real v5e: docs/reference/real-workers.md.
    assert [line.split() for line in table.splitlines()] == [
        ["NAMESPACE", "KEY", "WORKER_ID", "VALUE"],
        ["deviceInfo", "hostname", "0", name],
    ]


def test_queued_ssh_reaches_every_node(cloud, queued):
    every = ("--node=all", "--worker=all", "--command=hostname")
    done = cloud(*QR, "ssh", queued, *every, cloud.ssh_key())
    assert len({line for line in done.stdout.splitlines() if line.startswith("t1v-n-")}) == 2


def test_queued_scp_reaches_a_node(cloud, queued):
    there = cloud.home / "for-the-queue"
    there.write_text("hello\n")
    cloud(*QR, "scp", str(there), f"{queued}:there", cloud.ssh_key())


def test_maintenance_of_a_queued_resource(cloud, queued):
    cloud.needs(*QR, "perform-maintenance")
    cloud(*QR, "perform-maintenance", queued, "--node-names=part-0")


def test_a_queued_resource_is_reset_and_deleted_by_force(cloud, queued):
    node = ("--node-id=single", *QUEUED, "--spot", "--valid-until-duration=6h")
    cloud(*QR, "create", "once", *node)
    for _ in range(600):
        if cloud.described(*QR, "describe", "once")["state"]["state"] == "ACTIVE":
            break
        threading.Event().wait(0.1)
    cloud(*QR, "reset", "once")
    refused = cloud(*QR, "delete", "once", status=1).stderr
    assert "FAILED_PRECONDITION" in refused
    stopped = cloud(*VM, "stop", "single", status=1).stderr
    assert "StopNode is not supported for queued resources" in stopped
    assert "Deleted queued_resource [once]." in cloud(*QR, "delete", "once", "--force").stderr
    assert "NOT_FOUND" in cloud(*VM, "describe", "single", status=1).stderr


def test_firewall_rules(cloud):
    cloud.needs("firewall-rules", "create")  # alpha speaks another version of the API
    rule = ("--allow=tcp:22", "--source-ranges=203.0.113.7/32")
    cloud("firewall-rules", "create", "r1", *rule)
    cloud("firewall-rules", "update", "r1", "--source-ranges=198.51.100.0/24")
    assert cloud.described("firewall-rules", "describe", "r1")["sourceRanges"] == [
        "198.51.100.0/24"
    ]
    assert "r1" in cloud("firewall-rules", "list").stdout
    cloud("firewall-rules", "delete", "r1")

"""Clients as they are, on Google's own names: nothing tells them of an emulator but the machine.

/etc/hosts is another one in a mount namespace, as it would be in a container.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.pages import ROOT, blocks

from conformance.required import GCLOUD

pytestmark = pytest.mark.full_size

TPUKIT = (sys.executable, "-P", "-m", "tpukit")
PROGRAM = Path(__file__).with_name("real_names_program.py")


@dataclass
class Machine:
    """A machine on which Google's names lead to an emulator."""

    hosts: Path
    environment: Mapping[str, str]

    def run(self, *words: str) -> str:
        line = f'mount --bind {self.hosts} /etc/hosts && exec "$@"'
        inside = ["unshare", "--mount", "sh", "-c", line, "sh", *words]
        done = subprocess.run(
            inside, env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("needs a mount namespace and port 443: NOT checked by this run")
    home = tmp_path_factory.mktemp("home")
    bare = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    bare |= {"HOME": str(home), "CLOUDSDK_CONFIG": str(home / "gcloud")}
    bare |= {"https_proxy": "http://127.0.0.1:9"}  # a company's, which knows another Google

    def tpukit(*words: str) -> str:
        line = [*TPUKIT, "emulator", *words]
        return subprocess.run(
            line, env=bare, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    # google-cloud-tpu is asked over REST too, where it reads this type alone.
    tpukit("start", "--impersonate", "--create-seconds", "0.2", "--operation-metadata", "tpu")
    try:
        hosts = home / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{tpukit('hosts')}")
        variables = json.loads(tpukit("env", "--impersonate", "--json"))["environment"]
        yield Machine(hosts, {**bare, **variables})
    finally:
        tpukit("stop")


def test_google_s_python_clients_find_service_credentials_and_project(machine):
    said = json.loads(machine.run(sys.executable, "-P", str(PROGRAM)))
    assert said == {
        "project": "tpukit-local",
        "discovery v2": "READY",
        "discovery v2alpha1": "READY",
        "discovery by the service's own address": ["made-by-v2", "made-by-v2alpha1"],
        "compute links": [
            "https://www.googleapis.com/compute/v1/projects/tpukit-local/global/firewalls/r"
        ],
        "grpc": "READY",
        "rest": "READY",
        "grpc asyncio": 4,
    }


@pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed: it is NOT checked by this run")
def test_gcloud_makes_lists_and_deletes_a_slice(machine):
    tpu_vm = ("gcloud", "compute", "tpus", "tpu-vm")
    place = ("--zone=us-central1-a", "--quiet")
    machine.run(*tpu_vm, "create", "g", "--accelerator-type=v3-8", "--version=tpu-vm-base", *place)
    listed = machine.run(*tpu_vm, "list", *place, "--format=value(name,state)")
    assert "g\tREADY" in listed.splitlines()
    machine.run(
        *("gcloud", "compute", "firewall-rules", "create", "g", "--allow=tcp:22"),
        "--source-ranges=203.0.113.7/32",
    )
    machine.run(*tpu_vm, "delete", "g", *place)
    machine.run("gcloud", "services", "enable", "tpu.googleapis.com", "storage.googleapis.com")
    services = machine.run("gcloud", "services", "list", "--format=value(config.name)").split()
    assert {"tpu.googleapis.com", "storage.googleapis.com"} <= set(services)
    number = ("projects", "describe", "tpukit-local", "--format=value(projectNumber)")
    assert machine.run("gcloud", *number).strip().isdecimal()


def test_the_lines_of_the_how_to_lead_an_unmodified_client_to_the_emulator(tmp_path):
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("needs a mount namespace and port 443: NOT checked by this run")
    page = ROOT / "docs" / "how-to" / "test-your-ci.md"
    (lines,) = [
        body
        for language, body in blocks(page.read_text(encoding="utf-8"))
        if language == "sh" and "--impersonate" in body
    ]
    hosts, tools = tmp_path / "hosts", tmp_path / "bin"
    hosts.write_text("127.0.0.1 localhost\n")
    tools.mkdir()
    programs = {
        "tpukit": f'exec "{sys.executable}" -P -m tpukit "$@"',
        "sudo": 'exec "$@"',  # root needs none
    }
    for name, line in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    client = "from google.cloud import tpu_v2; import google.auth as a; p = a.default()[1]\n"
    client += "print(len(list(tpu_v2.TpuClient().list_nodes(parent=f'projects/{p}/locations/-'))))"
    script = (
        f"set -e\nmount --bind {hosts} /etc/hosts\ntrap 'tpukit emulator stop' EXIT\n{lines}"
        f'"{sys.executable}" -P -c "$CLIENT"\n'
    )
    environment = {"HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}", "CLIENT": client}
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "0" in done.stdout.split()


def test_tpukit_needs_no_override_either(machine):
    document = json.loads(machine.run(*TPUKIT, "list", "--zone=us-central1-a", "--json"))
    assert document["v"] == 1

"""What frameworks find on a worker: environment variables and its metadata server."""

from __future__ import annotations

import math
import os
import shutil
import sys
import urllib.error
import urllib.request
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.emulated_workers import NODE, EmulatedWorkers, emulated_workers, namespaces, needs_curl

from tpukit.accelerators import all_types
from tpukit.emulator.workers.engines.engine_choice import lacking
from tpukit.emulator.workers.inherited_environment import inherited_environment
from tpukit.emulator.workers.metadata_server import respond
from tpukit.emulator.workers.slice_facts import SliceFacts
from tpukit.emulator.workers.worker_host import WorkerRecord


def facts(accelerator_type: str, count: int) -> SliceFacts:
    workers = [WorkerRecord(i, f"127.77.0.{i}", 22, f"w-{i}", "", "") for i in range(count)]
    node = {"name": NODE, "acceleratorType": accelerator_type, "schedulingConfig": {"spot": True}}
    return SliceFacts.of(node, workers)


def bounds(slice_facts: SliceFacts) -> tuple[str, str]:
    """Return the bounds of the slice in workers, and of a worker in chips."""
    told = dict(slice_facts.tpu_env(0))
    return told["HOST_BOUNDS"], told["CHIPS_PER_HOST_BOUNDS"]


@pytest.mark.parametrize(
    ("accelerator_type", "count", "worker_bounds", "chip_bounds"),
    [
        ("v2-8", 1, "1,1,1", "2,2,1"),
        ("v3-32", 4, "2,2,1", "2,2,1"),
        ("v3-256", 32, "4,8,1", "2,2,1"),
        ("v4-8", 1, "1,1,1", "2,2,1"),
        ("v4-32", 4, "1,1,4", "2,2,1"),
        ("v4-256", 32, "2,2,8", "2,2,1"),
        ("v5litepod-1", 1, "1,1,1", "1,1,1"),
        ("v6e-1", 1, "1,1,1", "1,1,1"),
    ],
)
def test_bounds_are_those_that_torch_xla_and_jax_know(
    accelerator_type, count, worker_bounds, chip_bounds
):
    found = bounds(facts(accelerator_type, count))
    assert found == (worker_bounds, chip_bounds)


def test_the_workers_of_every_accelerator_type_cover_its_topology():
    for kind in all_types():
        workers, chips = (
            math.prod(int(axis) for axis in axes.split(","))
            for axes in bounds(facts(kind.name, kind.workers))
        )
        assert (kind.name, workers, chips) == (kind.name, kind.workers, kind.chips_per_worker)


def test_the_environment_counts_devices_as_jax_does():
    """Two a chip on v3, one on v4: jax-ml/jax:jax/_src/tpu_info.py."""
    counts = [
        facts(name, count).environment(0, "m")["TPUKIT_EMULATED_DEVICES"]
        for name, count in (("v3-8", 1), ("v4-8", 1), ("v5litepod-16", 4), ("v6e-1", 1))
    ]
    assert counts == ["8", "4", "4", "1"]


def test_with_an_unfit_runtime_version_a_worker_is_emulated_and_has_no_device():
    """pytorch/xla issue 9753: the slice becomes READY, and no driver is bound to the chips."""
    worker = WorkerRecord(0, "127.77.0.1", 22, "w", "", "")
    node = {"name": NODE, "acceleratorType": "v6e-1", "runtimeVersion": "tpu-ubuntu2204-base"}
    environment = SliceFacts.of(node, [worker]).environment(0, "m")
    assert environment["TPUKIT_EMULATED_DEVICES"] == "0"
    assert not {"JAX_PLATFORMS", "XLA_FLAGS", "PJRT_NPROC"} & {*environment}


def test_xla_has_threads_enough_for_steps_that_wait_for_each_other():
    """By itself one for each device: where eight steps waited in them, no other could go on."""
    environment = facts("v3-8", 1).environment(0, "m")
    assert environment["XLA_FLAGS"] == "--xla_force_host_platform_device_count=8"
    assert int(environment["PJRT_NPROC"]) >= 8 * 8


def test_slices_that_share_an_address_have_coordinators_of_their_own():
    """As on macOS; elsewhere each worker has its own address, and JAX's port is nobody else's."""

    def coordinator(address: str, *ports: int) -> str:
        workers = [WorkerRecord(i, address, port, "w", "", "") for i, port in enumerate(ports)]
        node = {"name": NODE, "acceleratorType": "v3-32"}
        found = SliceFacts.of(node, workers)
        each = [found.environment(index, "m") for index in range(len(workers))]
        (port,) = {one["JAX_COORDINATOR_PORT"] for one in each}
        assert {one["JAX_COORDINATOR_BIND_ADDRESS"] for one in each} == {f"{address}:{port}"}
        return port

    shared = [coordinator("127.0.0.1", first, 49151) for first in (2222, *range(49152, 65536, 64))]
    assert len(set(shared)) == len(shared)
    assert all(1024 <= int(port) < 49152 for port in shared)
    assert coordinator("127.77.0.1", 22, 22) == "8482"


def test_tpu_env_has_the_keys_that_libtpu_and_torch_xla_require():
    lines = facts("v4-32", 4).attributes(3)["tpu-env"].splitlines()
    found = dict(line.split(": ", 1) for line in lines)
    required = {"ALT", "CHIPS_PER_HOST_BOUNDS", "ENABLE_ICI_RESILIENCY", "HOST_BOUNDS", "WRAP"}
    required |= {"ENABLE_IMPROVED_REROUTE_ALLREDUCE_STRATEGY", "INJECT_SLICE_BUILDER_FAULT"}
    required |= {"TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"}
    assert required <= set(found)
    assert (found["ACCELERATOR_TYPE"], found["WORKER_ID"]) == ("'v4-32'", "'3'")
    assert found["PREEMPTIBLE"] == "'true'"


def test_each_worker_has_a_metadata_server_of_its_own(workers: EmulatedWorkers):
    workers.allocate(2)
    workers.boot("v4-16")
    script = "import os, urllib.request as u; b = 'http://' + os.environ['GCE_METADATA_IP']; "
    script += "r = u.Request(b + '/computeMetadata/v1/instance/attributes/agent-worker-number', "
    script += "headers={'Metadata-Flavor': 'Google'}); print(u.urlopen(r).read().decode())"
    assert [workers.output(f'python3 -c "{script}"', index=index) for index in (0, 1)] == ["0", "1"]


def test_metadata_without_the_header_is_forbidden(workers: EmulatedWorkers):
    workers.allocate()
    workers.boot()
    address = workers.output("echo $GCE_METADATA_IP")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://{address}/computeMetadata/v1/instance/zone", timeout=60)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /computeMetadata/v1/project/project-id HTTP/1.1", b"200"),
        ("GET /computeMetadata/v1/project/project-id?alt=text HTTP/1.1", b"200"),
        ("GET /computeMetadata/v1/instance/attributes/missing HTTP/1.1", b"404"),
        ("GET /elsewhere HTTP/1.1", b"404"),
        ("POST /computeMetadata/v1/project/project-id HTTP/1.1", b"405"),
        ("", b"405"),
    ],
)
def test_metadata_answers_as_gce_does(request_line, status):
    request = f"{request_line}\r\nmetadata-flavor: Google\r\n\r\n".encode()
    assert respond({"project/project-id": "p"}, request).split()[1] == status


def test_only_network_settings_pass_from_the_emulators_environment(tmp_path: Path):
    own = {
        "HTTPS_PROXY": "p",
        "no_proxy": "n",
        "SSL_CERT_FILE": "c",
        "PIP_INDEX_URL": "i",
        "UV_INDEX_URL": "u",
        "PIP_USER": "1",
        "UV_PROJECT_ENVIRONMENT": "/x",
        "VIRTUAL_ENV": "/v",
        "PYTHONPATH": "/p",
        "GOOGLE_APPLICATION_CREDENTIALS": "/key",
        "SSH_AUTH_SOCK": "/agent",
    }
    passed = inherited_environment(own, tmp_path)
    kept = {"HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "PIP_INDEX_URL", "UV_INDEX_URL"}
    assert set(passed) == kept | {"PIP_CACHE_DIR", "UV_CACHE_DIR"}


def test_the_accounts_pip_and_uv_configuration_is_named(tmp_path: Path):
    for name in ("pip/pip.conf", "uv/uv.toml"):
        (tmp_path / ".config" / name).parent.mkdir(parents=True)
        (tmp_path / ".config" / name).touch()
    passed = inherited_environment({}, tmp_path)
    assert passed["PIP_CONFIG_FILE"] == str(tmp_path / ".config/pip/pip.conf")
    assert passed["UV_CONFIG_FILE"] == str(tmp_path / ".config/uv/uv.toml")


def test_a_workers_environment_holds_nothing_of_the_emulators(
    workers: EmulatedWorkers, monkeypatch
):
    monkeypatch.setenv("SECRET_OF_EMULATOR", "x")
    workers.allocate()
    workers.boot()
    text = workers.output("env")
    assert "SECRET_OF_EMULATOR" not in text
    assert f"HOME={workers.home()}" in text.splitlines()
    assert not [line for line in text.splitlines() if line.startswith("XDG_")]


RECORDED = """ACCELERATOR_TYPE AGENT_BOOTSTRAP_IMAGE ALT CHIPS_PER_HOST_BOUNDS COLLECTD_DOCKER_URL
CONSUMER_PROJECT_ID CONSUMER_PROJECT_NUMBER ENABLE_ICI_RESILIENCY
ENABLE_IMPROVED_REROUTE_ALLREDUCE_STRATEGY ENABLE_MEMCACHED FLUENTD_DOCKER_URL FORWARD_LIBTPU_LOGS
HEALTH_AGENT_DOCKER_URL HOST_BOUNDS INFERENCE_MODE INJECT_SLICE_BUILDER_FAULT INTERNAL
MAINTENANCE_ACTION_FLAG MEMCACHED_DOCKER_URL MONITORING_AGENT_DOCKER_URL NODE_ID PREEMPTIBLE
RUNTIME_MONITOR_DOCKER_URL RUNTIME_VERSION RUNTIME_VERSION_CHANGER_DOCKER_URL SERVICE_NAME SOURCE
TOPOLOGY TPU_CHIPS_PER_PROCESS_BOUNDS TPU_PROCESS_BOUNDS TPU_RUNTIME_METRICS_PORTS TPU_TOPOLOGY_ALT
TPU_TOPOLOGY_WRAP TYPE UID USE_DIRECT_PATH VBARCONTROL_AGENT_DOCKER_URL WORKER_ID WRAP ZONE"""


def test_tpu_env_has_the_recorded_keys_in_their_order():
    """Of a v4-256: penghao-wu/cambrian:test_tpu.py."""
    pairs = [line.split(": ", 1) for line in facts("v4-32", 4).attributes(3)["tpu-env"].split("\n")]
    assert [key for key, _ in pairs] == RECORDED.split()
    found = dict(pairs)
    assert found["RUNTIME_VERSION"] == "'gcr.io/cloud-tpu-v2-images/fake_tensorflow:latest'"
    assert found["VBARCONTROL_AGENT_DOCKER_URL"] == "''"
    v6e = facts("v6e-4", 1).attributes(0)["tpu-env"]
    assert "VBARCONTROL_AGENT_DOCKER_URL: 'gcr.io/cloud-tpu-v2-images/vbar_control_agent:" in v6e


def test_no_variable_of_a_worker_tells_of_its_slice(workers: EmulatedWorkers):
    """As on a v5p-8: docs/reference/real-workers.md. A command asks the metadata server."""
    workers.allocate(2)
    workers.boot("v4-16")
    lines = workers.output("env", index=1).splitlines()
    assert not [line for line in lines if line.startswith(("TPU_", "MEGASCALE_"))]
    assert "CLOUDSDK_PYTHON=/usr/bin/python3" in lines


def test_endpoints_are_in_the_order_of_the_workers_and_not_of_their_addresses(
    workers: EmulatedWorkers,
):
    """JAX takes the first for worker 0's: jax/_src/clusters/cloud_tpu_cluster.py."""
    workers.allocate(16)
    addresses = [record.address for record in workers.records]
    node = {"name": NODE, "acceleratorType": "v4-128"}
    text = SliceFacts.of(node, workers.records).attributes(3)["worker-network-endpoints"]
    assert text.split(",") == [f"unknown:unknown:{address}" for address in addresses]
    assert addresses != sorted(addresses, key=ip_address)


def test_google_s_runtime_has_the_same_settings_in_a_file(tmp_path):
    """In double quotes there: WandLZhang/ai-infra-demo-proteins:scripts/boltz2_node_setup.sh."""
    if lacks := lacking(sys.platform, os.geteuid(), shutil.which):
        pytest.skip(f"the namespaces engine needs {lacks}: /home/tpu-runtime is NOT checked")
    with emulated_workers(tmp_path, namespaces) as workers:
        workers.allocate()
        workers.boot("v6e-4")
        lines = workers.output("cat /home/tpu-runtime/tpu-env").splitlines()
    assert [line.partition("=")[0] for line in lines] == RECORDED.split()
    assert 'ACCELERATOR_TYPE="v6e-4"' in lines


@needs_curl
def test_an_instance_s_metadata_server_has_its_present_items_alone(workers):
    name = "projects/p/zones/us-central1-a/instances/demo"
    workers.trust(workers.host.allocate(name, 1, "demo"))
    workers.rules.items = {"accelerator-type": "v6e-1", "a": "b"}
    workers.boot("v6e-1", name)
    ask = 'curl -s -H "Metadata-Flavor: Google" http://$GCE_METADATA_HOST/computeMetadata/v1'
    names = f"{ask}/instance/attributes/"
    assert workers.output(names).split() == ["a", "accelerator-type"]
    assert workers.output(f"{ask}/instance/hostname") == "demo.us-central1-a.c.p.internal"
    workers.rules.items = {"a": "b"}
    assert workers.output(names).split() == ["a"]


def test_instances_of_the_same_name_share_no_files(workers):
    places = [f"projects/p/zones/{zone}/instances/demo" for zone in ("a", "b")]
    records = [workers.host.allocate(place, 1, "demo")[0] for place in places]
    assert {record.hostname for record in records} == {"demo"}
    assert len({record.folder_name for record in records}) == 2


def test_hosts_of_compute_engine_alone_have_their_devices():
    for name, devices, chips in (("v5p-2", 1, "1,1,1"), ("v7x-8", 8, "2,2,1")):
        node = {"name": "projects/p/zones/z/instances/i", "acceleratorType": name}
        found = SliceFacts.of(node, [facts("v6e-1", 1).workers[0]])
        assert (found.devices, bounds(found)) == (devices, ("1,1,1", chips))

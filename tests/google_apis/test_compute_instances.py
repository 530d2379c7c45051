"""Slices of one worker through Compute Engine, and the provider for both of Google's APIs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.local_cloud import PROJECT, Cloud, json_reply, scripted

from tpukit.errors import BadInput, NoCapacity, NotFound, QuotaExceeded, TpukitError
from tpukit.google.compute_instances import ComputeInstances
from tpukit.google.compute_machines import MACHINES
from tpukit.google.instance_json import GOOGLE_ITEMS, insert_fields, request_id, utc
from tpukit.google.node_json import MAX_RUN
from tpukit.google.provider import Doubtful
from tpukit.google.roads import Roads
from tpukit.models import ApiCall, SliceChange, SliceRequest
from tpukit.slices.losses import loss

ZONE = "us-east5-b"
FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
REQUEST = SliceRequest(
    *("demo", PROJECT, ZONE, "v6e-8", FAMILY),
    api="compute",
    labels={"tpukit-nonce": "abc", "tpukit-created": "2026-11-27t00-00-00z"},
    metadata={"ssh-keys": "ada:ssh-ed25519 AAAA"},
    tags=("tpukit-demo",),
)
#: As a console export of a ct6e-standard-1t showed them, 2026-08-26.
ITEMS = [
    {"key": "accelerator-type", "value": "v6e-8"},
    {"key": "agent-worker-number", "value": "0"},
    {"key": "tpu-env", "value": "TPU_WORKER_ID: '0'"},
    {"key": "worker-network-endpoints", "value": "demo"},
    {"key": "ssh-keys", "value": "ada:ssh-ed25519 AAAA"},
]
INSTANCE: dict[str, Any] = {
    "name": "demo",
    "id": "123",
    "status": "RUNNING",
    "zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}",
    "machineType": f"projects/{PROJECT}/zones/{ZONE}/machineTypes/ct6e-standard-8t",
    "labels": {"a": "b", "tpukit-image": FAMILY},
    "labelFingerprint": "mark-l",
    "tags": {"items": ["t"], "fingerprint": "mark-t"},
    "metadata": {"items": ITEMS, "fingerprint": "mark-m"},
    "creationTimestamp": "2026-11-26T16:00:00.123-08:00",
    "scheduling": {"provisioningModel": "SPOT"},
    "networkInterfaces": [
        {
            "network": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/global/networks/n",
            "networkIP": "10.0.0.2",
            "accessConfigs": [{"natIP": "192.0.2.1"}],
        }
    ],
}
DONE = {"name": "operation-1", "status": "DONE"}


def compute(cloud: Cloud, url: str = "") -> ComputeInstances:
    return ComputeInstances(cloud.session.once(), PROJECT, url or f"{cloud.url}/compute/v1/")


def test_an_instance_is_a_slice_of_one_worker(cloud: Cloud) -> None:
    with scripted(json_reply(200, INSTANCE)) as server:
        slice_ = compute(cloud, server.url).get(ZONE, "demo")
    assert (slice_.api, slice_.state, slice_.id) == ("compute", "READY", "123")
    assert (slice_.accelerator_type, slice_.runtime_version) == ("v6e-8", FAMILY)
    assert (slice_.provisioning, slice_.network, slice_.network_project) == ("spot", "n", "")
    assert [(one.internal_address, one.external_address) for one in slice_.workers] == [
        ("10.0.0.2", "192.0.2.1")
    ]
    assert slice_.created == "2026-11-27T00:00:00.123000Z"
    assert slice_.ready


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", "CREATING"),
        ("PROVISIONING", "CREATING"),
        ("STAGING", "CREATING"),
        ("STOPPING", "STOPPING"),
        ("REPAIRING", "REPAIRING"),
    ],
)
def test_the_states_of_an_instance_are_those_of_a_slice(
    cloud: Cloud, status: str, state: str
) -> None:
    with scripted(json_reply(200, {**INSTANCE, "status": status})) as server:
        assert compute(cloud, server.url).get(ZONE, "demo").state == state


@pytest.mark.parametrize(
    ("kinds", "status", "state"),
    [
        ((), "TERMINATED", "STOPPED"),
        (("compute.instances.preempted",), "TERMINATED", "PREEMPTED"),
        (("compute.instances.preempted", "stop"), "TERMINATED", "STOPPED"),
        ((), "STOPPING", "STOPPING"),
        (("compute.instances.preempted",), "STOPPING", "PREEMPTED"),
        (("compute.instances.preempted", "stop"), "STOPPING", "STOPPING"),
        (("compute.instances.preempted", "delete"), "STOPPING", "STOPPING"),
        (("compute.instances.preempted",), "REPAIRING", "REPAIRING"),
    ],
)
def test_a_spot_instance_that_ends_was_preempted_if_google_ended_it(
    cloud: Cloud, kinds: tuple[str, ...], status: str, state: str
) -> None:
    operations = [
        {"operationType": kind, "targetId": "123", "insertTime": f"2026-11-27T0{hour}:00:00Z"}
        for hour, kind in enumerate(kinds)
    ]
    stopped = json_reply(200, {**INSTANCE, "status": status})
    with scripted(stopped, json_reply(200, {"items": operations})) as server:
        assert compute(cloud, server.url).get(ZONE, "demo").state == state


def test_a_machine_without_tpus_is_no_slice(cloud: Cloud) -> None:
    other = {**INSTANCE, "machineType": "zones/z/machineTypes/n2-standard-4"}
    with scripted(json_reply(200, other)) as server, pytest.raises(NotFound):
        compute(cloud, server.url).get(ZONE, "demo")


def test_a_create_names_everything_that_a_host_needs() -> None:
    body = insert_fields(REQUEST)
    (boot,) = body["disks"]
    assert int(boot["initializeParams"]["diskSizeGb"]) >= 100
    assert boot["initializeParams"]["diskType"].endswith("/hyperdisk-balanced")
    assert boot["initializeParams"]["sourceImage"].endswith(f"/family/{FAMILY}")
    assert body["networkInterfaces"][0]["nicType"] == "GVNIC"
    assert body["advancedMachineFeatures"] == {"threadsPerCore": 1}
    assert body["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert body["shieldedInstanceConfig"] == {"enableSecureBoot": False}
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert items["enable-guest-attributes"] == "TRUE"
    assert items["enable-oslogin"] == "FALSE"
    assert items["ssh-keys"] == "ada:ssh-ed25519 AAAA"


def test_flex_start_has_its_durations_and_needs_no_queue() -> None:
    flex = replace(REQUEST, provisioning="flex-start", labels={MAX_RUN: "3600"})
    assert not flex.queue_only
    body = insert_fields(flex)
    assert body["scheduling"]["provisioningModel"] == "FLEX_START"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": "3600"}
    assert body["params"]["requestValidForDuration"]


def test_a_repeated_create_has_the_same_request_id_and_a_new_attempt_another() -> None:
    assert request_id(REQUEST, "1") == request_id(REQUEST, "1") != request_id(REQUEST, "2")
    other = replace(REQUEST, labels={"tpukit-nonce": "def"})
    assert request_id(REQUEST, "1") != request_id(other, "1")


def test_types_of_several_workers_are_refused() -> None:
    with pytest.raises(BadInput, match="v6e-16"):
        insert_fields(replace(REQUEST, accelerator_type="v6e-16"))


def test_each_write_has_a_request_id(cloud: Cloud) -> None:
    noted: list[ApiCall] = []
    provider = compute(cloud).planning(noted.append)
    provider.create(REQUEST)
    for act in (provider.delete, provider.start, provider.stop):
        act(ZONE, "demo")
    assert all("?requestId=" in call.url for call in noted)
    assert len({call.url.partition("=")[2] for call in noted}) == 4


def test_an_update_writes_back_the_items_of_google_with_the_fingerprint(cloud: Cloud) -> None:
    change = SliceChange(metadata={"new": "item"}, labels={"c": "d"}, tags=("u",))
    with scripted(json_reply(200, INSTANCE), json_reply(200, DONE)) as server:
        operation = compute(cloud, server.url).update(ZONE, "demo", change)
    assert operation == f"projects/{PROJECT}/zones/{ZONE}/operations/operation-1"
    labels, tags, metadata = (json.loads(body) for body in server.bodies[1:])
    assert labels == {"labels": {"c": "d"}, "labelFingerprint": "mark-l"}
    assert tags == {"items": ["u"], "fingerprint": "mark-t"}
    assert metadata["fingerprint"] == "mark-m"
    assert {item["key"] for item in metadata["items"]} == {"new", *GOOGLE_ITEMS}


def test_a_write_that_came_in_between_makes_an_update_doubtful(cloud: Cloud) -> None:
    refusal = {
        "error": {"code": 412, "message": "Supplied fingerprint does not match", "errors": []}
    }
    with (
        scripted(json_reply(200, INSTANCE), json_reply(412, refusal)) as server,
        pytest.raises(Doubtful),
    ):
        compute(cloud, server.url).update(ZONE, "demo", SliceChange(tags=("u",)))


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "The zone does not have enough resources available",
            NoCapacity,
        ),
        ("QUOTA_EXCEEDED", "Quota 'HDB_TOTAL_GB' exceeded.  Limit: 40960.0", QuotaExceeded),
    ],
)
def test_a_failed_operation_says_why(
    cloud: Cloud, code: str, message: str, kind: type[TpukitError]
) -> None:
    failed = {**DONE, "error": {"errors": [{"code": code, "message": message}]}}
    name = f"projects/{PROJECT}/zones/{ZONE}/operations/operation-1"
    with scripted(json_reply(200, failed)) as server:
        assert isinstance(compute(cloud, server.url).failure(name, "create slice demo"), kind)
    assert server.seen == [("GET", f"/compute/v1/{name}")]


def test_v5e_is_refused_with_the_way_that_works(cloud: Cloud) -> None:
    said = "This user agent is not allowed to use the machine type [ct5lp-hightpu-1t]."
    refusal = {"error": {"code": 403, "message": said, "errors": []}}
    with scripted(json_reply(403, refusal)) as server, pytest.raises(BadInput) as caught:
        compute(cloud, server.url).create(REQUEST)
    assert "Cloud TPU API" in caught.value.why


def test_both_apis_are_listed_and_a_name_in_both_is_refused(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request("old", zone=ZONE, accelerator_type="v6e-4"))
    listed = {"items": {f"zones/{ZONE}": {"instances": [INSTANCE]}}}
    with scripted(json_reply(200, listed)) as server:
        both = Roads(cloud.tpu, compute(cloud, server.url)).list("-")
    assert [(slice_.name, slice_.api) for slice_ in both.slices] == [
        ("old", "tpu"),
        ("demo", "compute"),
    ]
    with scripted(json_reply(200, {**INSTANCE, "name": "old"})) as server:
        roads = Roads(cloud.tpu, compute(cloud, server.url))
        with pytest.raises(BadInput, match="in both APIs"):
            roads.delete(ZONE, "old")
    assert cloud.tpu.get(ZONE, "old").state != "DELETING"


def test_an_odd_instance_is_listed_as_far_as_it_is_readable(cloud: Cloud) -> None:
    odd = {**INSTANCE, "name": "odd", "networkInterfaces": "none", "creationTimestamp": "soon"}
    machine = {**INSTANCE, "name": "other", "machineType": 7}
    page = {"items": {f"zones/{ZONE}": {"instances": [odd, machine, INSTANCE]}}}
    with scripted(json_reply(200, page)) as server:
        listed = compute(cloud, server.url).list("-").slices
    assert [slice_.name for slice_ in listed] == ["odd", "demo"]
    assert listed[0].unreadable == ("creationTimestamp", "networkInterfaces")
    assert (listed[0].zone, listed[0].state) == (ZONE, "READY")


def test_a_denied_compute_engine_hides_no_slice_of_the_other_api(cloud: Cloud) -> None:
    denied = {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no instances.list"}}
    cloud.tpu.create(cloud.request())
    with scripted(json_reply(403, denied)) as server:
        listed = Roads(cloud.tpu, compute(cloud, server.url)).list("-")
    assert [slice_.name for slice_ in listed.slices] == ["demo"]
    assert listed.unreachable == ("Compute Engine",)


def test_a_lost_slice_is_made_again_in_its_own_api(cloud: Cloud) -> None:
    with scripted(json_reply(200, INSTANCE)) as server:
        slice_ = compute(cloud, server.url).get(ZONE, "demo")
    assert "--api compute" in str(loss(replace(slice_, state="PREEMPTED")).fix)


def test_times_of_the_api_become_utc() -> None:
    assert utc("2026-11-26T16:00:00.123-08:00") == "2026-11-27T00:00:00.123000Z"
    assert utc("") == ""


def test_each_machine_type_has_one_accelerator_type() -> None:
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)
    assert len({machine.accelerator_type for machine in MACHINES}) == len(MACHINES)

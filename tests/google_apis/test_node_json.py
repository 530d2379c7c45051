"""Nodes as JSON mean to us what google-cloud-tpu, which is not ours, reads in the same answers."""

from __future__ import annotations

import json
import random
import re
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

import pytest
from google.cloud import tpu_v2

from tpukit.google.enumerations import DISK_MODE, INITIATOR, NODE_HEALTH, NODE_STATE, QUEUED_STATE
from tpukit.google.node_json import node_fields, read_queued, read_slice
from tpukit.google.worker_identity import read_identity
from tpukit.models import DataDisk, Slice, SliceRequest, Worker

STATES = [each.name for each in tpu_v2.Node.State]
HEALTHS = [each.name for each in tpu_v2.Node.Health]


NODE = {"name": "projects/p/locations/z/nodes/n"}
QUEUED = {"name": "projects/p/locations/z/queuedResources/q"}


def some_node(seed: int) -> dict[str, Any]:
    """Return a node as the API might give it: any field may be missing, null, or as it is sent."""
    chosen = random.Random(seed)
    text = lambda: "".join(chosen.choices("abz09-_/. é東\t", k=chosen.randrange(12)))  # noqa: E731
    fields: dict[str, Any] = {
        "acceleratorType": text(),
        "runtimeVersion": text(),
        "state": chosen.choice([*STATES, 99]),
        "health": chosen.choice([*HEALTHS, 98]),
        "healthDescription": text(),
        "acceleratorConfig": {"type": "V4", "topology": "2x2x1"},
        "networkConfig": {
            "network": f"projects/p/global/networks/{text()}",
            "subnetwork": chosen.choice([text(), None]),
            "enableExternalIps": chosen.choice([True, False]),
            "canIpForward": True,
        },
        "networkEndpoints": [
            {
                "ipAddress": f"10.0.0.{number}",
                "port": 8470,
                **({"accessConfig": {"externalIp": text()}} if chosen.random() < 0.5 else {}),
            }
            for number in range(chosen.randrange(5))
        ],
        "labels": {text(): text() for _ in range(chosen.randrange(4))},
        "metadata": {text(): text() for _ in range(chosen.randrange(4))},
        "tags": [text() for _ in range(chosen.randrange(3))],
        "schedulingConfig": chosen.choice(
            [{}, {"spot": True}, {"preemptible": True}, {"reserved": True}, {"spot": False}]
        ),
        "createTime": "2026-01-02T03:04:05.678901Z",
        "queuedResource": f"projects/p/locations/z/queuedResources/{text()}",
        "serviceAccount": {"email": text(), "scope": ["a", "b"]},
        "dataDisks": [
            {"sourceDisk": text(), "mode": chosen.choice(["READ_WRITE", "READ_ONLY"])}
            for _ in range(chosen.randrange(3))
        ],
        "id": "7",
        "multisliceNode": True,
        "shieldedInstanceConfig": {"enableSecureBoot": True},
    }
    kept = {name: value for name, value in fields.items() if chosen.random() < 0.8}
    nulls = {name: None for name in fields if chosen.random() < 0.05}
    return {"name": f"projects/p/locations/z/nodes/n-{seed}", **kept, **nulls}


def read_by_google(document: dict[str, Any]) -> Slice:
    """Return the slice that google-cloud-tpu understands."""
    node = tpu_v2.Node.from_json(json.dumps(document))
    raw = tpu_v2.Node.pb(node)
    _, project, _, zone, _, name = node.name.split("/")
    bought = ("spot", "preemptible", "reserved")
    path = node.network_config.network
    return Slice(
        name=name,
        project=project,
        zone=zone,
        accelerator_type=line(node.accelerator_type),
        runtime_version=line(node.runtime_version),
        state=word(tpu_v2.Node.State, raw.state),
        id=str(node.id or ""),
        health=word(tpu_v2.Node.Health, raw.health),
        health_description=line(node.health_description),
        topology=node.accelerator_config.topology,
        provisioning=next(
            (each for each in bought if getattr(node.scheduling_config, each)), "on-demand"
        ),
        network=last(node.network_config.network),
        network_project="p" if re.fullmatch("projects/p/.*networks/[^/]+", path) else "",
        subnetwork=last(node.network_config.subnetwork),
        workers=tuple(
            Worker(index, each.ip_address, line(each.access_config.external_ip))
            for index, each in enumerate(node.network_endpoints)
        ),
        labels={line(key): line(value) for key, value in node.labels.items()},
        tags=tuple(line(tag) for tag in node.tags),
        metadata=dict(node.metadata),
        created=node.create_time.isoformat() if node.create_time else "",
        queued_resource=last(node.queued_resource),
        service_account=line(node.service_account.email),
        external_addresses=node.network_config.enable_external_ips,
        data_disks=tuple(
            DataDisk(line(disk.source_disk), tpu_v2.AttachedDisk.pb(disk).mode == 2)
            for disk in node.data_disks
        ),
    )


def line(value: str) -> str:
    return " ".join(value.split())


def last(value: str) -> str:
    return line(value).rpartition("/")[2]


def word(kind: Any, value: int) -> str:
    name = kind(value).name if value in [int(each) for each in kind] else str(value)
    return "" if name.endswith("UNSPECIFIED") else name


def test_a_node_means_to_us_what_it_means_to_google_s_own_library() -> None:
    for seed in range(300):
        document = some_node(seed)
        ours = read_slice(document)
        if ours.created:
            ours = replace(ours, created=datetime.fromisoformat(ours.created).isoformat())
        assert ours == read_by_google(document), document


def test_every_word_of_the_enumerations_is_the_same() -> None:
    for kind, name in ((tpu_v2.Node.State, "state"), (tpu_v2.Node.Health, "health")):
        for each in kind:
            document = {"name": "projects/p/locations/z/nodes/n", name: each.name}
            assert read_slice(document) == read_by_google(document)


def test_a_slice_says_which_api_it_lives_in() -> None:
    assert read_slice({"name": "projects/p/locations/z/nodes/n"}).document()["api"] == "tpu"


def test_a_field_of_another_type_is_left_empty_and_named() -> None:
    right = {
        "acceleratorType": "v4-8",
        "state": "READY",
        "acceleratorConfig": {},
        "networkConfig": {},
        "networkEndpoints": [],
        "labels": {},
        "metadata": {},
        "tags": [],
        "schedulingConfig": {},
        "createTime": "",
        "serviceAccount": {},
        "dataDisks": [],
    }
    named = {"name": "projects/p/locations/z/nodes/n", **right}
    assert read_slice(named).unreadable == ()
    for name, value in right.items():
        for other in (1.5, "text", [[7]], {"a": 7}):
            if type(other) is not type(value) or (other in ([[7]], {"a": 7}) and name in (
                "labels", "metadata", "tags", "dataDisks", "networkEndpoints"
            )):  # fmt: skip
                assert read_slice({**named, name: other}) == replace(
                    read_slice({**named, name: None}), unreadable=(name,)
                )


@pytest.mark.parametrize("document", [7, "text", None, [], [7], {}, {"name": 7}, {"name": "n"}])
def test_what_is_no_node_is_unreadable(document: object) -> None:
    with pytest.raises(ValueError, match=r"type|name"):
        read_slice(document)


def test_a_request_asks_google_s_library_for_what_it_says() -> None:
    asked = SliceRequest(
        "n", "p", "z", "v4-8", "r", provisioning="spot", network="net", subnetwork="sub",
        external_addresses=False, labels={"a": "b"}, tags=("t",), metadata={"k": "v"},
        data_disks=(DataDisk("d", read_only=True), DataDisk("e")), service_account="me@p",
    )  # fmt: skip
    node = json.loads(tpu_v2.Node.to_json(tpu_v2.Node.from_json(json.dumps(node_fields(asked)))))
    found = read_slice({**node, "name": "projects/p/locations/z/nodes/n", "state": "READY",
        "health": "", "dataDisks": [{**each, "mode": str(mode)} for each, mode in zip(
            node["dataDisks"], ("READ_ONLY", "READ_WRITE"), strict=True)]})  # fmt: skip
    for field in fields(asked):
        assert getattr(found, field.name) == getattr(asked, field.name), field.name


def published(*items: tuple[str, str, str]) -> dict[str, Any]:
    keys = ("namespace", "key", "value")
    return {"queryValue": {"items": [dict(zip(keys, item, strict=True)) for item in items]}}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        # A v5e in us-east1-c: docs/reference/real-workers.md.
        ([("deviceInfo", "hostname", "t1v-n-cca1e90f-w-0")], "t1v-n-cca1e90f-w-0"),
        ([("guestInventory", "Hostname", "t1v-n-0-w-0")], "t1v-n-0-w-0"),
        ([("guestInventory", "Hostname", "a"), ("deviceInfo", "hostname", "b")], "b"),
        ([("deviceInfo", "hostname", ""), ("guestInventory", "Hostname", "a")], "a"),
        ([("hostkeys", "ssh-ed25519", "AAAA"), ("lifecycle", "event", "hostname")], ""),
    ],
)
def test_a_worker_s_host_name_is_what_any_namespace_calls_so_as_gcloud_takes_it(
    items: list[tuple[str, str, str]], expected: str
) -> None:
    assert read_identity(0, published(*items)).hostname == expected


@pytest.mark.parametrize(
    ("ours", "google_s"),
    [
        (NODE_STATE, tpu_v2.Node.State),
        (NODE_HEALTH, tpu_v2.Node.Health),
        (DISK_MODE, tpu_v2.AttachedDisk.DiskMode),
        (QUEUED_STATE, tpu_v2.QueuedResourceState.State),
        (INITIATOR, tpu_v2.QueuedResourceState.StateInitiator),
    ],
)
def test_the_words_of_each_enumeration_are_google_s(ours: Any, google_s: Any) -> None:
    assert {word.value: word.name for word in google_s} == ours


def test_numbers_of_enumerations_are_read_as_their_words() -> None:
    slice_ = read_slice(
        {**NODE, "state": 2, "health": 5, "dataDisks": [{"sourceDisk": "d", "mode": 2}]}
    )
    assert (slice_.state, slice_.health) == ("READY", "UNHEALTHY_MAINTENANCE")
    assert slice_.data_disks == (DataDisk("d", read_only=True),)
    state = {"state": 4, "stateInitiator": 2}
    request = read_queued({**QUEUED, "state": state})
    assert (request.state, request.initiator) == ("FAILED", "SERVICE")


def test_a_slice_with_several_network_interfaces_has_the_network_of_the_first() -> None:
    networks = [
        {"network": "projects/host/global/networks/one", "enableExternalIps": True},
        {"network": "projects/host/global/networks/two"},
    ]
    slice_ = read_slice({**NODE, "networkConfigs": networks})
    assert (slice_.network, slice_.network_project) == ("one", "host")
    assert slice_.external_addresses


@pytest.mark.parametrize(
    ("scheduling", "capacity"),
    [
        ({"provisioningModel": "FLEX_START"}, "flex-start"),
        ({"provisioningModel": "SPOT"}, "spot"),
        ({"provisioningModel": "RESERVATION_BOUND"}, "reserved"),
        ({"provisioningModel": "STANDARD"}, "on-demand"),
        ({"provisioningModel": "OF_TOMORROW"}, "of-tomorrow"),
        ({"provisioningModel": "PROVISIONING_MODEL_UNSPECIFIED", "spot": True}, "spot"),
        ({}, "on-demand"),
    ],
)
def test_capacity_is_shown_as_it_was_bought(scheduling: dict[str, Any], capacity: str) -> None:
    assert read_slice({**NODE, "schedulingConfig": scheduling}).provisioning == capacity
    assert read_queued({**QUEUED, **scheduling}).provisioning == capacity


def test_a_best_effort_request_is_no_on_demand_one() -> None:
    assert read_queued({**QUEUED, "bestEffort": {}}).provisioning == "best-effort"


@pytest.mark.parametrize("name", ["multisliceParams", "multiNodeParams"])
def test_a_request_for_several_slices_names_them(name: str) -> None:
    spec = {name: {"nodeCount": 2, "nodeIdPrefix": "pod"}}
    assert read_queued({**QUEUED, "tpu": {"nodeSpec": [spec]}}).slices == ("pod-0", "pod-1")


def test_a_request_for_more_slices_than_there_can_be_fills_no_memory() -> None:
    spec = {"multisliceParams": {"nodeCount": 10**12, "nodeIdPrefix": "pod"}}
    request = read_queued({**QUEUED, "tpu": {"nodeSpec": [spec]}})
    assert (request.slices, request.unreadable) == ((), ("tpu",))


def test_the_code_of_a_failed_request_is_kept() -> None:
    state = {"state": "FAILED", "failedData": {"error": {"code": 13, "message": "internal"}}}
    request = read_queued({**QUEUED, "state": state})
    assert (request.error, request.error_code) == ("internal", 13)
    empty = read_queued({**QUEUED, "state": {"state": "FAILED", "failedData": {}}})
    assert (empty.error, empty.error_code, empty.unreadable) == ("", 0, ())


def test_a_field_of_a_queued_resource_that_cannot_be_read_is_named() -> None:
    request = read_queued({**QUEUED, "tpu": "text", "state": {"state": "ACTIVE"}})
    assert (request.name, request.state, request.unreadable) == ("q", "ACTIVE", ("tpu",))

"""Instances of Compute Engine: hosts of TPUs, as gcloud and tpukit ask for them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

pytestmark = pytest.mark.process

ZONE = "us-east5-b"
BASE = "/compute/v1/projects/p"
PLACE = f"{BASE}/zones/{ZONE}"
INSTANCES = f"{PLACE}/instances"
ONE = f"{INSTANCES}/demo"
IMAGE = (
    "projects/ubuntu-os-accelerator-images/global/images/family/"
    "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
)
FLEX = {
    "provisioningModel": "FLEX_START",
    "onHostMaintenance": "TERMINATE",
    "instanceTerminationAction": "DELETE",
    "maxRunDuration": {"seconds": "3600"},
}
SPOT = {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}


def body(machine: str = "ct6e-standard-4t", disk: str = "hyperdisk-balanced", **more: Any) -> Any:
    boot = {"sourceImage": IMAGE, "diskType": f"zones/z/diskTypes/{disk}", "diskSizeGb": "100"}
    return {
        "name": "demo",
        "machineType": f"zones/{ZONE}/machineTypes/{machine}",
        "scheduling": {"onHostMaintenance": "TERMINATE"},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": boot}],
        "networkInterfaces": [
            {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
        ],
        "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
        **more,
    }


def insert(api: Any, query: str = "", **more: Any) -> Any:
    status, begun = api.call("POST", f"{INSTANCES}{query}", body(**more))
    assert status == 200, begun
    return begun


def waited(api: Any, begun: Any) -> Any:
    return api.call("GET", f"{PLACE}/operations/{begun['name']}")[1]


def status(api: Any) -> str:
    code, instance = api.call("GET", ONE)
    return "GONE" if code == 404 else str(instance["status"])


def items(api: Any) -> dict[str, str]:
    return {item["key"]: item["value"] for item in api.call("GET", ONE)[1]["metadata"]["items"]}


def test_an_instance_is_made_stopped_started_and_deleted_with_its_disk(api):
    begun = insert(api)
    assert (begun["operationType"], begun["status"]) == ("insert", "RUNNING")
    assert status(api) == "PROVISIONING"
    api.advance(600)
    assert status(api) == "STAGING"
    api.advance(500)
    assert waited(api, begun)["status"] == "DONE"
    instance = api.call("GET", ONE)[1]
    assert (instance["status"], instance["id"].isdecimal()) == ("RUNNING", True)
    interface = instance["networkInterfaces"][0]
    assert interface["accessConfigs"][0]["natIP"] == interface["networkIP"]
    assert api.call("GET", f"{PLACE}/disks/demo")[1]["sizeGb"] == "100"
    assert api.call("DELETE", f"{PLACE}/disks/demo")[0] == 400
    for verb, between, end in (
        ("stop", "STOPPING", "TERMINATED"),
        ("start", "PROVISIONING", "RUNNING"),
    ):
        begun = api.call("POST", f"{ONE}/{verb}")[1]
        assert status(api) == between
        assert api.call("POST", f"{ONE}/{verb}")[0] == 400  # it is under way
        api.advance(1000)
        assert (status(api), waited(api, begun)["status"]) == (end, "DONE")
        assert api.call("POST", f"{ONE}/{verb}")[0] == 200
        assert status(api) == end
    begun = api.call("DELETE", ONE)[1]
    assert status(api) == "STOPPING"
    api.advance(500)
    assert (status(api), waited(api, begun)["status"]) == ("GONE", "DONE")
    assert api.call("GET", f"{PLACE}/disks/demo")[0] == 404


def test_a_request_id_makes_a_repeated_insert_the_same_operation(api):
    first = insert(api, "?requestId=11111111-1111-4111-8111-111111111111")
    again = insert(api, "?requestId=11111111-1111-4111-8111-111111111111")
    assert again["name"] == first["name"]
    code, refused = api.call("POST", INSTANCES, body())
    assert (code, refused["error"]["errors"][0]["reason"]) == (409, "alreadyExists")


@pytest.mark.parametrize(
    ("machine", "disk", "kind", "topology"),
    [
        ("ct6e-standard-1t", "hyperdisk-balanced", "v6e-1", "1x1"),
        ("ct6e-standard-8t", "hyperdisk-balanced", "v6e-8", "2x4"),
        ("ct5p-hightpu-1t-tpu", "pd-balanced", "v5p-2", "1x1x1"),
        ("ct5p-hightpu-4t", "pd-balanced", "v5p-8", "2x2x1"),
    ],
)
def test_compute_engine_writes_the_tpu_metadata_itself(api, machine, disk, kind, topology):
    insert(api, machine=machine, disk=disk)
    own = items(api)
    assert (own["accelerator-type"], own["agent-worker-number"]) == (kind, "0")
    assert own["worker-network-endpoints"] == "demo"
    assert f"TOPOLOGY: '{topology}'" in own["tpu-env"]
    assert own["enable-guest-attributes"] == "TRUE"


def test_set_metadata_replaces_all_items_with_the_present_fingerprint_alone(api):
    insert(api)
    metadata = api.call("GET", ONE)[1]["metadata"]
    new = {"items": [{"key": "a", "value": "b"}]}
    code, refused = api.call("POST", f"{ONE}/setMetadata", {**new, "fingerprint": "AAAA"})
    assert (code, refused["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    given = {**new, "fingerprint": metadata["fingerprint"]}
    assert api.call("POST", f"{ONE}/setMetadata", given)[0] == 200
    assert items(api) == {"a": "b"}  # the TPU items are gone


def test_labels_and_tags_are_replaced_with_their_fingerprints(api):
    insert(api, labels={"a": "b"})
    instance = api.call("GET", ONE)[1]
    labels = {"labels": {"c": "d"}, "labelFingerprint": instance["labelFingerprint"]}
    assert api.call("POST", f"{ONE}/setLabels", labels)[0] == 200
    assert api.call("POST", f"{ONE}/setLabels", labels)[0] == 412
    tags = {"items": ["tpu"], "fingerprint": instance["tags"]["fingerprint"]}
    assert api.call("POST", f"{ONE}/setTags", tags)[0] == 200
    assert api.call("POST", f"{ONE}/setTags", tags)[0] == 412
    instance = api.call("GET", ONE)[1]
    assert (instance["labels"], instance["tags"]["items"]) == ({"c": "d"}, ["tpu"])


def test_lists_filter_and_name_silent_zones(api):
    insert(api, labels={"owner": "ada"})
    insert(api, name="other")
    text = quote("labels.owner=ada")
    assert [i["name"] for i in api.call("GET", f"{INSTANCES}?filter={text}")[1]["items"]] == [
        "demo"
    ]
    aggregated = f"{BASE}/aggregated/instances?returnPartialSuccess=true"
    scopes = api.call("GET", f"{aggregated}&filter={text}")[1]["items"]
    assert [i["name"] for i in scopes[f"zones/{ZONE}"]["instances"]] == ["demo"]
    assert "nextPageToken" in api.call("GET", f"{aggregated}&maxResults=1")[1]
    api.fault(kind="unreachable", method="instances.aggregatedList", zone=ZONE, times=2)
    answer = api.call("GET", aggregated)[1]
    assert answer["unreachables"] == [f"projects/p/zones/{ZONE}"]
    assert answer["items"][f"zones/{ZONE}"]["warning"]["code"] == "UNREACHABLE"
    assert api.call("GET", f"{BASE}/aggregated/instances")[0] == 503


def test_host_keys_are_guest_attributes_if_metadata_enables_them(api):
    insert(api)
    insert(api, name="closed", metadata={})
    query = "getGuestAttributes?queryPath=hostkeys/"
    assert api.call("GET", f"{ONE}/{query}")[0] == 404
    api.advance(1000)
    values = api.call("GET", f"{ONE}/{query}")[1]["queryValue"]["items"]
    assert [(value["namespace"], value["key"]) for value in values] == [("hostkeys", "ssh-ed25519")]
    assert api.call("GET", f"{INSTANCES}/closed/{query}")[0] == 404


def test_flex_start_waits_as_pending_and_ends_at_its_duration(api):
    api.fault(kind="wait", method="instances.insert", seconds=1000)
    begun = insert(api, scheduling=FLEX, params={"requestValidForDuration": {"seconds": "7200"}})
    api.advance(900)
    assert status(api) == "PENDING"
    api.advance(1200)
    assert (status(api), waited(api, begun)["status"]) == ("RUNNING", "DONE")
    ends = api.call("GET", ONE)[1]["resourceStatus"]["scheduling"]["terminationTimestamp"]
    assert ends.endswith("Z")
    api.advance(3599)
    assert status(api) == "STOPPING"
    api.advance(500)
    assert status(api) == "GONE"


def test_flex_start_without_capacity_expires(api):
    api.fault(kind="wait", method="instances.insert", seconds=5000)
    begun = insert(api, scheduling=FLEX, params={"requestValidForDuration": {"seconds": "120"}})
    api.advance(120)
    (error,) = waited(api, begun)["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    assert status(api) == "GONE"


@pytest.mark.parametrize(("action", "end"), [("STOP", "TERMINATED"), ("DELETE", "GONE")])
def test_a_preemption_stops_or_deletes_a_spot_instance_and_is_an_operation(api, action, end):
    insert(api, scheduling={**SPOT, "instanceTerminationAction": action})
    api.advance(1000)
    assert api.call("POST", "/_emulator/v1/nodes/demo:preempt", {})[1]["state"] == "STOPPING"
    api.advance(500)
    assert status(api) == end
    operations = api.call("GET", f"{PLACE}/operations")[1]["items"]
    assert "compute.instances.preempted" in [entry["operationType"] for entry in operations]


def test_a_stockout_is_the_operation_s_error_and_leaves_nothing(api):
    api.fault(preset="stockout")
    begun = insert(api, scheduling=SPOT)
    api.advance(1000)
    operation = waited(api, begun)
    (error,) = operation["error"]["errors"]
    assert error["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    (info,) = [entry["errorInfo"] for entry in error["errorDetails"] if "errorInfo" in entry]
    assert (info["reason"], info["metadatas"]["zonesAvailable"]) == ("stockout", "")
    assert operation["httpErrorStatusCode"] == 503
    assert status(api) == "GONE"
    assert api.call("GET", f"{PLACE}/disks/demo")[0] == 404


def test_a_quota_counts_the_chips_of_a_region_apart_from_the_other_api(api):
    quota = {"name": "ct6e-standard-4t", "zone": ZONE, "limit": 4, "spot": True}
    assert api.call("POST", "/_emulator/v1/catalogue/quotas", quota)[0] == 200
    insert(api, scheduling=SPOT)
    insert(api, name="standard")
    begun = insert(api, name="more", scheduling=SPOT)
    api.advance(1000)
    (error,) = waited(api, begun)["error"]["errors"]
    assert (error["code"], "Limit: 4.0" in error["message"]) == ("QUOTA_EXCEEDED", True)
    info = error["errorDetails"][0]["quotaInfo"]
    assert info["limitName"] == "PREEMPTIBLE-TPU-V6E-per-project-region"
    assert status(api) == "RUNNING"


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        ({"machine": "ct5lp-hightpu-1t"}, 403, "use the machine type [ct5lp-hightpu-1t]."),
        ({"machine": "n1-standard-1"}, 400, "does not exist in zone"),
        ({"machine": "tpu7x-standard-4t"}, 400, "does not exist in zone"),
        ({"disk": "pd-balanced"}, 400, "features are not compatible"),
        ({"disks": []}, 400, "No disks are specified."),
        ({"scheduling": {}}, 400, "do not support live migration"),
        ({"scheduling": {**FLEX, "maxRunDuration": {"seconds": "60"}}}, 400, "duration"),
        ({"scheduling": {**FLEX, "instanceTerminationAction": "STOP"}}, 400, "needs DELETE"),
        ({"name": "Demo"}, 400, "Must be a match of regex"),
        ({"networkInterfaces": [{"network": "global/networks/x"}]}, 400, "cannot be found"),
        ({"labels": {"A": "b"}}, 400, "Invalid label"),
        (
            {"scheduling": {**SPOT, "provisioningModel": "RESERVATION_BOUND"}},
            400,
            "SPECIFIC_RESERVATION",
        ),
    ],
)
def test_a_bad_insert_is_refused(api, more, code, text):
    answer = api.call("POST", INSTANCES, body(**more))
    assert (answer[0], text in answer[1]["error"]["message"]) == (code, True), answer
    assert status(api) == "GONE"


def test_a_reservation_has_to_exist(api):
    bound = {
        "scheduling": {
            "provisioningModel": "RESERVATION_BOUND",
            "onHostMaintenance": "TERMINATE",
            "instanceTerminationAction": "DELETE",
        },
        "reservationAffinity": {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": ["mine"],
        },
    }
    assert api.call("POST", INSTANCES, body(**bound))[0] == 400
    own = {"name": "mine", "zone": ZONE, "project": "p", "resourceType": "v6e", "size": 8}
    assert api.call("POST", "/_emulator/v1/catalogue/reservations", own)[0] == 200
    insert(api, **bound)


def test_machine_types_and_images_are_those_of_tpus(api):
    named = [row["name"] for row in api.call("GET", f"{PLACE}/machineTypes")[1]["items"]]
    assert "ct6e-standard-8t" in named
    assert "tpu7x-standard-4t" not in named
    own = api.call("GET", f"{PLACE}/machineTypes/ct6e-standard-4t")[1]
    assert own["accelerators"] == [{"guestAcceleratorType": "ct6e", "guestAcceleratorCount": 4}]
    assert api.call("GET", f"{PLACE}/machineTypes/none")[0] == 404
    google = "/compute/v1/projects/ubuntu-os-accelerator-images"
    family = IMAGE.rsplit("/", 1)[1]
    image = api.call("GET", f"{google}/global/images/family/{family}")[1]
    assert api.call("GET", f"{google}/global/images/{image['name']}")[1] == image
    assert api.call("GET", f"{google}/zones/-/imageFamilyViews/{family}")[1] == {"image": image}
    assert api.call("GET", f"{google}/global/images/family/none")[0] == 404


def test_a_restart_keeps_instances_and_boots_the_running_ones(emulators):
    api = emulators.start()
    insert(api)
    api.advance(1000)
    emulators.stop()
    api = emulators.start()
    assert status(api) == "RUNNING"
    assert api.host.booted == {f"projects/p/zones/{ZONE}/instances/demo"}


def test_a_network_with_an_instance_stays_and_the_status_counts_instances(api):
    assert api.call("POST", f"{BASE}/global/networks", {"name": "own"})[0] == 200
    insert(api, networkInterfaces=[{"network": "global/networks/own"}])
    assert api.call("DELETE", f"{BASE}/global/networks/own")[0] == 400
    assert api.call("GET", "/_emulator/v1/status")[1]["instances"] == {"PROVISIONING": 1}
    assert api.call("POST", "/_emulator/v1/reset", {})[1]["instances"] == {}

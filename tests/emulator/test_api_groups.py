"""Managed instance groups with their policies and templates: slices of several hosts."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.test_api_instances import BASE, FLEX, PLACE, SPOT, ZONE, body
from tpukit.emulator.compute_service.machine_types import MACHINE_TYPES

pytestmark = pytest.mark.process

REGION = f"{BASE}/regions/us-east5"
POLICIES, TEMPLATES = f"{REGION}/resourcePolicies", f"{REGION}/instanceTemplates"
GROUPS = f"{PLACE}/instanceGroupManagers"
ONE = f"{GROUPS}/demo"
FLAT = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4"}
NAMES = [f"demo-w-00{number}" for number in range(1, 5)]


def policy(api: Any, topology: str = "4x4", name: str = "wp") -> None:
    given = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": topology}
    code, begun = api.call("POST", POLICIES, {"name": name, "workloadPolicy": given})
    assert code == 200, begun


def template(api: Any, place: str = TEMPLATES, machine: str = "ct6e-standard-4t", **more: Any):
    properties = {**body(), "machineType": machine, **more}
    del properties["name"]
    code, begun = api.call("POST", place, {"name": "it", "properties": properties})
    assert code == 200, begun
    return begun


def asked(**more: Any) -> Any:
    return {
        "name": "demo",
        "baseInstanceName": "demo-w-###[1]",
        "targetSize": 4,
        "instanceTemplate": "projects/p/regions/us-east5/instanceTemplates/it",
        "resourcePolicies": {"workloadPolicy": "projects/p/regions/us-east5/resourcePolicies/wp"},
        "targetSizePolicy": {"mode": "BULK"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        **more,
    }


def insert(api: Any, query: str = "", **more: Any) -> Any:
    code, begun = api.call("POST", f"{GROUPS}{query}", asked(**more))
    assert code == 200, begun
    return begun


def made(api: Any, **properties: Any) -> Any:
    policy(api)
    template(api, **properties)
    return insert(api)


def states(api: Any) -> dict[str, str]:
    rows = api.call("GET", f"{PLACE}/instances")[1].get("items", [])
    return {row["name"]: row["status"] for row in rows}


def status(api: Any) -> Any:
    return api.call("GET", ONE)[1]["status"]


def applied(api: Any) -> str:
    return str(status(api)["appliedAcceleratorTopologies"][0]["state"])


def test_a_group_makes_all_its_hosts_at_once_and_deletes_them(api):
    begun = made(api)
    assert (begun["operationType"], begun["status"]) == ("insert", "RUNNING")
    assert states(api) == dict.fromkeys(NAMES, "PROVISIONING")
    found = status(api)
    assert (found["isStable"], found["bulkInstanceOperation"]["inProgress"]) == (False, True)
    assert (found["currentInstanceStatuses"], applied(api)) == ({"provisioning": 4}, "ACTIVATING")
    api.advance(1000)
    found = status(api)
    assert (found["isStable"], found["bulkInstanceOperation"]["inProgress"]) == (True, False)
    assert (found["currentInstanceStatuses"], applied(api)) == ({"running": 4}, "ACTIVE")
    code, deleted = api.call("DELETE", ONE)
    assert (code, api.call("GET", ONE)[1]["currentActions"]) == (200, {"deleting": 4})
    assert api.call("DELETE", ONE)[0] == 400
    api.advance(500)
    assert (states(api), api.call("GET", ONE)[0]) == ({}, 404)
    assert api.call("GET", f"{PLACE}/disks")[1].get("items") is None
    ended = api.call("GET", f"{PLACE}/operations/{deleted['name']}")[1]
    assert (ended["operationType"], ended["status"]) == ("delete", "DONE")


def test_each_host_learns_its_number_and_the_names_of_all(api):
    made(api)
    for number, name in enumerate(NAMES):
        items = api.call("GET", f"{PLACE}/instances/{name}")[1]["metadata"]["items"]
        own = {item["key"]: item["value"] for item in items}
        assert (own["accelerator-type"], own["agent-worker-number"]) == ("v6e-16", str(number))
        assert own["worker-network-endpoints"] == ",".join(NAMES)
        for text in ("TOPOLOGY: '4x4'", "HOST_BOUNDS: '2,2,1'", "CHIPS_PER_HOST_BOUNDS: '2,2,1'"):
            assert text in own["tpu-env"]
        assert own["created-by"].endswith(f"/zones/{ZONE}/instanceGroupManagers/demo")
        assert own["instance-template"].endswith("/regions/us-east5/instanceTemplates/it")


def test_the_instances_of_a_group_are_listed_with_their_statuses(api):
    made(api)
    api.advance(1000)
    rows = api.call("POST", f"{ONE}/listManagedInstances", {})[1]["managedInstances"]
    assert [row["name"] for row in rows] == NAMES
    assert {(row["instanceStatus"], row["currentAction"]) for row in rows} == {("RUNNING", "NONE")}
    assert rows[0]["instance"].endswith(f"/zones/{ZONE}/instances/demo-w-001")
    (group,) = api.call("GET", f"{PLACE}/instanceGroups")[1]["items"]
    assert (group["name"], group["size"]) == ("demo", 4)
    scopes = api.call("GET", f"{BASE}/aggregated/instanceGroupManagers")[1]["items"]
    assert [row["name"] for row in scopes[f"zones/{ZONE}"]["instanceGroupManagers"]] == ["demo"]
    assert [row["name"] for row in api.call("GET", GROUPS)[1]["items"]] == ["demo"]


def test_a_request_id_makes_a_repeated_insert_the_same_operation(api):
    policy(api)
    template(api)
    query = "?requestId=11111111-1111-4111-8111-111111111111"
    assert insert(api, query)["name"] == insert(api, query)["name"]
    code, refused = api.call("POST", GROUPS, asked())
    assert (code, refused["error"]["errors"][0]["reason"]) == (409, "alreadyExists")
    assert len(states(api)) == 4


@pytest.mark.parametrize("mode", ["BULK", "INDIVIDUAL"])
def test_without_capacity_a_group_stays_without_hosts_and_says_why(api, mode):
    policy(api)
    template(api)
    api.fault(preset="stockout")
    insert(api, targetSizePolicy={"mode": mode})
    api.advance(5000)
    assert (states(api), status(api)["isStable"], applied(api)) == ({}, False, "INCOMPLETE")
    code = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
    if mode == "BULK":
        (error,) = status(api)["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
        assert error["code"] == code
    rows = api.call("POST", f"{ONE}/listManagedInstances", {})[1]["managedInstances"]
    assert {row["lastAttempt"]["errors"]["errors"][0]["code"] for row in rows} == {code}
    assert api.call("GET", f"{ONE}/listErrors")[1]["items"][0]["error"]["code"] == code
    assert api.call("DELETE", ONE)[0] == 200
    api.advance(500)
    assert api.call("GET", ONE)[0] == 404


def test_a_quota_counts_all_hosts_of_a_group(api):
    quota = {"name": "ct6e-standard-4t", "zone": ZONE, "limit": 15, "spot": True}
    assert api.call("POST", "/_emulator/v1/catalogue/quotas", quota)[0] == 200
    made(api, scheduling=SPOT)
    (error,) = status(api)["bulkInstanceOperation"]["lastProgressCheck"]["error"]["errors"]
    assert (error["code"], states(api)) == ("QUOTA_EXCEEDED", {})


def test_the_preemption_of_one_host_ends_the_slice(api):
    made(api, scheduling=SPOT)
    api.advance(1000)
    assert api.call("POST", "/_emulator/v1/nodes/demo-w-003:preempt", {})[0] == 200
    assert states(api) == dict.fromkeys(NAMES, "STOPPING")
    api.advance(500)
    assert (states(api), applied(api)) == (dict.fromkeys(NAMES, "TERMINATED"), "FAILED")
    kinds = [row["operationType"] for row in api.call("GET", f"{PLACE}/operations")[1]["items"]]
    assert kinds.count("compute.instances.preempted") == 4


def test_the_name_of_a_group_means_its_slice_to_the_control_plane(api):
    made(api)
    api.advance(1000)
    assert api.call("POST", "/_emulator/v1/nodes/demo:preempt", {})[1]["name"] == "demo-w-001"
    assert set(states(api).values()) == {"STOPPING"}


def test_one_host_that_vanishes_degrades_the_slice(api):
    made(api)
    api.advance(1000)
    api.call("POST", "/_emulator/v1/nodes/demo-w-002:preempt", {"vanish": True})
    assert status(api)["currentInstanceStatuses"] == {"running": 3, "nonExistent": 1}
    assert applied(api) == "ACTIVE_DEGRADED"


def test_flex_start_waits_for_all_hosts_and_ends_them_together(api):
    policy(api)
    template(api, scheduling=FLEX)
    api.fault(kind="wait", method="instanceGroupManagers.insert", seconds=1000)
    insert(api)
    api.advance(900)
    assert set(states(api).values()) == {"PENDING"}
    api.advance(1200)
    assert set(states(api).values()) == {"RUNNING"}
    api.advance(3600)
    assert set(states(api).values()) == {"STOPPING"}
    code, refused = api.call("POST", GROUPS, asked(name="no", instanceLifecyclePolicy={}))
    assert (code, "DO_NOTHING" in refused["error"]["message"]) == (400, True)


@pytest.mark.parametrize("place", [TEMPLATES, f"{BASE}/global/instanceTemplates"])
def test_templates_are_of_a_region_or_of_the_project(api, place):
    begun = template(api, place, labels={"owner": "ada"})
    # Recorded: ../shared/data/recorded/compute/instancetemplate-crud.log
    assert begun["operationType"] == "compute.instanceTemplates.insert"
    found = api.call("GET", f"{place}/it")[1]
    assert (found["kind"], found["properties"]["labels"]) == (
        "compute#instanceTemplate",
        {"owner": "ada"},
    )
    assert [row["name"] for row in api.call("GET", place)[1]["items"]] == ["it"]
    scopes = api.call("GET", f"{BASE}/aggregated/instanceTemplates")[1]["items"]
    scope = "global" if "global" in place else "regions/us-east5"
    assert [row["name"] for row in scopes[scope]["instanceTemplates"]] == ["it"]
    assert api.call("DELETE", f"{place}/it")[1]["operationType"] == "delete"
    assert api.call("GET", f"{place}/it")[0] == 404


def test_a_policy_is_made_read_and_deleted_and_a_used_part_stays(api):
    made(api)
    found = api.call("GET", f"{POLICIES}/wp")[1]
    assert (found["status"], found["workloadPolicy"]["acceleratorTopology"]) == ("READY", "4x4")
    scopes = api.call("GET", f"{BASE}/aggregated/resourcePolicies")[1]["items"]
    assert list(scopes) == ["regions/us-east5"]
    for part in (f"{POLICIES}/wp", f"{TEMPLATES}/it"):
        code, refused = api.call("DELETE", part)
        reason = refused["error"]["errors"][0]["reason"]
        assert (code, reason) == (400, "resourceInUseByAnotherResource")
    api.call("DELETE", ONE)
    api.advance(500)
    assert api.call("DELETE", f"{POLICIES}/wp")[0] == 200
    assert api.call("GET", f"{POLICIES}/wp")[0] == 404


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        # magic-modules#17153
        (
            {"targetSize": 2},
            400,
            "Target size should be 4 for given accelerator topology but was 2.",
        ),
        ({"instanceTemplate": "global/instanceTemplates/none"}, 404, "was not found"),
        ({"instanceTemplate": ""}, 400, "Must be specified"),
        ({"resourcePolicies": {"workloadPolicy": "none"}}, 404, "was not found"),
        ({"name": "Demo"}, 400, "Must be a match of regex"),
        ({"baseInstanceName": "a" * 60}, 400, "Must be a match of regex"),
        ({"targetSize": 0, "resourcePolicies": {}}, 400, "one host or more"),
    ],
)
def test_a_bad_group_is_refused(api, more, code, text):
    policy(api)
    template(api)
    answer = api.call("POST", GROUPS, asked(**more))
    assert (answer[0], text in answer[1]["error"]["message"]) == (code, True), answer
    assert states(api) == {}


@pytest.mark.parametrize(
    ("topology", "machine", "text"),
    [
        ("2x4", "ct6e-standard-4t", "does not support it"),
        ("4x4", "ct5lp-hightpu-4t", "not allowed to use the machine type"),
        ("4x4", "n1-standard-1", "does not exist in zone"),
    ],
)
def test_a_template_s_machine_has_to_fit_the_policy(api, topology, machine, text):
    policy(api, topology)
    template(api, machine=machine)
    answer = api.call("POST", GROUPS, asked())
    assert text in answer[1]["error"]["message"], answer


@pytest.mark.parametrize(
    ("place", "given", "text"),
    [
        (POLICIES, {"name": "a"}, "workload policies alone"),
        (POLICIES, {"name": "a", "workloadPolicy": FLAT}, "Must be like 4x4"),
        (POLICIES, {"name": "a", "workloadPolicy": {}}, "Must be specified"),
        (TEMPLATES, {"name": "a", "properties": {"machineType": "zones/z/m"}}, "the name of a"),
        (TEMPLATES, {"name": "a", "properties": {"machineType": "m"}}, "No disks"),
    ],
)
def test_a_bad_part_is_refused(api, place, given, text):
    code, refused = api.call("POST", place, given)
    assert (code, text in refused["error"]["message"]) == (400, True), refused


def test_hosts_without_a_policy_are_slices_of_their_own(api):
    template(api)
    insert(api, resourcePolicies={}, targetSize=2, baseInstanceName="")
    names = list(states(api))
    assert all(name.startswith("demo-") for name in names)
    for name in names:
        items = api.call("GET", f"{PLACE}/instances/{name}")[1]["metadata"]["items"]
        own = {item["key"]: item["value"] for item in items}
        assert (own["accelerator-type"], own["worker-network-endpoints"]) == ("v6e-4", name)
    assert "appliedAcceleratorTopologies" not in status(api)


def test_a_restart_keeps_a_group_and_boots_its_hosts(emulators):
    api = emulators.start()
    made(api)
    api.advance(1000)
    emulators.stop()
    api = emulators.start()
    assert (status(api)["isStable"], applied(api)) == (True, "ACTIVE")
    place = f"projects/p/zones/{ZONE}/instances"
    assert api.host.booted == {f"{place}/{name}" for name in NAMES}
    assert api.call("POST", "/_emulator/v1/reset", {})[1]["instances"] == {}
    assert api.call("GET", GROUPS)[1].get("items") is None


@pytest.mark.parametrize(
    ("machine", "topology", "name", "workers"),
    [
        ("ct6e-standard-4t", "16x16", "v6e-256", 64),
        ("ct5p-hightpu-4t", "2x2x2", "v5p-16", 2),
        ("tpu7x-standard-4t", "2x2x4", "v7x-32", 4),
    ],
)
def test_hosts_of_each_family_are_joined_by_topology(machine, topology, name, workers):
    joined = MACHINE_TYPES[machine].joined(topology)
    assert (joined.name, joined.workers, joined.topology) == (name, workers, topology)

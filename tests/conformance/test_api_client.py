"""google-api-python-client, which knows the APIs by their discovery documents alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from google.oauth2.credentials import Credentials

from conformance.required import DISCOVERY

pytestmark = pytest.mark.process

PARENT = "projects/p/locations/us-central1-a"
DIRECTORY = "discovery/v1/apis/{api}/{apiVersion}/rest"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}


@pytest.fixture(scope="module")
def build(emulator: Any) -> Callable[..., Any]:
    try:
        from googleapiclient import discovery
    except ImportError:
        pytest.skip("google-api-python-client is not installed: it is NOT checked by this run")

    def service(name: str, version: str) -> Any:
        return discovery.build(
            name,
            version,
            credentials=Credentials(emulator.token),
            client_options={"api_endpoint": f"{emulator.url}/{'compute/v1/' * (name != 'tpu')}"},
        )

    return service


class Caller:
    """Calls methods by their names in the reference, as `nodes.create`, and notes them."""

    def __init__(self, service: Any, prefix: str, tally: Any) -> None:
        locations = service.projects().locations() if "compute" not in prefix else None
        self._service, self._locations = service, locations
        self._prefix, self._tally = prefix, tally

    def __call__(self, method: str, **given: Any) -> Any:
        collection, _, verb = method.partition(".")
        owner = self._locations if self._locations is not None else self._service
        resource = owner if collection == "locations" else getattr(owner, collection)()
        answer = getattr(resource, verb)(**given).execute()
        self._tally.note(DISCOVERY, f"{self._prefix} {method}")
        return answer

    def done(self, operation: Any) -> Any:
        """Return what an operation ends with."""
        for _ in range(3000):
            if operation.get("done"):
                assert "error" not in operation, operation
                return operation["response"]
            asyncio.run(asyncio.sleep(0.02))
            operation = self("operations.get", name=operation["name"])
        raise AssertionError(operation)


@pytest.fixture(params=["v2", "v2alpha1"])
def tpu(request: Any, build: Any, tally: Any) -> Caller:
    return Caller(build("tpu", request.param), request.param, tally)


def own(tpu: Caller, name: str) -> str:
    return f"{name}-{tpu._prefix}"


def test_nodes(tpu):
    made = tpu.done(tpu("nodes.create", parent=PARENT, nodeId=own(tpu, "life"), body=NODE))
    name = made["name"]
    assert tpu("nodes.get", name=name)["state"] == "READY"
    assert name in {node["name"] for node in tpu("nodes.list", parent=PARENT)["nodes"]}
    body = {"labels": {"a": "b"}}
    changed = tpu.done(tpu("nodes.patch", name=name, updateMask="labels", body=body))
    assert changed["labels"] == {"a": "b"}
    attributes = tpu("nodes.getGuestAttributes", name=name, body={})
    assert attributes["guestAttributes"][0]["queryValue"]["items"]
    for verb, state in (("stop", "STOPPED"), ("start", "READY")):
        assert tpu.done(tpu(f"nodes.{verb}", name=name, body={}))["state"] == state
    if tpu._prefix == "v2alpha1":
        maintained = tpu.done(tpu("nodes.simulateMaintenanceEvent", name=name, body={}))
        assert maintained["health"] == "UNHEALTHY_MAINTENANCE"
        well = tpu.done(tpu("nodes.performMaintenance", name=name, body={}))
        assert well["health"] == "HEALTHY"
    tpu.done(tpu("nodes.delete", name=name))


def test_queued_resources(tpu):
    spec = {"parent": PARENT, "nodeId": own(tpu, "queued"), "node": NODE}
    body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
    given = {"parent": PARENT, "queuedResourceId": own(tpu, "q"), "body": body}
    name = tpu.done(tpu("queuedResources.create", **given))["name"]
    for _ in range(3000):
        if tpu("queuedResources.get", name=name)["state"]["state"] == "ACTIVE":
            break
        asyncio.run(asyncio.sleep(0.02))
    assert tpu("queuedResources.list", parent=PARENT)["queuedResources"]
    assert tpu.done(tpu("queuedResources.reset", name=name, body={}))["name"] == name
    if tpu._prefix == "v2alpha1":
        node = f"{PARENT}/nodes/{own(tpu, 'queued')}"
        tpu.done(tpu("nodes.simulateMaintenanceEvent", name=node, body={}))
        found = tpu("queuedResources.getMaintenanceInfo", name=name)["nodeUpcomingMaintenances"]
        assert [entry["nodeName"] for entry in found] == [own(tpu, "queued")]
        assert found[0]["upcomingMaintenance"]["maintenanceStatus"] == "ONGOING"
        tpu.done(tpu("queuedResources.performMaintenanceQueuedResource", name=name, body={}))
        assert tpu("queuedResources.getMaintenanceInfo", name=name) == {}
    tpu.done(tpu("queuedResources.delete", name=name, force=True))


def test_the_rest(tpu, emulator):
    assert tpu("acceleratorTypes.list", parent=PARENT)["acceleratorTypes"]
    assert tpu("acceleratorTypes.get", name=f"{PARENT}/acceleratorTypes/v3-8")["type"] == "v3-8"
    assert tpu("runtimeVersions.list", parent=PARENT)["runtimeVersions"]
    assert tpu("runtimeVersions.get", name=f"{PARENT}/runtimeVersions/tpu-vm-base")
    assert tpu("locations.list", name="projects/p")["locations"]
    assert tpu("locations.get", name=PARENT)["locationId"] == "us-central1-a"
    assert tpu("locations.generateServiceIdentity", parent=PARENT, body={})["identity"]
    with emulator.standing_still():
        begun = tpu("nodes.create", parent=PARENT, nodeId=own(tpu, "stopped"), body=NODE)
        tpu("operations.cancel", name=begun["name"])
    assert tpu("operations.get", name=begun["name"])["error"]["code"] == 1
    assert tpu("operations.list", name=PARENT)["operations"]
    tpu("operations.delete", name=begun["name"])
    if tpu._prefix == "v2alpha1":
        assert tpu("reservations.list", parent=PARENT) == {}


def test_firewall_rules(build, tally):
    compute = Caller(build("compute", "v1"), "compute v1", tally)
    rule = {"name": "r1", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
    compute("firewalls.insert", project="p", body=rule)
    one = {"project": "p", "firewall": "r1"}
    compute("firewalls.patch", **one, body={"sourceRanges": ["203.0.113.7/32"]})
    assert compute("firewalls.get", **one)["sourceRanges"] == ["203.0.113.7/32"]
    compute("firewalls.update", **one, body={**rule, "priority": 900})
    items = compute("firewalls.list", project="p")["items"]
    assert [r["priority"] for r in items if r["name"] == "r1"] == [900]
    compute("firewalls.delete", **one)


@pytest.mark.parametrize("address", ["$discovery/rest?version={apiVersion}", DIRECTORY])
def test_the_client_finds_the_service_by_the_document_that_is_served(emulator, address):
    discovery = pytest.importorskip("googleapiclient.discovery")
    service = discovery.build(
        "tpu",
        "v2",
        credentials=Credentials(emulator.token),
        discoveryServiceUrl=f"{emulator.url}/{address}",
        static_discovery=False,
    )
    listed = service.projects().locations().acceleratorTypes().list(parent=PARENT).execute()
    assert listed["acceleratorTypes"]


IMAGE = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"


def machine(kind: str) -> dict[str, Any]:
    """Return the fields that an instance and an instance template share."""
    source = f"projects/ubuntu-os-accelerator-images/global/images/family/{IMAGE}"
    return {
        "machineType": kind,
        "scheduling": {"provisioningModel": "SPOT"},
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": source}}],
        "networkInterfaces": [{}],
    }


def ended(waiting: Any) -> None:
    """Wait for an operation of Compute Engine, which has to succeed."""
    operation = waiting.execute()
    assert (operation["status"], "error" in operation) == ("DONE", False), operation


def test_an_instance_is_made_and_deleted(build):
    service, place = build("compute", "v1"), {"project": "p", "zone": "us-east5-b"}
    wanted = {"name": "host", **machine("zones/us-east5-b/machineTypes/ct6e-standard-1t")}

    def done(operation: Any) -> None:
        ended(service.zoneOperations().wait(**place, operation=operation["name"]))

    instances = service.instances()
    done(instances.insert(**place, body=wanted, requestId=str(uuid4())).execute())
    assert instances.get(**place, instance="host").execute()["status"] == "RUNNING"
    scopes = instances.aggregatedList(project="p").execute()["items"]
    assert [row["name"] for row in scopes["zones/us-east5-b"]["instances"]] == ["host"]
    done(instances.delete(**place, instance="host").execute())
    assert "items" not in instances.list(**place).execute()


def test_a_slice_of_several_hosts_is_made_of_its_parts_and_deleted(build):
    service = build("compute", "v1")
    place, region = {"project": "p", "zone": "us-east5-b"}, {"project": "p", "region": "us-east5"}
    policies, templates = service.resourcePolicies(), service.regionInstanceTemplates()
    groups = service.instanceGroupManagers()

    def done(operation: Any) -> None:
        if "zone" in operation:
            ended(service.zoneOperations().wait(**place, operation=operation["name"]))
        else:
            ended(service.regionOperations().wait(**region, operation=operation["name"]))

    topology = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    policy = {"name": "wp", "workloadPolicy": topology}
    done(policies.insert(**region, body=policy, requestId=str(uuid4())).execute())
    template = {"name": "it", "properties": machine("ct6e-standard-4t")}
    done(templates.insert(**region, body=template, requestId=str(uuid4())).execute())
    wanted = {
        "name": "demo",
        "baseInstanceName": "demo",
        "targetSize": 4,
        "instanceTemplate": "projects/p/regions/us-east5/instanceTemplates/it",
        "resourcePolicies": {"workloadPolicy": "projects/p/regions/us-east5/resourcePolicies/wp"},
        "targetSizePolicy": {"mode": "BULK"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
    }
    done(groups.insert(**place, body=wanted, requestId=str(uuid4())).execute())
    one = {**place, "instanceGroupManager": "demo"}
    for _ in range(3000):
        if groups.get(**one).execute()["status"]["isStable"]:
            break
        asyncio.run(asyncio.sleep(0.02))
    members = groups.listManagedInstances(**one).execute()["managedInstances"]
    assert [member["instanceStatus"] for member in members] == ["RUNNING"] * 4
    assert "items" not in groups.listErrors(**one).execute()
    scopes = groups.aggregatedList(project="p").execute()["items"]
    assert [row["name"] for row in scopes["zones/us-east5-b"]["instanceGroupManagers"]] == ["demo"]
    done(groups.delete(**one).execute())
    done(templates.delete(**region, instanceTemplate="it").execute())
    done(policies.delete(**region, resourcePolicy="wp").execute())
    assert "items" not in service.instances().list(**place).execute()
    assert "items" not in templates.list(**region).execute()
    assert "items" not in policies.list(**region).execute()

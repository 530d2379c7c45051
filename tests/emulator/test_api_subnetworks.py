"""Subnetworks, regions, instances, lists of projects and accounts; a project by its number."""

from __future__ import annotations

import pytest

P = "/compute/v1/projects/p"
CENTRAL = f"{P}/regions/us-central1"
OWN = {"name": "own", "autoCreateSubnetworks": False}


def ok(answer):
    status, document = answer
    assert status == 200, document
    return document


def test_an_auto_mode_network_has_a_subnetwork_in_every_region(api):
    regions = {region["name"] for region in ok(api.call("GET", f"{P}/regions"))["items"]}
    aggregated = ok(api.call("GET", f"{P}/aggregated/subnetworks"))["items"]
    assert aggregated.keys() == {f"regions/{name}" for name in regions}
    blocks = [each["subnetworks"][0]["ipCidrRange"] for each in aggregated.values()]
    assert len(set(blocks)) == len(blocks)
    found = ok(api.call("GET", f"{CENTRAL}/subnetworks/default"))
    assert found["network"].endswith("/projects/p/global/networks/default")
    assert found == ok(api.call("GET", f"{CENTRAL}/subnetworks"))["items"][0]
    for missing in (f"{CENTRAL}/subnetworks/no", f"{P}/regions/no/subnetworks/default"):
        assert api.call("GET", missing)[0] == 404


def test_a_custom_network_has_the_subnetworks_that_were_created(api):
    ok(api.call("POST", f"{P}/global/networks", OWN))
    assert api.call("GET", f"{CENTRAL}/subnetworks/own")[0] == 404
    wanted = {"name": "s", "network": f"{P}/global/networks/own", "ipCidrRange": "10.0.0.0/24"}
    operation = ok(api.call("POST", f"{CENTRAL}/subnetworks", wanted))
    name = operation["name"]
    api.advance(1)
    assert ok(api.call("POST", f"{CENTRAL}/operations/{name}/wait"))["status"] == "DONE"
    subnetwork = ok(api.call("GET", f"{CENTRAL}/subnetworks/s"))
    assert (subnetwork["ipCidrRange"], subnetwork["gatewayAddress"]) == ("10.0.0.0/24", "10.0.0.1")
    assert api.call("POST", f"{CENTRAL}/subnetworks", wanted)[0] == 409
    overlapping = {**wanted, "name": "t", "ipCidrRange": "10.0.0.128/25"}
    status, answer = api.call("POST", f"{CENTRAL}/subnetworks", overlapping)
    assert (status, "ipCidrRange" in answer["error"]["message"]) == (400, True)
    ok(api.call("DELETE", f"{CENTRAL}/subnetworks/s"))
    assert api.call("GET", f"{CENTRAL}/subnetworks/s")[0] == 404
    assert api.call("DELETE", f"{CENTRAL}/subnetworks/default")[0] == 400


def test_there_are_no_instances(api):
    assert "items" not in ok(api.call("GET", f"{P}/zones/us-central1-a/instances"))
    assert ok(api.call("GET", f"{P}/aggregated/instances"))["items"] == {}
    assert api.call("GET", f"{P}/zones/no-where1-a/instances")[0] == 404


def test_the_projects_that_were_named_are_listed_with_their_accounts(api):
    api.create("n")
    listed = ok(api.call("GET", "/v1/projects?filter=lifecycleState:ACTIVE"))["projects"]
    assert [project["projectId"] for project in listed] == ["p", "tpukit-local"]
    (account,) = ok(api.call("GET", "/v1/projects/p/serviceAccounts"))["accounts"]
    assert account["email"] == ok(api.call("GET", P))["defaultServiceAccount"]


def test_a_project_named_by_its_number_is_the_project_of_its_id(api):
    api.create("n")
    number = ok(api.call("GET", "/v3/projects/p"))["name"].rpartition("/")[2]
    place = f"projects/{number}/locations/us-central1-a"
    by_id = ok(api.call("GET", "/v2/projects/p/locations/us-central1-a/nodes/n"))
    assert ok(api.call("GET", f"/v2/{place}/nodes/n")) == by_id
    assert ok(api.call("GET", f"/v2/projects/{number}/locations/-/nodes"))["nodes"] == [by_id]
    node = {
        "acceleratorType": "v3-8",
        "runtimeVersion": "tpu-vm-base",
        "networkConfig": {"network": f"projects/{number}/global/networks/default"},
    }
    assert api.call("POST", f"/v2/{place}/nodes?nodeId=n", node)[0] == 409
    queued = {"tpu": {"nodeSpec": [{"parent": place, "nodeId": "q", "node": node}]}}
    for parent in (place, "projects/p/locations/us-central1-a"):
        query = f"queuedResourceId=q{len(parent)}"
        queued["tpu"]["nodeSpec"][0]["nodeId"] = f"q{len(parent)}"
        ok(api.call("POST", f"/v2/{parent}/queuedResources?{query}", queued))
    assert ok(api.call("GET", f"/compute/v1/projects/{number}"))["name"] == "p"
    assert ok(api.call("GET", f"/v1/projects/{number}"))["projectId"] == "p"


@pytest.mark.parametrize("path", ["/v2/projects/{}/locations/-/nodes", "/compute/v1/projects/{}"])
def test_a_number_that_no_project_has_is_refused(api, path):
    status, answer = api.call("GET", path.format("123456789012"))
    assert status == 403
    assert "projects/123456789012" in str(answer) or "project 123456789012" in str(answer)

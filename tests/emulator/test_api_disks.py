"""Disks of the Compute Engine API, as `tpukit reap` and gcloud ask for them."""

from __future__ import annotations

from urllib.parse import quote

import pytest

pytestmark = pytest.mark.process

BASE = "/compute/v1/projects/p"
DISKS = f"{BASE}/zones/us-central1-a/disks"
FULL = "projects/p/zones/us-central1-a/disks/data"


def test_a_disk_is_made_listed_kept_while_a_node_has_it_and_deleted(api):
    status, begun = api.call("POST", DISKS, {"name": "data", "sizeGb": "10"})
    assert (status, begun["operationType"]) == (200, "insert")
    operation = begun["selfLink"].partition("/compute/v1")[2]
    assert "/zones/us-central1-a/operations/" in operation
    assert api.call("POST", f"/compute/v1{operation}/wait")[1]["status"] == "DONE"
    status, disk = api.call("GET", f"{DISKS}/data")
    assert (status, disk["sizeGb"], disk["selfLink"].endswith(FULL)) == (200, "10", True)
    assert "users" not in disk
    assert api.call("POST", DISKS, {"name": "data"})[0] == 409
    assert api.call("POST", DISKS, {"name": "more"})[0] == 200
    listed = api.call("GET", DISKS)[1]["items"]
    assert [(row["name"], row["sizeGb"]) for row in listed] == [("data", "10"), ("more", "500")]
    everywhere = api.call("GET", f"{BASE}/aggregated/disks")[1]["items"]
    assert everywhere == {"zones/us-central1-a": {"disks": listed}}
    attached = [{"sourceDisk": FULL, "mode": "READ_WRITE"}]
    spec = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    nodes = "/v2/projects/p/locations/us-central1-a/nodes"
    assert api.call("POST", f"{nodes}?nodeId=n1", {**spec, "dataDisks": attached})[0] == 200
    status, refused = api.call("DELETE", f"{DISKS}/data")
    assert (status, "nodes/n1" in refused["error"]["message"]) == (400, True)
    assert api.call("DELETE", f"{DISKS}/more")[0] == 200
    assert api.call("GET", f"{DISKS}/more")[0] == 404


@pytest.mark.parametrize(
    ("place", "body", "status"),
    [("nowhere-a", {"name": "data"}, 404), ("us-central1-a", {"name": "Data"}, 400)],
)
def test_a_disk_is_in_a_zone_and_has_a_name(api, place, body, status):
    assert api.call("POST", f"{BASE}/zones/{place}/disks", body)[0] == status
    assert api.call("GET", f"{BASE}/aggregated/disks")[1]["items"] == {}


@pytest.mark.parametrize("text", ["labels.my-key=x", 'labels.my-key eq "x.*"', "labels.my-key:*"])
def test_a_filter_names_labels_with_hyphens(api, text):
    """Ray asks Compute Engine for `labels.ray-cluster-name`: autoscaler/_private/gcp/node.py."""
    for name, labels in (("data", {"my-key": "x"}), ("more", {"other-key": "x"})):
        assert api.call("POST", DISKS, {"name": name, "labels": labels})[0] == 200
    listed = api.call("GET", f"{DISKS}?filter={quote(text)}")[1]["items"]
    assert [row["name"] for row in listed] == ["data"]

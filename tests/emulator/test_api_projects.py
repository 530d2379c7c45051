"""What clients ask about a project before they use it."""

from __future__ import annotations

import pytest

SERVED = {"tpu", "compute", "oslogin", "serviceusage", "cloudresourcemanager", "iam", "cloudquotas"}


def services(api, query: str = "") -> dict[str, str]:
    status, answer = api.call("GET", f"/v1/projects/p/services{query}")
    assert status == 200, answer
    return {row["config"]["name"]: row["state"] for row in answer.get("services", ())}


def test_what_the_emulator_serves_is_enabled_and_more_can_be_for_good(emulators):
    api = emulators.start()
    served = {f"{name}.googleapis.com": "ENABLED" for name in SERVED}
    assert services(api) == served
    storage = "/v1/projects/p/services/storage.googleapis.com"
    assert api.call("GET", storage)[1]["state"] == "DISABLED"
    status, begun = api.call("POST", f"{storage}:enable", {})
    assert (status, begun.keys()) == (200, {"name"})
    done = api.call("GET", f"/v1/{begun['name']}")[1]
    assert (done["name"], done["done"]) == (begun["name"], True)
    assert done["response"]["service"]["state"] == "ENABLED"
    again = api.call("POST", f"{storage}:enable", {})[1]
    assert (again["name"], again["done"]) == ("operations/noop.DONE_OPERATION", True)
    assert api.call("GET", "/v1/operations/unknown")[0] == 404
    # A project's other properties stay, and it keeps its services when they change.
    api.call("POST", "/_emulator/v1/projects/p:attach", {"host": "h"})
    body = {"serviceIds": ["tpu.googleapis.com", "logging.googleapis.com"]}
    begun = api.call("POST", "/v1/projects/p/services:batchEnable", body)[1]
    done = api.call("GET", f"/v1/{begun['name']}")[1]
    assert [service["state"] for service in done["response"]["services"]] == ["ENABLED"] * 2
    emulators.stop()
    api = emulators.start()
    more = {"storage.googleapis.com": "ENABLED", "logging.googleapis.com": "ENABLED"}
    assert services(api, "?filter=state:ENABLED&pageSize=200") == {**served, **more}
    assert services(api, "?filter=state:DISABLED") == {}
    assert api.call("GET", "/v1/projects/other/services")[1].keys() == {"services"}
    assert len(api.call("GET", "/v1/projects/other/services")[1]["services"]) == len(SERVED)


def test_services_that_cannot_be_are_refused_together(api):
    path = "/v1/projects/p/services"
    for name in ("tpu", "tpu.example.com", "T.googleapis.com"):
        status, answer = api.call("POST", f"{path}/{name}:enable", {})
        assert (status, answer["error"]["status"]) == (403, "PERMISSION_DENIED"), name
    both = ["storage.googleapis.com", "no"]
    assert api.call("POST", f"{path}:batchEnable", {"serviceIds": both})[0] == 403
    many = [f"a{number}.googleapis.com" for number in range(21)]
    for refused in ([], many, ["storage.googleapis.com", 5]):
        body = {"serviceIds": refused}
        assert api.call("POST", f"{path}:batchEnable", body)[0] == 400, refused
    assert len(services(api)) == len(SERVED)


@pytest.mark.parametrize("version", ["v1", "v3"])
def test_a_project_has_one_number_and_all_permissions(api, version):
    number = api.call("GET", "/compute/v1/projects/p")[1]["id"]
    project = api.call("GET", f"/{version}/projects/p")[1]
    assert project["projectId"] == "p"
    if version == "v1":
        assert (project["projectNumber"], project["lifecycleState"]) == (number, "ACTIVE")
    else:
        assert (project["name"], project["state"]) == (f"projects/{number}", "ACTIVE")
    path = f"/{version}/projects/p:testIamPermissions"
    asked = {"permissions": ["tpu.nodes.create", "compute.firewalls.list"]}
    assert api.call("POST", path, asked) == (200, asked)
    for wrong in ("tpu.*", "tpu", "", "tpu nodes get"):
        assert api.call("POST", path, {"permissions": [wrong]})[0] == 400, wrong


def test_a_disabled_api_refuses_calls_of_its_project_until_it_is_enabled_again(emulators):
    api = emulators.start()
    tpu = "/v1/projects/p/services/tpu.googleapis.com"
    status, done = api.call("POST", f"{tpu}:disable", {})
    assert (status, done["done"]) == (200, True)
    assert done["response"]["service"]["state"] == "DISABLED"
    emulators.stop()
    api = emulators.start()
    assert services(api)["tpu.googleapis.com"] == "DISABLED"
    status, refused = api.call("GET", "/v2/projects/p/locations/-/nodes")
    assert (status, refused["error"]["status"]) == (403, "PERMISSION_DENIED")
    assert refused["error"]["message"].startswith("Cloud TPU API has not been used in project p")
    assert refused["error"]["details"][0]["reason"] == "SERVICE_DISABLED"
    assert api.call("GET", "/v2/projects/other/locations/-/nodes")[0] == 200
    assert api.call("GET", "/compute/v1/projects/p/global/firewalls")[0] == 200
    begun = api.call("POST", f"{tpu}:enable", {})[1]
    assert api.call("GET", f"/v1/{begun['name']}")[1]["done"]
    assert api.call("GET", "/v2/projects/p/locations/-/nodes")[0] == 200
    own = "/v1/projects/p/services/serviceusage.googleapis.com:disable"
    assert api.call("POST", own, {})[0] == 400


def test_a_service_that_was_enabled_besides_can_be_disabled(api):
    storage = "/v1/projects/p/services/storage.googleapis.com"
    api.call("POST", f"{storage}:enable", {})
    api.call("POST", f"{storage}:disable", {})
    assert api.call("GET", storage)[1]["state"] == "DISABLED"
    assert "storage.googleapis.com" not in services(api)


def test_a_fault_of_kind_roles_takes_permissions_and_refuses_the_calls_that_need_them(api):
    node = "/v2/projects/p/locations/us-central1-a/nodes"
    rule = {"kind": "roles", "permissions": "tpu.nodes.create compute.firewalls.*"}
    assert api.call("POST", "/_emulator/v1/faults", rule)[0] == 200
    asked = ["tpu.nodes.create", "tpu.nodes.get", "compute.firewalls.create"]
    path = "/v1/projects/p:testIamPermissions"
    granted = api.call("POST", path, {"permissions": asked})[1]
    assert granted == {"permissions": ["tpu.nodes.get"]}
    body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    status, refused = api.call("POST", f"{node}?nodeId=n", body)
    assert (status, refused["error"]["status"]) == (403, "PERMISSION_DENIED")
    assert "Permission 'tpu.nodes.create' denied on 'projects/p/" in refused["error"]["message"]
    assert api.call("GET", node)[0] == 200
    status, refused = api.call("GET", "/compute/v1/projects/p/global/firewalls")
    assert status == 403
    assert "Required 'compute.firewalls.list' permission" in refused["error"]["message"]
    api.call("DELETE", "/_emulator/v1/faults")
    assert api.call("POST", f"{node}?nodeId=n", body)[0] == 200


QUOTAS = "/v1/projects/p/locations/global/services/tpu.googleapis.com/quotaInfos"


def test_cloud_quotas_lists_the_limits_that_creates_count_on(api):
    offer = {"name": "v6e-8", "zone": "us-east5-b", "limit": 0}
    assert api.call("POST", "/_emulator/v1/catalogue/quotas", offer)[0] == 200
    infos = {info["quotaId"]: info for info in api.call("GET", QUOTAS)[1]["quotaInfos"]}
    assert {"TPUV6EPerProjectPerZoneForTPUAPI", "TPUV2sPodPerProjectPerZoneForTPUAPI"} <= {*infos}
    limited = infos["TPUV6EPerProjectPerZoneForTPUAPI"]
    exact, rest = limited["dimensionsInfos"]
    # ProtoJSON leaves out a value of 0.
    assert (exact["dimensions"], exact["details"]) == ({"zone": "us-east5-b"}, {})
    assert rest["details"] == {"value": "-1"}
    assert "us-east5-b" not in rest["applicableLocations"]
    assert api.call("GET", f"/v1/{limited['name']}")[1] == limited
    pages = api.call("GET", f"{QUOTAS}?pageSize=3")[1]
    assert (len(pages["quotaInfos"]), bool(pages["nextPageToken"])) == (3, True)
    other = QUOTAS.replace("tpu.g", "compute.g")
    assert api.call("GET", other)[1] == {}
    for wrong in (f"{QUOTAS}/none", QUOTAS.replace("global", "us-central1")):
        assert api.call("GET", wrong)[0] == 404, wrong

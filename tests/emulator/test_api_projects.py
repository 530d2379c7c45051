"""What clients ask about a project before they use it."""

from __future__ import annotations

import pytest

SERVED = {"tpu", "compute", "oslogin", "serviceusage", "cloudresourcemanager", "iam"}


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

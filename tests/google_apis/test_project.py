"""What the APIs of a project say of permissions, services and quotas, and what it means."""

from __future__ import annotations

from typing import Any

import pytest
from support.local_cloud import PROJECT, TOKEN, ZONE, Cloud, json_reply, scripted

from tpukit.emulator import EmulatorClient
from tpukit.errors import DeadlinePassed, NotAllowed, TpukitError
from tpukit.google.project import GoogleProject

SERVICES = ("tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com")


def project(cloud: Cloud, url: str) -> GoogleProject:
    return GoogleProject(cloud.session, PROJECT, manager=url, usage=f"{url}/", quotas=url)


def test_the_granted_permissions_are_those_that_the_answer_repeats(cloud: Cloud) -> None:
    cloud.fault(kind="roles", permissions="tpu.nodes.*")
    asked = ["tpu.nodes.get", "tpu.operations.get"]
    assert cloud.project.permitted(asked) == {"tpu.operations.get"}
    assert cloud.project.permitted(asked, "host-project") == {"tpu.operations.get"}
    more = {"permissions": [asked[0], "another.permission.get"]}
    for answer, granted in (({}, set()), (more, {asked[0]})):
        with scripted(json_reply(200, answer)) as server:
            assert project(cloud, server.url).permitted(asked) == granted
    with (
        scripted(json_reply(200, {"permissions": 5})) as server,
        pytest.raises(TpukitError, match="could not be read"),
    ):
        project(cloud, server.url).permitted(asked)


def test_services_are_enabled_together_and_waited_for(cloud: Cloud) -> None:
    assert cloud.project.disabled(SERVICES) == ("storage.googleapis.com",)
    cloud.project.enable(["storage.googleapis.com"])
    assert cloud.project.disabled(SERVICES) == ()
    cloud.project.enable(["storage.googleapis.com"])
    assert len(cloud.calls("services.getOperation")) == 1, "the second one was done at once"


def test_an_operation_that_fails_or_never_ends_is_an_error(cloud: Cloud) -> None:
    begun = {"name": "operations/o"}
    refused = {**begun, "done": True, "error": {"code": 7, "message": "billing is off"}}
    with (
        scripted(json_reply(200, begun), json_reply(200, refused)) as server,
        pytest.raises(NotAllowed, match="billing is off"),
    ):
        project(cloud, server.url).enable(["tpu.googleapis.com"])
    with (
        scripted(json_reply(200, begun)) as server,
        pytest.raises(DeadlinePassed, match="it may still succeed"),
    ):
        project(cloud, server.url).enable(["tpu.googleapis.com"])


def test_the_limit_of_a_zone_is_the_most_specific_one(cloud: Cloud) -> None:
    EmulatorClient(cloud.url, TOKEN).set_quota("v6e-8", ZONE, 0)
    limits = cloud.project.limits([ZONE, "us-east5-b"])
    name = "TPUV6EPerProjectPerZoneForTPUAPI"
    assert [limits[zone][name] for zone in (ZONE, "us-east5-b")] == [0, -1]


def info(*entries: dict[str, Any], dimension: str = "zone") -> dict[str, Any]:
    return {"quotaId": "Q", "dimensions": [dimension], "dimensionsInfos": [*entries]}


EVERYWHERE = {"details": {"value": "7"}, "applicableLocations": ["a-b1-c", "a-b1"]}


@pytest.mark.parametrize(
    ("quota", "limit"),
    [
        (info({"dimensions": {"zone": "a-b1-c"}, "details": {"value": "4"}}, EVERYWHERE), 4),
        (info({"dimensions": {"zone": "a-b1-d"}, "details": {"value": "4"}}, EVERYWHERE), 7),
        (info({"dimensions": {"zone": "a-b1-c"}, "details": {}}, EVERYWHERE), 0),
        (info({"dimensions": {"zone": "a-b1-c"}}), 0),
        (info({"dimensions": {"region": "a-b1"}, "details": {"value": 5}}, dimension="region"), 5),
        (info({"details": {"value": "-1"}}), -1),
        (info({"dimensions": None, "details": {"value": "3"}, "applicableLocations": None}), 3),
        (info({"details": {"value": "3"}, "applicableLocations": ["x-y1-z"]}), None),
        (info({"details": {"value": "9"}}, dimension="user"), None),
        (info(), None),
    ],
)
def test_each_form_of_an_answer_about_a_quota(
    cloud: Cloud, quota: dict[str, Any], limit: int | None
) -> None:
    with scripted(json_reply(200, {"quotaInfos": [quota]})) as server:
        known = project(cloud, server.url).limits(["a-b1-c"])["a-b1-c"]
    assert known.get("Q") == limit
    path = f"/v1/projects/{PROJECT}/locations/global/services/tpu.googleapis.com/quotaInfos"
    assert server.seen[0][1].startswith(path)


@pytest.mark.parametrize(
    "answer",
    [
        {"quotaInfos": ["x"]},
        {"quotaInfos": [{"dimensions": ["zone"], "dimensionsInfos": [{}]}]},
        {"quotaInfos": [info({"details": {"value": "many"}})]},
        {"quotaInfos": 5},
        {"quotaInfos": [info({"dimensions": "x"})]},
    ],
)
def test_an_answer_about_quotas_that_cannot_be_read_is_one_error(cloud: Cloud, answer: Any) -> None:
    with (
        scripted(json_reply(200, answer)) as server,
        pytest.raises(TpukitError, match="could not be read"),
    ):
        project(cloud, server.url).limits(["a-b1-c"])

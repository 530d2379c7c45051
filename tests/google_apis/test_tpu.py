"""Slices through the Cloud TPU API: their life, their odd fields, and their listing."""

from __future__ import annotations

from typing import Any

import pytest
from support.local_cloud import (
    OTHER_ZONE,
    PROJECT,
    ZONE,
    Cloud,
    FakeClock,
    Reply,
    json_reply,
    scripted,
)

from tpukit.errors import BadInput, NotFound, TpukitError
from tpukit.google.provider import Doubtful
from tpukit.google.tpu import CloudTpu
from tpukit.models import Slice, SliceChange

LOCATION = f"projects/{PROJECT}/locations/{ZONE}"


def queue(cloud: Cloud, name: str, document: Any) -> None:
    """Ask for a queued resource as any client would."""
    url = f"{cloud.url}/v2/{LOCATION}/queuedResources?queuedResourceId={name}"
    cloud.session.rest("ask", "POST", url, body=document)


def ready(cloud: Cloud, name: str = "demo", **given: Any) -> Slice:
    """Make a slice, let its time pass, and return it."""
    request = cloud.request(name, **given)
    cloud.tpu.create(request)
    cloud.clock.sleep(31.0)
    return cloud.tpu.get(request.zone, name)


def test_a_slice_lives_from_create_to_not_found(cloud: Cloud) -> None:
    operation = cloud.tpu.create(cloud.request())
    assert cloud.tpu.get(ZONE, "demo").state == "CREATING"
    assert cloud.tpu.failure(operation, "create slice demo") is None
    cloud.clock.sleep(31.0)
    assert cloud.tpu.get(ZONE, "demo").state == "READY"
    assert cloud.tpu.failure(operation, "create slice demo") is None
    cloud.tpu.stop(ZONE, "demo")
    assert cloud.tpu.get(ZONE, "demo").state == "STOPPING"
    cloud.clock.sleep(31.0)
    assert cloud.tpu.get(ZONE, "demo").state == "STOPPED"
    cloud.tpu.start(ZONE, "demo")
    cloud.clock.sleep(31.0)
    assert cloud.tpu.get(ZONE, "demo").ready
    cloud.tpu.delete(ZONE, "demo")
    assert cloud.tpu.get(ZONE, "demo").state == "DELETING"
    cloud.clock.sleep(31.0)
    with pytest.raises(NotFound):
        cloud.tpu.get(ZONE, "demo")


def test_everything_that_was_asked_for_is_what_the_cloud_has(cloud: Cloud) -> None:
    slice_ = ready(
        cloud,
        provisioning="spot",
        labels={"team": "vision"},
        tags=("one", "two"),
        metadata={"ssh-keys": "a:b"},
    )
    assert slice_.name == "demo"
    assert (slice_.project, slice_.zone) == (PROJECT, ZONE)
    assert (slice_.accelerator_type, slice_.runtime_version) == ("v3-8", "tpu-ubuntu2204-base")
    assert slice_.provisioning == "spot"
    assert slice_.labels == {"team": "vision"}
    assert slice_.tags == ("one", "two")
    assert slice_.metadata == {"ssh-keys": "a:b"}
    assert slice_.network == "default"
    assert slice_.health == "HEALTHY"
    assert slice_.created.startswith("20")


@pytest.mark.parametrize(
    "kind",
    [
        "google.cloud.common.OperationMetadata",  # recorded
        "google.cloud.tpu.v2.OperationMetadata",  # in the annotations of Google's Python client
        "google.cloud.tpu.v9.MetadataOfTomorrow",
        None,
    ],
)
def test_an_operation_is_read_whatever_message_it_carries(cloud: Cloud, kind: str | None) -> None:
    name = f"{LOCATION}/operations/o-1"
    metadata = {"@type": f"type.googleapis.com/{kind}", "verb": "create", "of": {"tomorrow": 1}}
    begun = {"name": name, **({"metadata": metadata} if kind else {})}
    failed = {**begun, "done": True, "error": {"code": 8, "message": "Insufficient capacity"}}
    with scripted(json_reply(200, begun), json_reply(200, failed)) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        assert tpu.create(cloud.request()) == name
        assert "Insufficient capacity" in str(tpu.failure(name, "create slice demo"))


@pytest.mark.parametrize("code", [8, 13])
@pytest.mark.parametrize("verb", ["create", "start", "of tomorrow", 7, "delete", "stop", "update"])
def test_a_code_without_a_cause_means_no_capacity_only_if_the_operation_asked_for_it(
    cloud: Cloud, code: int, verb: object
) -> None:
    error = {"code": code, "message": "an internal error has occurred"}
    done = {"done": True, "metadata": {"verb": verb}, "error": error}
    with scripted(json_reply(200, done)) as server:
        failure = CloudTpu(cloud.session, PROJECT, server.url).failure("o", "change slice demo")
    assert failure
    asks = verb not in ("delete", "stop", "update")
    assert (type(failure).__name__ == "NoCapacity") is asks


@pytest.mark.parametrize("answer", [{}, {"name": ""}, {"name": 7}, {"name": "demo"}, [], None])
def test_a_create_that_is_answered_without_an_operation_is_doubtful(
    cloud: Cloud, answer: object
) -> None:
    with scripted(json_reply(200, answer)) as server, pytest.raises(Doubtful):
        CloudTpu(cloud.session, PROJECT, server.url).create(cloud.request())
    assert len(server.seen) == 1


@pytest.mark.parametrize("external", [True, False])
def test_external_addresses_are_said_always(cloud: Cloud, external: bool) -> None:
    found = ready(cloud, external_addresses=external)
    assert bool(found.workers[0].external_address) is external


@pytest.mark.parametrize("way", ["on-demand", "spot", "reserved"])
def test_each_way_of_buying_comes_back_as_it_was_asked(cloud: Cloud, way: str) -> None:
    held = {"name": "held", "project": PROJECT, "zone": ZONE, "resourceType": "v3", "size": 8}
    cloud.control("POST", "catalogue/reservations", held)
    assert ready(cloud, provisioning=way).provisioning == way


def test_the_workers_are_numbered_as_the_endpoints_stand(cloud: Cloud) -> None:
    found = ready(cloud, accelerator_type="v3-32")
    assert [worker.index for worker in found.workers] == [0, 1, 2, 3]
    assert len({worker.address for worker in found.workers}) == 4


def test_all_zones_are_listed_in_one_call(cloud: Cloud) -> None:
    ready(cloud, "a")
    ready(cloud, "b", zone=OTHER_ZONE)
    listed = cloud.tpu.list("-").slices
    assert [(slice_.name, slice_.zone) for slice_ in listed] == [("a", ZONE), ("b", OTHER_ZONE)]
    assert [slice_.name for slice_ in cloud.tpu.list(ZONE).slices] == ["a"]
    assert len(cloud.calls("nodes.list")) == 2


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": f"projects/p/locations/z/nodes/{name}", **fields}


def test_every_page_is_read_and_each_with_retries_of_its_own(cloud: Cloud) -> None:
    busy = json_reply(503, {"error": {"status": "UNAVAILABLE", "message": "busy"}})
    pages = [
        json_reply(200, {"nodes": [node("a")], "nextPageToken": "t/1+="}),
        busy,
        json_reply(200, {"nodes": [node("b")], "unreachable": ["locations/x"]}),
    ]
    with scripted(*pages) as server:
        listed = CloudTpu(cloud.session, PROJECT, server.url).list("-")
        assert "pageToken=t%2F1%2B%3D" in server.seen[-1][1]
        assert len(server.seen) == 3
    assert [slice_.name for slice_ in listed.slices] == ["a", "b"]
    assert listed.unreachable == ("x",)


def test_a_fault_on_the_second_page_fails_the_list_rather_than_cut_it(
    cloud: Cloud, clock: FakeClock
) -> None:
    first = json_reply(200, {"nodes": [node("a")], "nextPageToken": "t"})
    refusal = json_reply(403, {"error": {"status": "PERMISSION_DENIED", "message": "no"}})
    with scripted(first, refusal) as server, pytest.raises(TpukitError):
        CloudTpu(cloud.session, PROJECT, server.url).list("-")


def read(cloud: Cloud, document: dict[str, Any]) -> Slice:
    with scripted(json_reply(200, document)) as server:
        return CloudTpu(cloud.session, PROJECT, server.url).get("z", "n")


@pytest.mark.parametrize(
    ("fields", "state", "health"),
    [
        ({"state": 99, "health": 98}, "99", "98"),
        ({}, "", ""),
        ({"state": "PREEMPTED", "health": "UNHEALTHY_MAINTENANCE"}, "PREEMPTED", None),
        ({"state": "STATE_UNSPECIFIED"}, "", ""),
    ],
)
def test_words_that_are_not_known_yet_are_shown_as_they_came(
    cloud: Cloud, fields: dict[str, Any], state: str, health: str | None
) -> None:
    slice_ = read(cloud, node("n", **fields))
    assert slice_.state == state
    assert health is None or slice_.health == health


def test_a_word_of_tomorrow_s_api_does_not_end_the_command(cloud: Cloud) -> None:
    assert read(cloud, node("n", state="TELEPORTING")).state == "TELEPORTING"


def test_fields_of_tomorrow_s_api_are_passed_over(cloud: Cloud) -> None:
    assert read(cloud, node("n", state="READY", fieldOfTomorrow={"a": [1]})).state == "READY"


def test_no_field_of_a_node_carries_an_escape_or_a_line_end(cloud: Cloud) -> None:
    hostile = "a\x1b[31m\nb\u202e"
    document = node(
        f"n{hostile}",
        acceleratorType=hostile,
        runtimeVersion=hostile,
        healthDescription=hostile,
        labels={hostile: hostile},
        tags=[hostile],
        networkConfig={"network": f"global/networks/{hostile}"},
        networkEndpoints=[{"ipAddress": hostile, "accessConfig": {"externalIp": hostile}}],
        queuedResource=f"q/{hostile}",
        serviceAccount={"email": hostile},
    )
    with scripted(json_reply(200, {"nodes": [document]})) as server:
        (slice_,) = CloudTpu(cloud.session, PROJECT, server.url).list("z").slices
    text = repr(slice_)
    assert "\\x1b[31m" not in text.replace("\\\\", "|")
    assert "\\n" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    "name",
    [
        *("", "demo", "projects/p/locations/z/nodes/a/b"),
        *("projects/p/locations/z/nodes/other", "projects/p/locations/elsewhere/nodes/n"),
    ],
)
def test_a_node_without_the_full_name_that_was_asked_for_is_refused(
    cloud: Cloud, name: str
) -> None:
    with pytest.raises(TpukitError, match="could not be read"):
        read(cloud, {"name": name, "state": "READY"})


def test_a_queued_resource_of_another_name_is_refused(cloud: Cloud) -> None:
    other = {"name": "projects/p/locations/z/queuedResources/other", "state": {"state": "ACTIVE"}}
    with (
        scripted(json_reply(200, other)) as server,
        pytest.raises(TpukitError, match="could not be read"),
    ):
        CloudTpu(cloud.session, PROJECT, server.url).get_queued("z", "n")


@pytest.mark.parametrize(
    ("preset", "kind"),
    [
        ("stockout", "NoCapacity"),
        ("stockout-reserved", "NoCapacity"),
        ("stockout-internal", "NoCapacity"),
    ],
)
def test_a_stockout_in_the_operation_is_told_under_whatever_code(
    cloud: Cloud, preset: str, kind: str
) -> None:
    cloud.fault(preset=preset)
    operation = cloud.tpu.create(cloud.request())
    assert cloud.tpu.failure(operation, "create slice demo") is None
    cloud.clock.sleep(31.0)
    assert type(cloud.tpu.failure(operation, "create slice demo")).__name__ == kind


def test_what_was_done_to_a_slice_is_found_by_verb_and_time_whatever_names_the_project(
    cloud: Cloud,
) -> None:
    rows = {
        "by-number": (f"projects/123/locations/{ZONE}/nodes/demo", "update", "12:00:01.5Z"),
        "by-id": (f"{LOCATION}/nodes/demo", "update", "12:00:00.1Z"),
        "earlier": (f"{LOCATION}/nodes/demo", "update", "11:59:59.9Z"),
        "other-verb": (f"{LOCATION}/nodes/demo", "stop", "12:00:01Z"),
        "other-slice": (f"{LOCATION}/nodes/not-demo", "update", "12:00:01Z"),
    }
    operations = [
        {
            "name": name,
            "metadata": {"target": target, "verb": verb, "createTime": f"2026-01-01T{at}"},
        }
        for name, (target, verb, at) in rows.items()
    ]
    with scripted(json_reply(200, {"operations": operations})) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        found = tpu.operations(ZONE, "demo", "update", "2026-01-01T12:00:00.9Z")
    assert found == {"by-number", "by-id"}


def test_what_a_list_or_a_create_does_not_find_is_never_the_slice(cloud: Cloud) -> None:
    error = {"error": {"code": 404, "status": "NOT_FOUND", "message": "Network n was not found"}}
    with scripted(json_reply(404, error)) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        with pytest.raises(BadInput, match="Network n"):
            tpu.list("-")
        with pytest.raises(BadInput, match="Network n"):
            tpu.create(cloud.request())
        with pytest.raises(NotFound, match="Network n"):
            tpu.start(ZONE, "demo")


def test_a_service_account_gets_every_scope(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request(service_account="a@b.iam.gserviceaccount.com"))
    (sent,) = cloud.server.service.context.state.nodes.values()
    assert sent["node"]["serviceAccount"] == {
        "email": "a@b.iam.gserviceaccount.com",
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
    }


@pytest.mark.parametrize(
    ("preset", "kind"),
    [
        ("quota", "QuotaExceeded"),
        ("permission-denied", "NotAllowed"),
        ("api-disabled", "NotEnabled"),
    ],
)
def test_each_refusal_of_a_create_is_told(cloud: Cloud, preset: str, kind: str) -> None:
    cloud.fault(preset=preset, probability=1.0)
    with pytest.raises(TpukitError) as caught:
        cloud.tpu.create(cloud.request())
    assert type(caught.value).__name__ == kind
    assert caught.value.fix


def test_a_detail_of_an_unknown_type_loses_only_itself(cloud: Cloud) -> None:
    error = {
        "code": 8,
        "message": 'There is no more capacity in the zone "z"',
        "details": [{"@type": "type.googleapis.com/of.Tomorrow", "a": 1}],
    }
    name = "projects/p/locations/z/operations/o"
    done = {"name": name, "done": True, "error": error}
    with scripted(json_reply(200, done)) as server:
        failure = CloudTpu(cloud.session, PROJECT, server.url).failure(name, "create it")
    assert type(failure).__name__ == "NoCapacity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_what_writes_follows_no_redirection(cloud: Cloud, status: int) -> None:
    with scripted(json_reply(200, {"name": "operations/o"})) as other:
        answer = Reply(status, b"{}", {"Location": f"{other.url}/y"})
        with scripted(answer) as server, pytest.raises(TpukitError):
            CloudTpu(cloud.session, PROJECT, server.url).delete(ZONE, "demo")
        assert other.seen == []


def test_metadata_and_tags_are_replaced(cloud: Cloud) -> None:
    ready(cloud)
    cloud.tpu.update(ZONE, "demo", SliceChange(metadata={"a": "1"}, tags=("t",)))
    cloud.clock.sleep(5.0)
    slice_ = cloud.tpu.get(ZONE, "demo")
    assert slice_.metadata == {"a": "1"}
    assert slice_.tags == ("t",)


def test_every_worker_publishes_host_keys_once_it_has_booted(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request(accelerator_type="v3-32"))
    assert all(not identity.host_keys for identity in cloud.tpu.identities(ZONE, "demo"))
    cloud.clock.sleep(31.0)
    identities = cloud.tpu.identities(ZONE, "demo")
    assert [identity.index for identity in identities] == [0, 1, 2, 3]
    assert all(identity.host_keys[0].startswith("ssh-ed25519 AAAA") for identity in identities)
    assert len({identity.host_keys for identity in identities}) == 4
    assert all(identity.ssh_port == 22 and identity.hostname for identity in identities)


@pytest.mark.parametrize(
    ("port", "expected"),
    [("2222", 2222), ("0", 22), ("65536", 22), ("x", 22), ("-1", 22), ("²", 22), ("", 22)],
)
def test_a_port_that_cannot_be_is_the_usual_one(cloud: Cloud, port: str, expected: int) -> None:
    items = [{"namespace": "ssh", "key": "port", "value": port}]
    document = {"guestAttributes": [{"queryValue": {"items": items}}]}
    with scripted(json_reply(200, document)) as server:
        identities = CloudTpu(cloud.session, PROJECT, server.url).identities("z", "n")
    assert identities[0].ssh_port == expected


@pytest.mark.parametrize("value", ["AAAAbody", "ssh-ed25519 AAAAbody"])
def test_a_host_key_is_taken_with_its_kind_and_without(cloud: Cloud, value: str) -> None:
    items = [{"namespace": "hostkeys", "key": "ssh-ed25519", "value": value}]
    document = {"guestAttributes": [{"queryValue": {"items": items}}]}
    with scripted(json_reply(200, document)) as server:
        identities = CloudTpu(cloud.session, PROJECT, server.url).identities("z", "n")
    assert identities[0].host_keys == ("ssh-ed25519 AAAAbody",)


@pytest.mark.parametrize("error", [7, "x", [1], {"code": "x"}, {"code": [], "details": 7}])
def test_an_operation_that_failed_in_another_shape_has_failed_all_the_same(
    cloud: Cloud, error: object
) -> None:
    with scripted(json_reply(200, {"done": True, "error": error})) as server:
        failure = CloudTpu(cloud.session, PROJECT, server.url).failure("o", "create it")
    assert type(failure) is TpukitError


def test_queued_resources_are_read_and_go_with_their_slices(prompt_cloud: Cloud) -> None:
    node = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "labels": {"team": "vision"},
    }
    several = {"nodeCount": 2, "nodeIdPrefix": "pod"}
    spec = {"parent": LOCATION, "node": node, "multisliceParams": several}
    queue(prompt_cloud, "both", {"tpu": {"nodeSpec": [spec]}, "spot": {}})
    prompt_cloud.fault(preset="queued-stockout-internal")
    queue(
        prompt_cloud,
        "dead",
        {"tpu": {"nodeSpec": [{"parent": LOCATION, "nodeId": "one", "node": node}]}},
    )
    tpu = prompt_cloud.tpu
    both, dead = tpu.list_queued("-").requests
    assert (both.state, both.slices, both.provisioning) == ("ACTIVE", ("pod-0", "pod-1"), "spot")
    assert (both.accelerator_type, both.labels, both.zone) == ("v2-8", {"team": "vision"}, ZONE)
    assert (dead.state, dead.error, dead.dead) == ("FAILED", "an internal error has occurred", True)
    assert tpu.get_queued(ZONE, "both") == both
    tpu.delete_queued(ZONE, "both", force=True)
    with pytest.raises(NotFound):
        tpu.get_queued(ZONE, "both")
    assert prompt_cloud.nodes() == []


def test_a_zone_that_did_not_answer_is_named_beside_what_the_others_have(
    prompt_cloud: Cloud,
) -> None:
    for zone in (ZONE, OTHER_ZONE):
        prompt_cloud.tpu.create(prompt_cloud.request("demo", zone=zone))
    prompt_cloud.fault(kind="unreachable", method="*.list", zone=OTHER_ZONE, times=2)
    listed = prompt_cloud.tpu.list("-")
    assert [slice_.zone for slice_ in listed.slices] == [ZONE]
    assert listed.unreachable == (OTHER_ZONE,)
    assert prompt_cloud.tpu.list_queued("-").unreachable == listed.unreachable
    assert len(prompt_cloud.tpu.list("-").slices) == 2


@pytest.mark.parametrize("silent", [[None], [7], [{}], "all"])
def test_zones_that_cannot_be_read_are_an_error_of_ours(cloud: Cloud, silent: Any) -> None:
    answer, unread = json_reply(200, {"unreachable": silent}), "could not be read"
    with scripted(answer) as server, pytest.raises(TpukitError, match=unread):
        CloudTpu(cloud.session, PROJECT, server.url).list("-")

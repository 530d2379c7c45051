from __future__ import annotations

from urllib.parse import quote

import pytest

from emulator.conftest import read_body
from tpukit.emulator.core.api_errors import ApiError, Status

PLACE = "projects/p/locations/us-central1-a"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def spec(**given):
    return {"parent": PLACE, "node": NODE, **given}


def ask(cloud, name="q", *, query_requestId="", version="v2", failure=None, delay=0.0, **given):  # noqa: N803
    """Ask for one node `n`, or for what `tpu` says instead."""
    body = {"tpu": {"nodeSpec": [spec(nodeId="n")]}, **given}
    call = cloud.call(
        body=read_body(f"{version} queuedResources", body),
        version=version,
        failure=failure,
        query_queuedResourceId=name,
        query_requestId=query_requestId,
    )
    object.__setattr__(call, "delay", delay)
    return cloud.service.queued_resources.create(call)


def call(cloud, verb, name="q", version="v2", **given):
    handler = getattr(cloud.service.queued_resources, verb)
    return handler(cloud.call(path_queued=name, version=version, **given))


def state(cloud, name="q"):
    return call(cloud, "get", name)["state"]


def node_states(cloud):
    return [record["node"]["state"] for record in cloud.state.nodes.values()]


def refusal(act, *arguments, **given):
    with pytest.raises(ApiError) as caught:
        act(*arguments, **given)
    return caught.value.status


def active(cloud, **given):
    operation = ask(cloud, **given)
    cloud.pass_time(10)
    assert state(cloud)["state"] == "ACTIVE"
    return operation


def test_a_request_walks_through_its_states_and_its_node_is_an_ordinary_one(cloud):
    ask(cloud)
    seen = [state(cloud)["state"]]
    for _ in range(40):
        cloud.pass_time(0.1)
        if state(cloud)["state"] != seen[-1]:
            seen.append(state(cloud)["state"])
    assert seen == ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    node = cloud.get("n")
    assert (node["state"], node["queuedResource"]) == ("READY", f"{PLACE}/queuedResources/q")
    assert cloud.host.booted == {f"{PLACE}/nodes/n"}


def test_a_name_is_of_the_signs_that_the_api_documents(api):
    """Wider than that of a node, which has to have its own where the request has another."""
    path = f"/v2/{PLACE}/queuedResources"
    names = ("Q_1", "a.b", "a~b", "1", "a+b", "a%41", "-", "x" * 200)
    for number, name in enumerate(names):
        body = {"tpu": {"nodeSpec": [spec(nodeId=f"n{number}")]}}
        assert api.call("POST", f"{path}?queuedResourceId={quote(name)}", body)[0] == 200, name
        full = f"{PLACE}/queuedResources/{name}"
        assert api.call("GET", f"{path}/{quote(name)}")[1]["name"] == full
    body = {"tpu": {"nodeSpec": [spec(nodeId="other")]}}
    for name in ("a b", "a/b", "a:b", "ä", "a\n"):
        status, answer = api.call("POST", f"{path}?queuedResourceId={quote(name, safe='')}", body)
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT"), name
    several = {"tpu": {"nodeSpec": [spec(multisliceParams={"nodeCount": 2})]}}
    status, answer = api.call("POST", f"{path}?queuedResourceId=Q_2", several)
    assert "the node id prefix 'Q_2' is not valid" in answer["error"]["message"]
    assert len(api.call("GET", path)[1]["queuedResources"]) == len(names)


def test_a_leap_of_the_clock_lets_everything_happen_at_its_own_time(cloud):
    ask(cloud)
    cloud.pass_time(1000)
    assert state(cloud) == {"state": "ACTIVE", "activeData": {}}
    # 0.2 to be accepted, 0.3 and 0.3 in the queue: 22:13:20.8
    assert cloud.get("n")["createTime"] == "2023-11-14T22:13:20.800000Z"
    assert cloud.state.queued_resources[f"{PLACE}/queuedResources/q"]["since"] == 1_700_000_002.8


def test_the_operation_of_a_create_ends_when_the_request_is_accepted(cloud):
    started = ask(cloud)
    cloud.pass_time(0.2)
    ended = cloud.operation(started)
    assert ended["done"] is True
    assert ended["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.QueuedResource"
    assert ended["response"]["state"]["state"] == "ACCEPTED"


@pytest.mark.parametrize(
    ("version", "key"), [("v2", "multisliceParams"), ("v2alpha1", "multiNodeParams")]
)
def test_a_spec_of_several_nodes_is_written_out_with_the_ids_of_the_reference(cloud, version, key):
    several = spec(**{key: {"nodeCount": 3, "nodeIdPrefix": "np"}})
    active(cloud, tpu={"nodeSpec": [several]}, version=version)
    specs = call(cloud, "get")["tpu"]["nodeSpec"]
    assert [one["nodeId"] for one in specs] == ["np-0", "np-1", "np-2"]
    assert all(key not in one for one in specs)
    nodes = [cloud.get(f"np-{number}") for number in range(3)]
    assert all(node["multisliceNode"] and node["state"] == "READY" for node in nodes)


def test_without_a_prefix_the_id_of_the_request_is_the_prefix(cloud):
    several = spec(multislice_params={"node_count": 2})
    active(cloud, tpu={"node_spec": [several]})
    assert cloud.get("q-1")["state"] == "READY"


ELSEWHERE = "projects/p/locations/us-central1-b"


def reserve(cloud, place=PLACE):
    body = {"name": f"{place}/reservations/held", "resourceType": "v3", "size": 8}
    cloud.service.reservations.add(cloud.call(body=body))


@pytest.mark.parametrize(("place", "name"), [(PLACE, "-"), (PLACE, "gone"), (ELSEWHERE, "held")])
def test_a_request_without_its_reservation_fails_and_never_becomes_active(cloud, place, name):
    reserve(cloud, ELSEWHERE)
    ask(cloud, reservationName=f"{place}/reservations/{name}")
    cloud.pass_time(100)
    state = call(cloud, "get")["state"]
    assert state["state"] == "FAILED"
    assert state["failedData"]["error"] == {"code": 5, "message": "Reservation not found"}


def test_a_reserved_node_without_a_reservation_fails_in_its_operation(cloud):
    body = {"schedulingConfig": {"reserved": True}}
    begun = cloud.create("n", body=body)
    assert not begun.get("done")
    cloud.pass_time(100)
    assert cloud.operation(begun)["error"] == {"code": 5, "message": "Reservation not found"}
    reserve(cloud)
    cloud.ready("n", body=body)
    assert cloud.get("n")["state"] == "READY"


@pytest.mark.parametrize(
    ("given", "scheduling"),
    [
        ({"spot": {}}, {"spot": True}),
        ({"guaranteed": {}}, {}),
        ({"reservationName": f"{PLACE}/reservations/-"}, {"reserved": True}),
    ],
)
def test_how_capacity_is_bought_shows_on_the_node(cloud, given, scheduling):
    reserve(cloud)
    active(cloud, **given)
    assert cloud.get("n")["schedulingConfig"] == scheduling
    assert given.items() <= call(cloud, "get").items()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tpu": {}}, "at least one tpu.node_spec"),
        ({"tpu": {"nodeSpec": []}}, "at least one tpu.node_spec"),
        ({"tpu": {"nodeSpec": "x"}}, "Invalid value at 'queued_resource.tpu.node_spec'"),
        ({"tpu": {"nodeSpec": [{"nodeId": "n", "node": NODE}]}}, "parent '' must be"),
        ({"tpu": {"nodeSpec": [{"parent": PLACE, "nodeId": "n"}]}}, "tpu.node_spec.node"),
        ({"tpu": {"nodeSpec": [spec(nodeId="N")]}}, "node id 'N' must match"),
        ({"tpu": {"nodeSpec": [spec(nodeId="n"), spec(nodeId="n")]}}, "the same id"),
        (
            {"tpu": {"nodeSpec": [spec(nodeId="n", multisliceParams={"nodeCount": 2})]}},
            "only one of",
        ),
        ({"tpu": {"nodeSpec": [spec(multisliceParams={"nodeCount": 1})]}}, "above 1"),
        ({"tpu": {"nodeSpec": [spec(multisliceParams={"nodeCount": 10**6})]}}, "above 1"),
        (
            {"tpu": {"nodeSpec": [spec(multisliceParams={"nodeCount": 2, "nodeIdPrefix": "a b"})]}},
            "prefix 'a b'",
        ),
        (
            {"tpu": {"nodeSpec": [spec(nodeId="n", node={**NODE, "acceleratorType": "v4-8"})]}},
            "the accelerator v4-8 was not found",
        ),
        ({"spot": {}, "guaranteed": {}}, "only one of spot and guaranteed"),
        ({"spot": True}, "Invalid value at 'queued_resource.spot'"),
        ({"bestEffort": {}}, 'Unknown name "bestEffort"'),
        ({"queueingPolicy": {"validUntilDuration": "soon"}}, "valid_until_duration"),
        ({"queueingPolicy": {"validUntilDuration": "-1s"}}, "is negative"),
        ({"queueingPolicy": {"validUntilTime": "2023-11-15T00:00:00"}}, "valid_until_time"),
        ({"queueingPolicy": {"whenever": "1s"}}, "at 'queued_resource.queueing_policy'"),
        ({"guaranteed": {"reserved": True}}, "at 'queued_resource.guaranteed'"),
        (
            {"queueingPolicy": {"validUntilDuration": "1s", "validAfterDuration": "1s"}},
            "only one of",
        ),
    ],
)
def test_a_request_is_checked_before_it_is_queued(cloud, given, words):
    status = refusal(ask, cloud, **given)
    assert status.status == "INVALID_ARGUMENT"
    assert words in status.message
    assert cloud.state.queued_resources == {}


def test_fields_that_only_the_alpha_service_knows_pass_there(cloud):
    given = {"provisioningModel": "STANDARD", "runDuration": {"maxRunDuration": "60s"}}
    active(cloud, version="v2alpha1", **given)
    assert given.items() <= call(cloud, "get").items()


def test_flex_start_in_a_wrong_zone_fails_the_operation_and_leaves_no_request(cloud):
    begun = ask(cloud, version="v2alpha1", provisioningModel="FLEX_START")
    cloud.pass_time(10)
    error = cloud.operation(begun, version="v2alpha1")["error"]
    assert (error["code"], error["message"]) == (
        3,
        'FLEX_START provisioning model is not supported for accelerator type "v3-8" in location '
        '"us-central1-a"',
    )
    assert cloud.state.queued_resources == {}
    assert list(cloud.state.nodes) == []


def test_the_names_of_a_request_and_of_its_nodes_are_taken(cloud):
    ask(cloud)
    for again in ({}, {"name": "q2"}):
        assert refusal(ask, cloud, **again).status == "ALREADY_EXISTS"
    cloud.pass_time(10)
    assert refusal(ask, cloud, "q2").status == "ALREADY_EXISTS"


def test_a_create_with_the_same_request_id_is_the_same_create(cloud):
    first = ask(cloud, query_requestId="r1")
    assert ask(cloud, query_requestId="r1")["name"] == first["name"]
    assert refusal(ask, cloud, query_requestId="r2").status == "ALREADY_EXISTS"
    assert len(cloud.state.queued_resources) == 1


def test_a_request_waits_for_its_valid_after_time(cloud):
    ask(cloud, queueingPolicy={"validAfterDuration": "60s"})
    cloud.pass_time(59)
    assert state(cloud) == {"state": "WAITING_FOR_RESOURCES"}
    cloud.pass_time(10)
    assert state(cloud)["state"] == "ACTIVE"


@pytest.mark.parametrize(
    "policy",
    [
        {"validUntilDuration": "60s"},
        {"validUntilTime": "2023-11-14T22:14:20Z"},
        {
            "validInterval": {
                "startTime": "2023-11-14T22:13:30Z",
                "endTime": "2023-11-14T22:14:20Z",
            }
        },
    ],
)
def test_a_request_that_finds_no_capacity_in_time_fails_and_stays(cloud, policy):
    ask(cloud, queueingPolicy=policy, delay=3600.0)
    cloud.pass_time(59)
    assert state(cloud)["state"] == "WAITING_FOR_RESOURCES"
    cloud.pass_time(2)
    assert state(cloud)["failedData"]["error"]["code"] == 4
    cloud.pass_time(10**6)
    assert state(cloud)["state"] == "FAILED"
    assert cloud.state.nodes == {}


def test_a_stockout_goes_the_way_that_was_reported(cloud):
    ask(cloud, failure=Status("INTERNAL", "an internal error has occurred"))
    seen = []
    for _ in range(60):
        cloud.pass_time(0.1)
        if state(cloud)["state"] not in seen:
            seen.append(state(cloud)["state"])
    assert seen[-3:] == ["PROVISIONING", "SUSPENDING", "FAILED"]
    assert state(cloud) == {
        "state": "FAILED",
        "stateInitiator": "SERVICE",
        "failedData": {"error": {"code": 13, "message": "an internal error has occurred"}},
    }
    assert cloud.state.nodes == {}


def test_a_node_cannot_be_stopped_in_the_words_of_the_service(cloud):
    active(cloud)
    status = refusal(cloud.service.nodes.stop, cloud.call(path_node="n"))
    assert "StopNode is not supported for queued resources" in status.message


@pytest.mark.parametrize("by", ["user", "service"])
def test_a_request_that_loses_a_node_is_suspended_and_says_by_whom(cloud, by):
    active(cloud, tpu={"nodeSpec": [spec(multisliceParams={"nodeCount": 2})]})
    if by == "user":
        cloud.service.nodes.delete(cloud.call(path_node="q-0"))
    else:
        cloud.service.apply_event(f"{PLACE}/nodes/q-0", "preempt")
    cloud.pass_time(0)
    assert state(cloud) == {
        "state": "SUSPENDING",
        "suspendingData": {},
        "stateInitiator": by.upper(),
    }
    cloud.pass_time(1)
    assert state(cloud)["state"] == "SUSPENDED"
    assert (cloud.state.nodes, cloud.host.booted) == ({}, set())


def test_a_run_duration_ends_the_nodes(cloud):
    active(cloud, version="v2alpha1", runDuration={"maxRunDuration": "60s"})
    cloud.pass_time(60)
    assert state(cloud) == {
        "state": "SUSPENDED",
        "suspendedData": {},
        "stateInitiator": "SERVICE",
    }


def test_a_request_with_nodes_is_deleted_by_force_alone(cloud):
    active(cloud)
    assert refusal(call, cloud, "delete").status == "FAILED_PRECONDITION"
    started = call(cloud, "delete", query_force="true")
    assert (state(cloud)["state"], node_states(cloud)) == ("DELETING", ["DELETING"])
    assert refusal(call, cloud, "delete", query_force="true").status == "ABORTED"
    cloud.pass_time(1)
    assert refusal(call, cloud, "get").status == "NOT_FOUND"
    assert (cloud.state.nodes, cloud.host.booted) == ({}, set())
    assert cloud.operation(started)["response"] == {
        "@type": "type.googleapis.com/google.protobuf.Empty"
    }


@pytest.mark.parametrize("seconds", [0, 0.2, 0.5])
def test_a_request_without_nodes_is_deleted_without_force(cloud, seconds):
    ask(cloud)
    cloud.pass_time(seconds)
    call(cloud, "delete")
    cloud.pass_time(1)
    assert cloud.state.queued_resources == {}


def test_a_request_being_provisioned_takes_its_nodes_with_it(cloud):
    ask(cloud)
    cloud.pass_time(1)
    assert node_states(cloud) == ["CREATING"]
    call(cloud, "delete", query_force="true")
    cloud.pass_time(10)
    assert (cloud.state.queued_resources, cloud.state.nodes) == ({}, {})


def test_a_delete_that_fails_later_leaves_everything_as_it_was(cloud):
    active(cloud)
    failure = Status("FAILED_PRECONDITION", "not now")
    started = call(cloud, "delete", query_force="true", failure=failure)
    cloud.pass_time(10)
    assert cloud.operation(started)["error"]["message"] == "not now"
    assert (state(cloud)["state"], node_states(cloud)) == ("ACTIVE", ["READY"])


def test_a_reset_restarts_the_workers_of_an_active_request(cloud):
    ask(cloud)
    assert "not supported while in state CREATING" in refusal(call, cloud, "reset").message
    cloud.pass_time(10)
    started = call(cloud, "reset")
    assert (node_states(cloud), cloud.host.booted) == (["RESTARTING"], set())
    assert refusal(call, cloud, "reset").status == "ABORTED"
    cloud.pass_time(1)
    assert cloud.operation(started)["response"]["state"]["state"] == "ACTIVE"
    assert (node_states(cloud), len(cloud.host.booted)) == (["READY"], 1)


def test_maintenance_of_a_request_restarts_the_nodes_it_names(cloud):
    active(cloud, tpu={"nodeSpec": [spec(multisliceParams={"nodeCount": 2})]})
    body = {"nodeNames": ["q-1"]}
    call(cloud, "perform_maintenance", version="v2alpha1", body=body)
    assert node_states(cloud) == ["READY", "RESTARTING"]
    cloud.pass_time(1)
    assert node_states(cloud) == ["READY", "READY"]
    strange = refusal(call, cloud, "perform_maintenance", body={"nodeNames": ["x"]})
    assert "'x' does not belong to this request" in strange.message


def test_requests_are_listed_in_a_zone_and_in_all(cloud):
    ask(cloud)
    queued = cloud.service.queued_resources
    for zone, count in (("us-central1-a", 1), ("-", 1), ("us-central1-b", 0)):
        assert len(queued.list(cloud.call(zone=zone))["queuedResources"]) == count


def test_a_node_that_takes_the_name_meanwhile_makes_the_request_fail(cloud):
    ask(cloud, delay=100.0)
    cloud.ready("n")
    cloud.pass_time(200)
    assert state(cloud)["failedData"]["error"]["code"] == 6
    assert cloud.get("n")["state"] == "READY"

from __future__ import annotations

import pytest

from tpukit.emulator.errors import ApiError, Status

PLACE = "projects/p/locations/us-central1-a"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def spec(**given):
    return {"parent": PLACE, "node": NODE, **given}


def ask(world, name="q", *, query_requestId="", version="v2", failure=None, delay=0.0, **given):  # noqa: N803
    """Ask for one node `n`, or for what `tpu` says instead."""
    body = {"tpu": {"nodeSpec": [spec(nodeId="n")]}, **given}
    call = world.call(
        body=body,
        version=version,
        failure=failure,
        query_queuedResourceId=name,
        query_requestId=query_requestId,
    )
    object.__setattr__(call, "delay", delay)
    return world.service.queued_resources.create(call)


def call(world, verb, name="q", version="v2", **given):
    handler = getattr(world.service.queued_resources, verb)
    return handler(world.call(path_queued=name, version=version, **given))


def state(world, name="q"):
    return call(world, "get", name)["state"]


def node_states(world):
    return [record["node"]["state"] for record in world.state.nodes.values()]


def refusal(act, *arguments, **given):
    with pytest.raises(ApiError) as caught:
        act(*arguments, **given)
    return caught.value.status


def active(world, **given):
    operation = ask(world, **given)
    world.pass_time(10)
    assert state(world)["state"] == "ACTIVE"
    return operation


def test_a_request_walks_through_its_states_and_its_node_is_an_ordinary_one(world):
    ask(world)
    seen = [state(world)["state"]]
    for _ in range(40):
        world.pass_time(0.1)
        if state(world)["state"] != seen[-1]:
            seen.append(state(world)["state"])
    assert seen == ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    node = world.get("n")
    assert (node["state"], node["queuedResource"]) == ("READY", f"{PLACE}/queuedResources/q")
    assert world.host.booted == {f"{PLACE}/nodes/n"}


def test_a_leap_of_the_clock_lets_everything_happen_at_its_own_time(world):
    ask(world)
    world.pass_time(1000)
    assert state(world) == {"state": "ACTIVE", "activeData": {}}
    # 0.2 to be accepted, 0.3 and 0.3 in the queue: 22:13:20.8
    assert world.get("n")["createTime"] == "2023-11-14T22:13:20.800000Z"
    assert world.state.queued_resources[f"{PLACE}/queuedResources/q"]["since"] == 1_700_000_002.8


def test_the_operation_of_a_create_ends_when_the_request_is_accepted(world):
    started = ask(world)
    world.pass_time(0.2)
    ended = world.operation(started)
    assert ended["done"] is True
    assert ended["response"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2.QueuedResource"
    assert ended["response"]["state"]["state"] == "ACCEPTED"


@pytest.mark.parametrize(
    ("version", "key"), [("v2", "multisliceParams"), ("v2alpha1", "multiNodeParams")]
)
def test_a_spec_of_several_nodes_is_written_out_with_the_ids_of_the_reference(world, version, key):
    several = spec(**{key: {"nodeCount": 3, "nodeIdPrefix": "np"}})
    active(world, tpu={"nodeSpec": [several]}, version=version)
    specs = call(world, "get")["tpu"]["nodeSpec"]
    assert [one["nodeId"] for one in specs] == ["np-0", "np-1", "np-2"]
    assert all(key not in one for one in specs)
    nodes = [world.get(f"np-{number}") for number in range(3)]
    assert all(node["multisliceNode"] and node["state"] == "READY" for node in nodes)


def test_without_a_prefix_the_id_of_the_request_is_the_prefix(world):
    several = spec(multislice_params={"node_count": 2})
    active(world, tpu={"node_spec": [{**several, "multisliceParams": {"nodeCount": 2}}]})
    assert world.get("q-1")["state"] == "READY"


@pytest.mark.parametrize(
    ("given", "scheduling"),
    [
        ({"spot": {}}, {"spot": True}),
        ({"guaranteed": {}}, {}),
        ({"guaranteed": {"reserved": True}}, {"reserved": True}),
        ({"reservationName": f"{PLACE}/reservations/-"}, {"reserved": True}),
    ],
)
def test_how_capacity_is_bought_shows_on_the_node(world, given, scheduling):
    active(world, **given)
    assert world.get("n")["schedulingConfig"] == scheduling
    assert given.items() <= call(world, "get").items()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tpu": {}}, "at least one tpu.node_spec"),
        ({"tpu": {"nodeSpec": "x"}}, "at least one tpu.node_spec"),
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
        ({"queueingPolicy": {"validUntilDuration": "soon"}}, "validUntilDuration"),
        ({"queueingPolicy": {"validUntilTime": "2023-11-15T00:00:00"}}, "validUntilTime"),
        ({"queueingPolicy": {"validInterval": {}}}, "validInterval.startTime"),
        ({"queueingPolicy": {"whenever": "1s"}}, "queueingPolicy"),
        (
            {"queueingPolicy": {"validUntilDuration": "1s", "validAfterDuration": "1s"}},
            "only one of",
        ),
    ],
)
def test_a_request_is_checked_before_it_is_queued(world, given, words):
    status = refusal(ask, world, **given)
    assert status.status == "INVALID_ARGUMENT"
    assert words in status.message
    assert world.state.queued_resources == {}


def test_fields_that_only_the_alpha_service_knows_pass_there(world):
    given = {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "60s"}}
    active(world, version="v2alpha1", **given)
    assert given.items() <= call(world, "get").items()


def test_the_names_of_a_request_and_of_its_nodes_are_taken(world):
    ask(world)
    for again in ({}, {"name": "q2"}):
        assert refusal(ask, world, **again).status == "ALREADY_EXISTS"
    world.pass_time(10)
    assert refusal(ask, world, "q2").status == "ALREADY_EXISTS"


def test_a_create_with_the_same_request_id_is_the_same_create(world):
    first = ask(world, query_requestId="r1")
    assert ask(world, query_requestId="r1")["name"] == first["name"]
    assert refusal(ask, world, query_requestId="r2").status == "ALREADY_EXISTS"
    assert len(world.state.queued_resources) == 1


def test_a_request_waits_for_its_valid_after_time(world):
    ask(world, queueingPolicy={"validAfterDuration": "60s"})
    world.pass_time(59)
    assert state(world) == {"state": "WAITING_FOR_RESOURCES"}
    world.pass_time(10)
    assert state(world)["state"] == "ACTIVE"


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
def test_a_request_that_finds_no_capacity_in_time_fails_and_stays(world, policy):
    ask(world, queueingPolicy=policy, delay=3600.0)
    world.pass_time(59)
    assert state(world)["state"] == "WAITING_FOR_RESOURCES"
    world.pass_time(2)
    assert state(world)["failedData"]["error"]["code"] == 4
    world.pass_time(10**6)
    assert state(world)["state"] == "FAILED"
    assert world.state.nodes == {}


def test_a_stockout_goes_the_way_that_was_reported(world):
    ask(world, failure=Status("INTERNAL", "an internal error has occurred"))
    seen = []
    for _ in range(60):
        world.pass_time(0.1)
        if state(world)["state"] not in seen:
            seen.append(state(world)["state"])
    assert seen[-3:] == ["PROVISIONING", "SUSPENDING", "FAILED"]
    assert state(world) == {
        "state": "FAILED",
        "stateInitiator": "SERVICE",
        "failedData": {"error": {"code": 13, "message": "an internal error has occurred"}},
    }
    assert world.state.nodes == {}


def test_a_node_cannot_be_stopped_in_the_words_of_the_service(world):
    active(world)
    status = refusal(world.service.nodes.stop, world.call(path_node="n"))
    assert "StopNode is not supported for queued resources" in status.message


@pytest.mark.parametrize("by", ["user", "service"])
def test_a_request_that_loses_a_node_is_suspended_and_says_by_whom(world, by):
    active(world, tpu={"nodeSpec": [spec(multisliceParams={"nodeCount": 2})]})
    if by == "user":
        world.service.nodes.delete(world.call(path_node="q-0"))
    else:
        world.service.nodes.preempt(f"{PLACE}/nodes/q-0")
    world.pass_time(0)
    assert state(world) == {
        "state": "SUSPENDING",
        "suspendingData": {},
        "stateInitiator": by.upper(),
    }
    world.pass_time(1)
    assert state(world)["state"] == "SUSPENDED"
    assert (world.state.nodes, world.host.booted) == ({}, set())


def test_a_run_duration_ends_the_nodes(world):
    active(world, version="v2alpha1", runDuration={"maxRunDuration": "60s"})
    world.pass_time(60)
    assert state(world) == {
        "state": "SUSPENDED",
        "suspendedData": {},
        "stateInitiator": "SERVICE",
    }


def test_a_request_with_nodes_is_deleted_by_force_alone(world):
    active(world)
    assert refusal(call, world, "delete").status == "FAILED_PRECONDITION"
    started = call(world, "delete", query_force="True")
    assert (state(world)["state"], node_states(world)) == ("DELETING", ["DELETING"])
    assert refusal(call, world, "delete", query_force="True").status == "ABORTED"
    world.pass_time(1)
    assert refusal(call, world, "get").status == "NOT_FOUND"
    assert (world.state.nodes, world.host.booted) == ({}, set())
    assert world.operation(started)["response"] == {
        "@type": "type.googleapis.com/google.protobuf.Empty"
    }


@pytest.mark.parametrize("seconds", [0, 0.2, 0.5])
def test_a_request_without_nodes_is_deleted_without_force(world, seconds):
    ask(world)
    world.pass_time(seconds)
    call(world, "delete")
    world.pass_time(1)
    assert world.state.queued_resources == {}


def test_a_request_being_provisioned_takes_its_nodes_with_it(world):
    ask(world)
    world.pass_time(1)
    assert node_states(world) == ["CREATING"]
    call(world, "delete", query_force="true")
    world.pass_time(10)
    assert (world.state.queued_resources, world.state.nodes) == ({}, {})


def test_a_delete_that_fails_later_leaves_everything_as_it_was(world):
    active(world)
    failure = Status("FAILED_PRECONDITION", "not now")
    started = call(world, "delete", query_force="true", failure=failure)
    world.pass_time(10)
    assert world.operation(started)["error"]["message"] == "not now"
    assert (state(world)["state"], node_states(world)) == ("ACTIVE", ["READY"])


def test_a_reset_restarts_the_workers_of_an_active_request(world):
    ask(world)
    assert "not supported while in state CREATING" in refusal(call, world, "reset").message
    world.pass_time(10)
    started = call(world, "reset")
    assert (node_states(world), world.host.booted) == (["RESTARTING"], set())
    assert refusal(call, world, "reset").status == "ABORTED"
    world.pass_time(1)
    assert world.operation(started)["response"]["state"]["state"] == "ACTIVE"
    assert (node_states(world), len(world.host.booted)) == (["READY"], 1)


def test_maintenance_of_a_request_restarts_the_nodes_it_names(world):
    active(world, tpu={"nodeSpec": [spec(multisliceParams={"nodeCount": 2})]})
    body = {"nodeNames": ["q-1"]}
    call(world, "perform_maintenance", version="v2alpha1", body=body)
    assert node_states(world) == ["READY", "RESTARTING"]
    world.pass_time(1)
    assert node_states(world) == ["READY", "READY"]
    strange = refusal(call, world, "perform_maintenance", body={"nodeNames": ["x"]})
    assert "'x' is not of this request" in strange.message


def test_requests_are_listed_in_a_zone_and_in_all(world):
    ask(world)
    queued = world.service.queued_resources
    for zone, count in (("us-central1-a", 1), ("-", 1), ("us-central1-b", 0)):
        assert len(queued.list(world.call(zone=zone))["queuedResources"]) == count


def test_a_node_that_takes_the_name_meanwhile_makes_the_request_fail(world):
    ask(world, delay=100.0)
    world.ready("n")
    world.pass_time(200)
    assert state(world)["failedData"]["error"]["code"] == 6
    assert world.get("n")["state"] == "READY"

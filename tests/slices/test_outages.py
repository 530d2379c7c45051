"""A wait survives whatever is shorter than its own deadline, and says once what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted
from support.slices import create, delete, labelled

from tpukit.errors import DeadlinePassed, NotAllowed, TpukitError
from tpukit.google.tpu import CloudTpu
from tpukit.models import Slice
from tpukit.slices import change
from tpukit.slices.update import Edits, update

pytestmark = pytest.mark.process

OUTAGES = [
    {"kind": "status", "status": "UNAVAILABLE"},
    {"kind": "status", "status": "RESOURCE_EXHAUSTED", "message": "slower", "http": 429},
    {"kind": "reset"},
    {"kind": "truncate"},
]


def outage(cloud: Cloud, clock: FakeClock, seconds: float, **fault: object) -> None:
    """Let nothing be answered from the second wait on, for so long."""
    began: list[float] = []

    def act() -> None:
        if len(clock.slept) == 2:
            began.append(clock.now)
            cloud.fault(**{"method": "*", "probability": 1.0, **fault})
        if began and clock.now > began[0] + seconds:
            began.clear()
            cloud.control("DELETE", "faults")

    clock.slept.clear()
    clock.on_sleep = act


def made(cloud: Cloud) -> Slice:
    return create(cloud).slice


def deleted(cloud: Cloud) -> None:
    delete(cloud, cloud.tpu.get(ZONE, "demo"))


def waited(cloud: Cloud) -> Slice:
    found = cloud.tpu.get(ZONE, "demo")
    return change.wait(
        cloud.tpu, found, "READY", deadline=cloud.deadline(), on_state=cloud.states.append
    )


def stopped(cloud: Cloud) -> Slice:
    found = cloud.tpu.get(ZONE, "demo")
    return change.stop(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)


def started(cloud: Cloud) -> Slice:
    found = cloud.tpu.get(ZONE, "demo")
    return change.start(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)


#: What is there before, what is done in the outage.
JOBS: dict[str, tuple[Callable[[Cloud], object], Callable[[Cloud], object]]] = {
    "create": (lambda cloud: None, made),
    "delete": (made, deleted),
    "wait": (lambda cloud: cloud.tpu.create(labelled(cloud)), waited),
    "stop": (made, stopped),
    "start": (lambda cloud: (made(cloud), stopped(cloud)), started),
}


@pytest.mark.parametrize("fault", OUTAGES, ids=lambda fault: fault.get("status", fault["kind"]))
@pytest.mark.parametrize("job", JOBS)
def test_an_outage_ends_nothing_and_is_told_once(
    cloud: Cloud, clock: FakeClock, job: str, fault: dict[str, object]
) -> None:
    before, act = JOBS[job]
    before(cloud)
    cloud.states.clear()
    chatter: list[str] = []
    cloud.session.on_retry = chatter.append
    outage(cloud, clock, 40.0, **fault)
    act(cloud)
    assert sum("no answer from the API since" in state for state in cloud.states) == 1
    (back,) = [state for state in cloud.states if "answers again" in state]
    assert 40 <= int(back.split()[-2]) < 60
    assert chatter == []


def test_an_outage_to_the_end_is_told_in_the_error(cloud: Cloud, clock: FakeClock) -> None:
    outage(cloud, clock, 10_000.0, kind="status", status="UNAVAILABLE", message="down")
    with pytest.raises(DeadlinePassed) as caught:
        create(cloud, seconds=120.0)
    assert "no answer from the API since" in caught.value.why
    assert "down" in caught.value.why
    assert "CREATING when last seen" in caught.value.exists[0]


def test_an_api_that_never_answered_ends_the_command_soon(cloud: Cloud, clock: FakeClock) -> None:
    """The endpoint may be wrong: half an hour of patience would help nobody."""
    cloud.fault(method="*", kind="status", status="UNAVAILABLE", probability=1.0)
    began = clock.now
    with pytest.raises(TpukitError, match="cannot read slice demo"):
        create(cloud, seconds=1800.0)
    assert clock.now - began <= 30.0


def updated(cloud: Cloud) -> Slice:
    found, edits = cloud.tpu.get(ZONE, "demo"), Edits(labels={"team": "vision"})
    given = {"deadline": cloud.deadline(), "on_state": cloud.states.append}
    return update(cloud.tpu, found, edits, **given).slice


@pytest.mark.parametrize("method", ["nodes.get", "operations.get"])
@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "UNAUTHENTICATED"])
@pytest.mark.parametrize("job", [*JOBS, "update"])
def test_a_refusal_in_the_middle_of_a_wait_is_outlasted(
    cloud: Cloud, clock: FakeClock, job: str, status: str, method: str
) -> None:
    """A role is set anew, or a login ends and another one follows."""
    before, act = JOBS.get(job, (made, updated))
    before(cloud)
    cloud.states.clear()
    outage(cloud, clock, 100.0, kind="status", status=status, message="not you", method=method)
    act(cloud)
    told = [state for state in cloud.states if "by the API since" in state or "again" in state]
    assert len(told) == (2 if method == "nodes.get" else 0)
    assert all(any(word in line for word in ("refused by", "accepts us again")) for line in told)


@pytest.mark.parametrize("job", JOBS)
def test_a_refusal_that_lasts_ends_a_wait_after_ten_minutes_or_at_its_deadline(
    cloud: Cloud, clock: FakeClock, job: str
) -> None:
    before, act = JOBS[job]
    before(cloud)
    began = clock.now
    outage(cloud, clock, 10_000.0, kind="status", status="PERMISSION_DENIED", method="nodes.get")
    with pytest.raises(NotAllowed) as caught:
        act(cloud)
    assert 590 < clock.now - began <= 620
    assert "refused by the API since" in caught.value.why
    assert "when last seen" in caught.value.exists[0]


@pytest.mark.parametrize("job", JOBS)
def test_the_first_refusal_ends_a_command_at_once(cloud: Cloud, clock: FakeClock, job: str) -> None:
    before, act = JOBS[job]
    before(cloud)
    began = clock.now
    cloud.fault(method="*", status="PERMISSION_DENIED", probability=1.0)
    with pytest.raises(NotAllowed):
        act(cloud)
    assert clock.now == began


def test_a_login_page_in_the_middle_of_a_wait_is_an_outage(cloud: Cloud) -> None:
    cloud.tpu.create(labelled(cloud))
    found = cloud.tpu.get(ZONE, "demo")
    page = json_reply(200, "log in to the guest network")
    with scripted(page) as server, pytest.raises(DeadlinePassed) as caught:
        change.wait(
            CloudTpu(cloud.session, PROJECT, server.url),
            found,
            "READY",
            deadline=cloud.deadline(60.0),
            on_state=cloud.states.append,
        )
    assert "no answer from the API since" in caught.value.why


# READY is done with the addresses that were asked for


@pytest.mark.parametrize("job", ["create", "wait", "start"])
@pytest.mark.parametrize("external", [True, False])
def test_ready_without_addresses_is_not_done(
    cloud: Cloud, clock: FakeClock, job: str, external: bool
) -> None:
    """Its workers are seen 60 s later."""
    request = labelled(cloud, external_addresses=external)
    create(cloud, request)
    if job == "start":
        stopped(cloud)
    records, name = cloud.server.service.context.state.nodes, cloud.full_name("demo")
    workers = records[name]["workers"]
    cloud.states.clear()
    began = clock.now

    def act() -> None:
        seen = workers if clock.now - began >= 60.0 else []
        records[name] = {**records[name], "workers": seen}

    act()
    clock.on_sleep = act
    done = JOBS[job][1](cloud) if job != "create" else create(cloud, request).slice
    assert isinstance(done, Slice)
    assert done.ready
    assert done.workers[0].external_address or not external
    assert clock.now - began >= 60.0
    assert "READY, it has no workers yet" in cloud.states


def test_ready_without_its_external_addresses_at_the_deadline_says_which(cloud: Cloud) -> None:
    slice_ = create(cloud).slice
    endpoints = [{"ipAddress": "10.0.0.2"}, {"ipAddress": "10.0.0.3", "accessConfig": {}}]
    node = {
        "name": cloud.full_name("demo"),
        "id": slice_.id,
        "state": "READY",
        "networkConfig": {"enableExternalIps": True},
        "networkEndpoints": endpoints,
    }
    with scripted(json_reply(200, node)) as server, pytest.raises(DeadlinePassed) as caught:
        change.wait(
            CloudTpu(cloud.session, PROJECT, server.url),
            slice_,
            "READY",
            deadline=cloud.deadline(60.0),
            on_state=cloud.states.append,
        )
    assert "workers 0, 1 without external address yet" in caught.value.exists[0]


# A limit holds, whatever the server does


@pytest.mark.parametrize("method", ["nodes.get", "nodes.create", "operations.get"])
def test_a_create_ends_by_its_limit_beside_a_server_that_stalls(
    prompt_cloud: Cloud, method: str
) -> None:
    prompt_cloud.fault(method=method, kind="stall", seconds=30.0, probability=1.0)
    if method == "operations.get":  # which is read where the slice is not READY
        prompt_cloud.fault(preset="stockout")
    began = time.monotonic()
    with pytest.raises(TpukitError) as caught:
        create(prompt_cloud, seconds=2.0)
    assert time.monotonic() - began < 4.0
    may_appear = "may still appear" in caught.value.why
    assert may_appear == (method == "nodes.create")

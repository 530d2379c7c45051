"""Deletes that are verified, waits that tell the truth."""

from __future__ import annotations

import time

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted
from support.slices import at_sleep, create, delete, labelled

from tpukit.errors import (
    DeadlinePassed,
    NoCapacity,
    NotAllowed,
    SliceLost,
    TpukitError,
)
from tpukit.google.tpu import CloudTpu
from tpukit.models import SliceList
from tpukit.slices import change, naming


def test_a_delete_returns_once_the_slice_is_not_found(cloud: Cloud) -> None:
    found = create(cloud).slice
    delete(cloud, found)
    assert cloud.nodes() == []
    assert cloud.states[-1] == "DELETING"
    assert cloud.journal.other_projects("elsewhere") == ()


@pytest.mark.parametrize("state", ["CREATING", "STOPPED", "PREEMPTED", "DELETING"])
def test_a_slice_is_deleted_in_any_state(cloud: Cloud, state: str) -> None:
    cloud.tpu.create(labelled(cloud))
    if state != "CREATING":
        cloud.clock.sleep(31.0)
    if state == "STOPPED":
        cloud.tpu.stop(ZONE, "demo")
        cloud.clock.sleep(31.0)
    if state == "PREEMPTED":
        cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")
    if state == "DELETING":
        cloud.tpu.delete(ZONE, "demo")
    slice_ = cloud.tpu.get(ZONE, "demo")
    assert slice_.state == state
    delete(cloud, slice_)
    assert cloud.nodes() == []


def test_a_delete_of_what_is_gone_already_is_a_success(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.vanish("demo")
    delete(cloud, found)


@pytest.mark.parametrize("failed", [True, False], ids=["asked for again", "under way"])
def test_a_delete_ends_with_its_slice_and_leaves_another_of_the_name_alone(
    cloud: Cloud, clock: FakeClock, failed: bool
) -> None:
    found = create(cloud).slice
    if failed:
        cloud.fault(method="nodes.delete", status="UNAVAILABLE", message="busy", times=1)

    def swap() -> None:
        cloud.vanish("demo")
        cloud.tpu.create(naming.labelled(cloud.request(), "bob", "bobs"))

    at_sleep(clock, 1, swap)
    delete(cloud, found, seconds=20.0)
    assert cloud.tpu.get(ZONE, "demo").labels[naming.OWNER] == "bob"


def test_a_delete_beside_another_operation_is_asked_for_again(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.fault(method="nodes.delete", status="ABORTED", message="in progress", times=20)
    delete(cloud, found)
    assert cloud.nodes() == []


@pytest.mark.parametrize("verb", ["delete", "stop", "start"])
def test_a_conflict_of_a_change_is_asked_for_again(cloud: Cloud, verb: str) -> None:
    """Of the codes with 409, ALREADY_EXISTS is only for creates."""
    found = create(cloud).slice
    given = {"deadline": cloud.deadline(), "on_state": cloud.states.append}
    if verb == "start":
        found = change.stop(cloud.tpu, found, **given)
    cloud.fault(method=f"nodes.{verb}", status="ALREADY_EXISTS", message="busy", times=3)
    if verb == "delete":
        delete(cloud, found)
    else:
        getattr(change, verb)(cloud.tpu, found, **given)
    assert len(cloud.calls(f"nodes.{verb}")) == 4


def test_a_delete_that_was_accepted_and_then_failed_is_asked_for_again(
    cloud: Cloud, clock: FakeClock
) -> None:
    """The first delete's operation ends with an error and the slice is there as before."""
    found = create(cloud).slice
    failed = []

    def fail_once() -> None:
        records = cloud.server.service.context.state.operations
        for name, record in list(records.items()):
            if record["verb"] == "delete" and not record["done"] and not failed:
                failed.append(name)
                error = {"code": 13, "message": "could not be deleted"}
                records[name] = {**record, "done": True, "ended": clock.now, "error": error}
                cloud.change("demo", state="READY")

    clock.on_sleep = fail_once
    delete(cloud, found)
    assert failed
    assert cloud.nodes() == []
    assert len(cloud.calls("nodes.delete")) == 2


def test_a_delete_that_does_not_end_says_that_the_slice_bills(cloud: Cloud) -> None:
    found = create(cloud).slice
    with pytest.raises(DeadlinePassed, match="not gone yet") as caught:
        delete(cloud, found, seconds=5.0)
    assert "DELETING when last seen" in caught.value.exists[0]


def test_a_page_with_404_is_no_proof_of_a_delete(cloud: Cloud) -> None:
    found = create(cloud).slice
    with scripted(json_reply(404, "not found")) as server, pytest.raises(TpukitError) as caught:
        change.delete(
            CloudTpu(cloud.session, PROJECT, server.url),
            found,
            deadline=cloud.deadline(),
            journal=cloud.journal,
            on_state=cloud.states.append,
        )
    assert caught.value.exists


#: One answer that a resource does not exist, although it does: a replica was late.
STALE = {"status": "NOT_FOUND", "message": "not found", "times": 1}


@pytest.mark.parametrize("method", ["nodes.get", "nodes.delete"])
def test_one_not_found_is_no_proof_of_a_delete(cloud: Cloud, method: str) -> None:
    found = create(cloud).slice
    cloud.fault(method=method, **STALE)
    delete(cloud, found)
    assert (cloud.nodes(), cloud.served()) == ([], 1)


def test_a_slice_that_the_list_of_its_zone_still_shows_is_not_deleted(
    cloud: Cloud, clock: FakeClock
) -> None:
    found = create(cloud).slice
    cloud.fault(method="nodes.get", status="NOT_FOUND", message="not found", probability=1.0)
    with pytest.raises(DeadlinePassed) as caught:
        delete(cloud, found, seconds=5.0)
    assert "DELETING when last seen" in caught.value.exists[0]
    clock.sleep(60.0)
    delete(cloud, found)
    assert cloud.nodes() == []


@pytest.mark.parametrize(
    "refusal",
    [{"preset": "permission-denied"}, {"status": "NOT_FOUND"}, {"status": "UNAVAILABLE"}],
)
def test_a_list_that_cannot_be_read_holds_up_no_delete(
    cloud: Cloud, refusal: dict[str, str]
) -> None:
    found = create(cloud).slice
    cloud.fault(method="nodes.list", probability=1.0, **refusal)
    delete(cloud, found)
    assert cloud.nodes() == []


@pytest.mark.parametrize("method", ["nodes.get", "nodes.stop"])
def test_one_not_found_ends_no_wait(cloud: Cloud, method: str) -> None:
    found = create(cloud).slice
    cloud.fault(method=method, **STALE)
    done = change.stop(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)
    assert (done.state, cloud.served()) == ("STOPPED", 1)


def test_a_refused_delete_says_that_the_slice_bills(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.fault(preset="permission-denied", method="nodes.delete")
    with pytest.raises(TpukitError) as caught:
        delete(cloud, found)
    assert caught.value.exit_code == 4
    assert "READY when last seen" in caught.value.exists[0]


def test_a_delete_that_a_slice_at_rest_refuses_is_told_and_ends_soon(
    cloud: Cloud, clock: FakeClock
) -> None:
    found = create(cloud).slice
    cloud.states.clear()
    cloud.fault(
        method="nodes.delete", status="FAILED_PRECONDITION", message="held", probability=1.0
    )
    began = clock.now
    with pytest.raises(TpukitError, match="held") as caught:
        delete(cloud, found)
    assert 60.0 <= clock.now - began < 75.0
    assert sum("held" in state for state in cloud.states) == 1
    assert "READY when last seen" in caught.value.exists[0]


def test_a_delete_of_a_busy_slice_waits_for_it(cloud: Cloud, clock: FakeClock) -> None:
    cloud.tpu.create(labelled(cloud))
    refused = {"method": "nodes.delete", "status": "FAILED_PRECONDITION", "message": "busy"}
    cloud.fault(**refused, probability=1.0)
    began = clock.now
    with pytest.raises(DeadlinePassed) as caught:
        delete(cloud, cloud.tpu.get(ZONE, "demo"), seconds=20.0)
    assert "busy" in caught.value.why
    at_sleep(clock, 3, lambda: cloud.control("DELETE", "faults"))
    delete(cloud, cloud.tpu.get(ZONE, "demo"))
    assert cloud.nodes() == []
    assert clock.now - began > 20.0


# Start, stop, wait


def test_stop_and_start_wait_for_the_state(cloud: Cloud) -> None:
    found = create(cloud).slice
    stopped = change.stop(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)
    assert stopped.state == "STOPPED"
    again = change.stop(cloud.tpu, stopped, deadline=cloud.deadline(), on_state=cloud.states.append)
    assert again.state == "STOPPED"
    started = change.start(
        cloud.tpu, stopped, deadline=cloud.deadline(), on_state=cloud.states.append
    )
    assert started.ready
    assert len(cloud.calls("nodes.stop")) == len(cloud.calls("nodes.start")) == 1


def test_a_start_that_is_under_way_is_only_waited_for(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.tpu.stop(ZONE, "demo")
    cloud.clock.sleep(31.0)
    cloud.tpu.start(ZONE, "demo")
    found = cloud.tpu.get(ZONE, "demo")
    assert found.state == "STARTING"
    started = change.start(
        cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append
    )
    assert started.ready


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_change_whose_answer_was_lost_is_looked_at_before_it_is_asked_for_again(
    cloud: Cloud, verb: str, phase: str
) -> None:
    found = create(cloud).slice
    if verb == "start":
        cloud.tpu.stop(ZONE, "demo")
        cloud.clock.sleep(31.0)
    cloud.fault(method=f"nodes.{verb}", kind="reset", phase=phase)
    make = change.start if verb == "start" else change.stop
    changed = make(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)
    assert changed.state == ("READY" if verb == "start" else "STOPPED")
    assert len(cloud.calls(f"nodes.{verb}")) == (2 if phase == "before" else 1)


def test_a_start_that_finds_no_capacity_says_so(cloud: Cloud, clock: FakeClock) -> None:
    create(cloud)
    cloud.tpu.stop(ZONE, "demo")
    cloud.clock.sleep(31.0)

    def fail() -> None:
        records = cloud.server.service.context.state.operations
        for name, record in list(records.items()):
            if record["verb"] == "start" and not record["done"]:
                error = {"code": 8, "message": 'There is no more capacity in the zone "z"'}
                records[name] = {**record, "done": True, "ended": clock.now, "error": error}
                cloud.change("demo", state="STOPPED")

    clock.on_sleep = fail
    with pytest.raises(NoCapacity, match="cannot start slice demo"):
        change.start(
            cloud.tpu,
            cloud.tpu.get(ZONE, "demo"),
            deadline=cloud.deadline(),
            on_state=cloud.states.append,
        )


def test_a_wait_changes_nothing_and_names_what_exists_at_its_end(cloud: Cloud) -> None:
    cloud.tpu.create(labelled(cloud))
    found = cloud.tpu.get(ZONE, "demo")
    with pytest.raises(DeadlinePassed) as caught:
        change.wait(
            cloud.tpu, found, "READY", deadline=cloud.deadline(5.0), on_state=cloud.states.append
        )
    assert caught.value.exists
    assert str(caught.value.fix) == f"tpukit wait demo --zone {ZONE} --for ready"
    assert len(cloud.nodes()) == 1


def test_a_refused_stop_does_not_suggest_to_delete_the_slice(cloud: Cloud) -> None:
    """A delete would take the slice's disks, too."""
    found = create(cloud).slice
    cloud.fault(preset="permission-denied", method="nodes.stop")
    with pytest.raises(NotAllowed) as caught:
        change.stop(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)
    fixes = [line for line in caught.value.lines() if line.startswith("fix: tpukit")]
    assert fixes == [f"fix: tpukit stop demo --zone {ZONE}"]


@pytest.mark.parametrize("how", ["preempted", "vanished"])
def test_a_wait_for_a_lost_slice_ends_at_once(cloud: Cloud, clock: FakeClock, how: str) -> None:
    cloud.tpu.create(labelled(cloud))
    found = cloud.tpu.get(ZONE, "demo")
    if how == "vanished":
        cloud.vanish("demo")
    else:
        cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")
    with pytest.raises(SliceLost) as caught:
        change.wait(
            cloud.tpu, found, "READY", deadline=cloud.deadline(), on_state=cloud.states.append
        )
    assert bool(caught.value.exists) == (how == "preempted")
    assert ("--recreate" in str(caught.value.fix)) == (how == "preempted")
    assert clock.slept == []


def test_two_slices_in_one_list_are_both_seen(cloud: Cloud) -> None:
    create(cloud, labelled(cloud, "a"))
    create(cloud, labelled(cloud, "b"))
    listed = cloud.tpu.list("-")
    assert isinstance(listed, SliceList)
    assert [slice_.name for slice_ in listed.slices] == ["a", "b"]


def test_the_waits_of_a_create_grow_and_stay_short(cloud: Cloud, clock: FakeClock) -> None:
    started = time.monotonic()
    create(cloud)
    assert max(clock.slept) <= 5.0
    assert sum(clock.slept) - 30.0 < 6.0
    assert time.monotonic() - started < 25.0, "the 30 s are the fake clock's"


BUSY = {"status": "ABORTED", "message": "unable to queue the operation"}


def test_a_call_that_has_to_be_made_again_says_so_once(cloud: Cloud) -> None:
    slice_ = create(cloud).slice
    cloud.fault(method="nodes.stop", times=3, **BUSY)
    change.stop(cloud.tpu, slice_, deadline=cloud.deadline(), on_state=cloud.states.append)
    told = "cannot stop slice demo: unable to queue the operation; asking again"
    assert cloud.states.count(told) == 1
    assert len(cloud.calls("nodes.stop")) == 4


def test_a_call_that_is_refused_until_the_deadline_names_the_refusal(cloud: Cloud) -> None:
    slice_ = create(cloud).slice
    cloud.fault(method="nodes.delete", times=500, **BUSY)
    with pytest.raises(DeadlinePassed) as caught:
        delete(cloud, slice_, seconds=60.0)
    assert "unable to queue the operation" in caught.value.why
    assert any("asking again" in state for state in cloud.states)


@pytest.mark.parametrize(
    ("health", "reached"), [("HEALTHY", True), ("UNHEALTHY_TENSORFLOW", False), ("", False)]
)
def test_healthy_is_what_the_api_calls_so(cloud: Cloud, health: str, reached: bool) -> None:
    slice_ = create(cloud).slice
    cloud.change("demo", health=health or "HEALTH_UNSPECIFIED")

    def wait() -> None:
        deadline = cloud.deadline(10.0)
        change.wait(cloud.tpu, slice_, "HEALTHY", deadline=deadline, on_state=cloud.states.append)

    if reached:
        wait()
    else:
        with pytest.raises(DeadlinePassed, match="not HEALTHY yet"):
            wait()

"""Creates that converge, deletes that are verified, waits that tell the truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted

from tpukit import existence, lifecycle, naming
from tpukit.clock import Deadline
from tpukit.cloud.tpu import CloudTpu
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    NameTaken,
    NoCapacity,
    NotFound,
    SliceLost,
    Terminated,
    TerminationSignal,
    TpukitError,
)
from tpukit.lifecycle import Ensured
from tpukit.models import Slice, SliceList, SliceRequest

OWNER = "ada"


def labelled(cloud: Cloud, name: str = "demo", nonce: str = "n1", **given: object) -> SliceRequest:
    return naming.labelled(cloud.request(name, **given), OWNER, nonce)


def create(cloud: Cloud, request: SliceRequest | None = None, seconds: float = 600.0) -> Ensured:
    return lifecycle.create(
        cloud.tpu,
        request or labelled(cloud),
        deadline=cloud.deadline(seconds),
        journal=cloud.journal,
        on_state=cloud.states.append,
    )


def delete(cloud: Cloud, found: Slice, seconds: float = 600.0) -> None:
    lifecycle.delete(
        cloud.tpu,
        found,
        deadline=cloud.deadline(seconds),
        journal=cloud.journal,
        on_state=cloud.states.append,
    )


def at_sleep(clock: FakeClock, number: int, act: Callable[[], None]) -> None:
    """Let something happen in the middle of the wait with that number, from 1."""
    count = 0

    def on_sleep() -> None:
        nonlocal count
        count += 1
        if count == number:
            act()

    clock.on_sleep = on_sleep


# Names and labels


@pytest.mark.parametrize("name", ["a", "demo", "a-1", "x" * 63])
def test_a_name_that_the_api_takes_is_taken(name: str) -> None:
    assert naming.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "1a",
        "-a",
        "a-",
        "a_b",
        "a b",
        "a.b",
        "x" * 64,
        "../x",
        "a;rm",
        "ä",
        "a\n",
        "\x1b[m",
    ],
)
def test_a_name_that_the_api_would_refuse_is_refused_before(name: str) -> None:
    with pytest.raises(BadInput, match="is not a slice name") as caught:
        naming.check_name(name)
    suggestion = caught.value.fix.removeprefix("for example: ")
    assert not suggestion or naming.check_name(suggestion)
    assert "\x1b" not in "".join(caught.value.lines())


@pytest.mark.parametrize("user", ["ada", "a.b@c", "___", "9", "-", "ü", "x" * 90, "a-" * 40])
@pytest.mark.parametrize("accelerator", ["v3-8", "v5litepod-256"])
def test_a_default_name_is_a_name_and_always_the_same(user: str, accelerator: str) -> None:
    name = naming.default_name(user, accelerator)
    assert naming.check_name(name) == name
    assert name.endswith(f"-{accelerator}")
    assert naming.default_name(user, accelerator) == name


def test_labels_that_a_user_gives_cannot_stand_in_for_ours(cloud: Cloud) -> None:
    given = {naming.OWNER: "eve", naming.MANAGED: "0", "team": "x"}
    labels = naming.labelled(cloud.request(labels=given), "Ada L", "n").labels
    assert labels == {
        naming.OWNER: "ada-l",
        naming.MANAGED: "1",
        naming.NONCE: "n",
        "team": "x",
    }


# Create


def test_a_create_returns_the_slice_once_it_is_ready(cloud: Cloud) -> None:
    ensured = create(cloud)
    assert ensured.created
    assert ensured.slice.ready
    assert cloud.states == ["CREATING", "READY"]


def test_the_journal_is_written_before_the_call_that_bills(cloud: Cloud) -> None:
    cloud.fault(preset="permission-denied")
    with pytest.raises(TpukitError):
        create(cloud)
    assert cloud.journal.other_projects("elsewhere") == (PROJECT,)


def test_the_same_create_again_adopts_the_slice(cloud: Cloud) -> None:
    create(cloud)
    again = create(cloud, labelled(cloud, nonce="n2"))
    assert not again.created
    assert len(cloud.calls("nodes.create")) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accelerator_type", "v2-8"),
        ("runtime_version", "tpu-vm-base"),
        ("provisioning", "spot"),
    ],
)
def test_another_spec_under_the_name_is_refused_with_the_difference(
    cloud: Cloud, field: str, value: str
) -> None:
    create(cloud)
    with pytest.raises(NameTaken, match="another spec") as caught:
        create(cloud, replace(labelled(cloud, nonce="n2"), **{field: value}))
    assert f"not {value}" in caught.value.why
    assert len(cloud.nodes()) == 1


def test_a_slice_of_another_owner_is_refused(cloud: Cloud) -> None:
    create(cloud)
    with pytest.raises(NameTaken, match="belongs to ada") as caught:
        create(cloud, naming.labelled(cloud.request(), "eve", "n2"))
    assert not caught.value.exists


def test_a_slice_that_tpukit_did_not_make_is_refused(cloud: Cloud) -> None:
    cloud.tpu.create(cloud.request())
    with pytest.raises(NameTaken, match="not made by tpukit"):
        create(cloud)


def test_a_stopped_slice_is_started(cloud: Cloud) -> None:
    create(cloud)
    cloud.tpu.stop(ZONE, "demo")
    cloud.clock.sleep(31.0)
    assert not create(cloud, labelled(cloud, nonce="n2")).created
    assert len(cloud.calls("nodes.start")) == 1


def test_a_slice_that_is_being_deleted_is_waited_out_and_made_again(cloud: Cloud) -> None:
    create(cloud)
    cloud.tpu.delete(ZONE, "demo")
    ensured = create(cloud, labelled(cloud, nonce="n2"))
    assert ensured.created
    assert ensured.slice.labels[naming.NONCE] == "n2"
    assert "DELETING" in cloud.states


@pytest.mark.parametrize("when", ["before", "while creating"])
def test_a_preempted_slice_is_lost_and_its_delete_command_named(
    cloud: Cloud, clock: FakeClock, when: str
) -> None:
    def preempt() -> None:
        cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")

    if when == "before":
        create(cloud)
        preempt()
    else:
        at_sleep(clock, 3, preempt)
    with pytest.raises(SliceLost, match="PREEMPTED") as caught:
        create(cloud)
    assert caught.value.fix == f"tpukit delete demo --zone {ZONE}"
    assert "PREEMPTED when last seen" in caught.value.exists[0]


def test_a_slice_that_vanishes_while_it_is_created_is_lost_and_nothing_is_said_to_exist(
    cloud: Cloud, clock: FakeClock
) -> None:
    at_sleep(clock, 3, lambda: cloud.vanish("demo"))
    with pytest.raises(SliceLost, match="vanished") as caught:
        create(cloud)
    assert caught.value.exists == ()


@pytest.mark.parametrize("preset", ["stockout", "stockout-reserved", "stockout-internal"])
def test_a_stockout_in_the_operation_leaves_nothing_and_says_so(cloud: Cloud, preset: str) -> None:
    cloud.fault(preset=preset)
    with pytest.raises(NoCapacity) as caught:
        create(cloud)
    assert caught.value.exists == ()
    assert cloud.nodes() == []


def test_a_stockout_whose_create_was_not_answered_is_asked_for_anew(cloud: Cloud) -> None:
    cloud.fault(preset="stockout")
    cloud.fault(method="nodes.create", kind="reset", phase="after")
    assert create(cloud).created
    assert len(cloud.nodes()) == 1


def test_a_deadline_names_what_exists_and_the_delete_command(cloud: Cloud) -> None:
    with pytest.raises(DeadlinePassed, match="not READY yet") as caught:
        create(cloud, seconds=10.0)
    assert caught.value.exit_code == 8
    assert caught.value.exists == (
        f"slice demo in {ZONE}, CREATING when last seen; it bills until it is deleted",
    )
    assert f"tpukit delete demo --zone {ZONE}" in caught.value.fix
    assert len(cloud.nodes()) == 1


def test_a_create_after_a_deadline_takes_up_the_same_slice(cloud: Cloud) -> None:
    with pytest.raises(DeadlinePassed):
        create(cloud, seconds=10.0)
    assert create(cloud).created  # by its nonce it is this very request's
    assert len(cloud.calls("nodes.create")) == 1


def test_a_slice_that_is_slow_to_be_seen_is_waited_for(cloud: Cloud, clock: FakeClock) -> None:
    """The API accepts a create and does not show the node yet; at the deadline it may bill."""
    operation = {"name": f"projects/{PROJECT}/locations/{ZONE}/operations/o"}
    unseen = json_reply(404, {"error": {"status": "NOT_FOUND", "message": "no"}})
    with scripted(unseen, json_reply(200, operation), unseen, json_reply(200, operation)) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        with pytest.raises(TpukitError) as caught:
            lifecycle.create(
                tpu,
                labelled(cloud),
                deadline=cloud.deadline(1.0),
                journal=cloud.journal,
                on_state=cloud.states.append,
            )
    assert "requested when last seen" in caught.value.exists[0]


@pytest.mark.parametrize(
    ("signal", "kind"), [(KeyboardInterrupt, Interrupted), (TerminationSignal, Terminated)]
)
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_signal_at_any_moment_names_what_exists(
    cloud: Cloud, clock: FakeClock, signal: type[BaseException], kind: type, number: int
) -> None:
    def interrupt() -> None:
        raise signal

    at_sleep(clock, number, interrupt)
    with pytest.raises(kind) as caught:
        create(cloud)
    assert caught.value.exists
    assert caught.value.fix == f"tpukit delete demo --zone {ZONE}"


def test_a_signal_while_a_state_is_told_names_that_state(cloud: Cloud) -> None:
    def hear(state: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        lifecycle.create(
            cloud.tpu,
            labelled(cloud),
            deadline=cloud.deadline(),
            journal=cloud.journal,
            on_state=hear,
        )
    assert "CREATING when last seen" in caught.value.exists[0]


def test_a_refused_create_says_of_nothing_that_it_exists(cloud: Cloud) -> None:
    cloud.fault(preset="quota")
    cloud.fault(preset="quota", probability=1.0)
    with pytest.raises(TpukitError) as caught:
        create(cloud)
    assert caught.value.exit_code == 6
    assert caught.value.exists == ()


FAULTS = [
    {"kind": "status", "status": "UNAVAILABLE", "phase": "before"},
    {"kind": "status", "status": "UNAVAILABLE", "phase": "after"},
    {"kind": "reset", "phase": "before"},
    {"kind": "reset", "phase": "after"},
]


def test_two_hundred_creates_under_faults_make_two_hundred_slices(cloud: Cloud) -> None:
    """30 % of all calls fail, half of them after the call was carried out."""
    for seed, fault in enumerate(FAULTS):
        cloud.fault(method="nodes.*", probability=0.085, seed=seed, **fault)
    cloud.fault(method="operations.*", kind="status", probability=0.3, seed=11)
    made = [create(cloud, labelled(cloud, f"s{number}")).slice.name for number in range(200)]
    assert made == [f"s{number}" for number in range(200)]
    assert cloud.nodes() == sorted(cloud.full_name(name) for name in made)
    assert cloud.served() > 200


def test_deletes_under_the_same_faults_leave_nothing(cloud: Cloud) -> None:
    found = [create(cloud, labelled(cloud, f"s{number}")).slice for number in range(20)]
    for seed, fault in enumerate(FAULTS):
        cloud.fault(method="nodes.*", probability=0.085, seed=seed, **fault)
    for each in found:
        delete(cloud, each)
    assert cloud.nodes() == []
    assert cloud.served() > 10


@pytest.mark.parametrize("same", [True, False])
def test_of_two_creates_at_once_one_makes_the_slice(prompt_cloud: Cloud, same: bool) -> None:
    """Each on the machine's own clock and with a client of its own."""
    outcomes: list[Ensured | TpukitError] = []
    barrier = threading.Barrier(2)

    def run(number: int) -> None:
        request = labelled(prompt_cloud, nonce=f"n{number}")
        if number and not same:
            request = replace(request, accelerator_type="v2-8")
        barrier.wait()
        try:
            outcomes.append(
                lifecycle.create(
                    CloudTpu(prompt_cloud.session, PROJECT, prompt_cloud.url),
                    request,
                    deadline=Deadline.after(prompt_cloud.clock, 120.0),
                    journal=prompt_cloud.journal,
                    on_state=lambda state: None,
                )
            )
        except TpukitError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert len(prompt_cloud.nodes()) == 1
    winners = [each for each in outcomes if isinstance(each, Ensured)]
    assert sum(each.created for each in winners) == 1
    assert len(winners) == (2 if same else 1)
    assert same or any(isinstance(each, NameTaken) for each in outcomes)


# Find


def test_a_slice_is_found_in_whichever_zone_it_is(cloud: Cloud) -> None:
    create(cloud, labelled(cloud, zone=OTHER_ZONE))
    assert existence.find(cloud.tpu, "demo").zone == OTHER_ZONE
    with pytest.raises(NotFound):
        existence.find(cloud.tpu, "demo", ZONE)


def test_a_name_in_two_zones_needs_the_zone(cloud: Cloud) -> None:
    for zone in (ZONE, OTHER_ZONE):
        create(cloud, labelled(cloud, zone=zone))
    with pytest.raises(BadInput, match="in several zones") as caught:
        existence.find(cloud.tpu, "demo")
    assert ZONE in caught.value.what
    assert OTHER_ZONE in caught.value.what
    assert caught.value.fix.startswith("add --zone ")


def test_a_name_close_to_one_that_exists_is_suggested(cloud: Cloud) -> None:
    create(cloud)
    with pytest.raises(NotFound) as caught:
        existence.find(cloud.tpu, "demmo")
    assert caught.value.fix == "did you mean demo?"


def test_not_found_is_not_said_while_a_zone_is_silent(cloud: Cloud) -> None:
    answer = json_reply(200, {"unreachable": [f"projects/p/locations/{ZONE}"]})
    with scripted(answer) as server, pytest.raises(TpukitError) as caught:
        existence.find(CloudTpu(cloud.session, PROJECT, server.url), "demo")
    assert not isinstance(caught.value, NotFound)
    assert ZONE in caught.value.why


# Delete


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
    found = cloud.tpu.get(ZONE, "demo")
    assert found.state == state
    delete(cloud, found)
    assert cloud.nodes() == []


def test_a_delete_of_what_is_gone_already_is_a_success(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.vanish("demo")
    delete(cloud, found)


def test_a_delete_beside_another_operation_is_asked_for_again(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.fault(method="nodes.delete", status="ABORTED", message="in progress", times=20)
    delete(cloud, found)
    assert cloud.nodes() == []


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
    with pytest.raises(DeadlinePassed, match="not deleted yet") as caught:
        delete(cloud, found, seconds=5.0)
    assert "DELETING when last seen" in caught.value.exists[0]


def test_a_page_with_404_is_no_proof_of_a_delete(cloud: Cloud) -> None:
    found = create(cloud).slice
    with scripted(json_reply(404, "not found")) as server, pytest.raises(TpukitError) as caught:
        lifecycle.delete(
            CloudTpu(cloud.session, PROJECT, server.url),
            found,
            deadline=cloud.deadline(),
            journal=cloud.journal,
            on_state=cloud.states.append,
        )
    assert caught.value.exists


def test_a_refused_delete_says_that_the_slice_bills(cloud: Cloud) -> None:
    found = create(cloud).slice
    cloud.fault(preset="permission-denied", method="nodes.delete")
    with pytest.raises(TpukitError) as caught:
        delete(cloud, found)
    assert caught.value.exit_code == 4
    assert "READY when last seen" in caught.value.exists[0]


# Start, stop, wait


def test_stop_and_start_wait_for_the_state(cloud: Cloud) -> None:
    found = create(cloud).slice
    stopped = lifecycle.stop(
        cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append
    )
    assert stopped.state == "STOPPED"
    again = lifecycle.stop(
        cloud.tpu, stopped, deadline=cloud.deadline(), on_state=cloud.states.append
    )
    assert again.state == "STOPPED"
    started = lifecycle.start(
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
    started = lifecycle.start(
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
    change = lifecycle.start if verb == "start" else lifecycle.stop
    changed = change(cloud.tpu, found, deadline=cloud.deadline(), on_state=cloud.states.append)
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
        lifecycle.start(
            cloud.tpu,
            cloud.tpu.get(ZONE, "demo"),
            deadline=cloud.deadline(),
            on_state=cloud.states.append,
        )


def test_a_wait_changes_nothing_and_names_what_exists_at_its_end(cloud: Cloud) -> None:
    cloud.tpu.create(labelled(cloud))
    found = cloud.tpu.get(ZONE, "demo")
    with pytest.raises(DeadlinePassed) as caught:
        lifecycle.wait(
            cloud.tpu, found, "READY", deadline=cloud.deadline(5.0), on_state=cloud.states.append
        )
    assert caught.value.exists
    assert len(cloud.nodes()) == 1


@pytest.mark.parametrize("how", ["preempted", "vanished"])
def test_a_wait_for_a_lost_slice_ends_at_once(cloud: Cloud, clock: FakeClock, how: str) -> None:
    cloud.tpu.create(labelled(cloud))
    found = cloud.tpu.get(ZONE, "demo")
    if how == "vanished":
        cloud.vanish("demo")
    else:
        cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")
    with pytest.raises(SliceLost) as caught:
        lifecycle.wait(
            cloud.tpu, found, "READY", deadline=cloud.deadline(), on_state=cloud.states.append
        )
    assert bool(caught.value.exists) == (how == "preempted")
    assert clock.slept == []


def test_two_slices_in_one_list_are_both_seen(cloud: Cloud) -> None:
    create(cloud, labelled(cloud, "a"))
    create(cloud, labelled(cloud, "b"))
    listed = cloud.tpu.list("-")
    assert isinstance(listed, SliceList)
    assert [each.name for each in listed.slices] == ["a", "b"]


def test_the_waits_of_a_create_grow_and_stay_short(cloud: Cloud, clock: FakeClock) -> None:
    started = time.monotonic()
    create(cloud)
    assert max(clock.slept) <= 5.0
    assert sum(clock.slept) - 30.0 < 6.0
    assert time.monotonic() - started < 25.0, "the 30 s are the fake clock's"

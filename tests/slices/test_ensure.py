"""Creates that converge, whatever becomes of the answers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock, json_reply, scripted
from support.slices import at_sleep, create, delete, labelled

from tpukit.clock import Deadline
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    NameTaken,
    NoCapacity,
    QuotaExceeded,
    SliceLost,
    Terminated,
    TerminationSignal,
    TpukitError,
)
from tpukit.google.tpu import CloudTpu
from tpukit.models import DataDisk, QueueRequest
from tpukit.slices import naming
from tpukit.slices.ensure import Ensured, ensure


def test_a_create_returns_the_slice_once_it_is_ready(cloud: Cloud) -> None:
    ensured = create(cloud)
    assert ensured.created
    assert ensured.slice.ready
    assert cloud.states == ["CREATING", "READY"]


def test_the_journal_is_written_before_the_call_that_bills(cloud: Cloud, clock: FakeClock) -> None:
    cloud.fault(method="nodes.create", kind="reset")
    noted: list[tuple[str, ...]] = []
    at_sleep(clock, 1, lambda: noted.append(cloud.journal.other_projects("elsewhere")))
    create(cloud)
    assert noted == [(PROJECT,)]


def test_a_slice_of_the_tpu_api_whose_create_has_failed_is_named_and_not_deleted(
    cloud: Cloud, clock: FakeClock
) -> None:
    """Google removes it itself, or it is somebody's: only Compute Engine goes on trying."""

    def fail() -> None:
        records = cloud.server.service.context.state.operations
        for name, record in list(records.items()):
            error = {"code": 13, "message": "could not be created"}
            records[name] = {**record, "done": True, "ended": clock.now, "error": error}

    clock.on_sleep = fail
    with pytest.raises(TpukitError, match="could not be created") as caught:
        create(cloud)
    assert cloud.calls("nodes.delete") == []
    assert "slice demo in" in caught.value.exists[0]


@pytest.mark.parametrize("preset", ["permission-denied", "quota", "stockout"])
def test_what_was_refused_is_nothing_to_remember(cloud: Cloud, preset: str) -> None:
    cloud.fault(preset=preset, probability=1.0)
    with pytest.raises(TpukitError):
        create(cloud)
    assert cloud.journal.other_projects("elsewhere") == ()


# A create that commits late


def late(cloud: Cloud, clock: FakeClock, seconds: float) -> None:
    """Let the first create be answered by nobody and carried out so much later, the second be
    refused for want of quota."""
    cloud.fault(method="nodes.create", kind="reset")
    cloud.fault(preset="quota")
    commits = clock.now + seconds
    done: list[str] = []

    def commit() -> None:
        if clock.now >= commits and not done:
            done.append(cloud.tpu.create(labelled(cloud)))

    clock.on_sleep = commit


def test_a_create_that_commits_late_is_found_although_the_next_was_refused(
    cloud: Cloud, clock: FakeClock
) -> None:
    late(cloud, clock, 40.0)
    assert create(cloud).created
    assert len(cloud.nodes()) == 1


def test_what_may_still_appear_is_named_and_the_same_create_adopts_it(
    cloud: Cloud, clock: FakeClock
) -> None:
    late(cloud, clock, 300.0)
    with pytest.raises(QuotaExceeded) as caught:
        create(cloud)
    assert caught.value.exists == ()
    assert f"slice demo in {ZONE} may still appear" in caught.value.why
    assert "bills until it is deleted" in caught.value.why
    assert "quota" in caught.value.why.splitlines()[1]  # the remedy has not gone
    assert str(caught.value.fix) == f"tpukit describe demo --zone {ZONE}"
    assert str(caught.value.otherwise) == f"tpukit delete demo --zone {ZONE}"
    assert cloud.journal.other_projects("elsewhere") == (PROJECT,)
    clock.sleep(300.0)
    assert create(cloud, labelled(cloud, nonce="n2")).slice.ready
    assert len(cloud.nodes()) == 1


@pytest.mark.parametrize("signal", [KeyboardInterrupt, TerminationSignal])
def test_a_signal_after_a_create_that_was_not_answered_names_what_may_appear(
    cloud: Cloud, clock: FakeClock, signal: type[BaseException]
) -> None:
    def interrupt() -> None:
        raise signal

    cloud.fault(method="nodes.create", kind="reset")
    at_sleep(clock, 1, interrupt)
    with pytest.raises(TpukitError) as caught:
        create(cloud)
    assert caught.value.exists == ()
    assert "may still appear" in caught.value.why


def test_creates_that_are_never_confirmed_leave_nothing_that_is_said_to_exist(
    cloud: Cloud,
) -> None:
    said = cloud.states
    cloud.fault(method="nodes.create", status="UNAVAILABLE", message="down", probability=1.0)
    with pytest.raises(TpukitError, match="was not created before the deadline") as caught:
        create(cloud, seconds=120.0)
    assert caught.value.exit_code == 1
    assert caught.value.exists == ()
    assert "UNAVAILABLE" in caught.value.why
    assert "may still appear" in caught.value.why
    assert len(said) == 1
    assert cloud.nodes() == []


def test_the_same_create_again_adopts_the_slice(cloud: Cloud) -> None:
    create(cloud)
    again = create(cloud, labelled(cloud, nonce="n2"))
    assert not again.created
    assert len(cloud.calls("nodes.create")) == 1


DISK = f"projects/{PROJECT}/zones/{ZONE}/disks/d"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("accelerator_type", "v2-8", "not v2-8"),
        ("runtime_version", "tpu-vm-base", "not tpu-vm-base"),
        ("provisioning", "spot", "not spot"),
        ("network", "lab", "network is default, not lab"),
        ("subnetwork", "lab", "not lab"),
        ("service_account", "a@b.c", "not a@b.c"),
        ("external_addresses", False, "it has external addresses"),
        ("data_disks", (DataDisk(DISK),), "data disk d is not attached to read and write"),
        ("tags", ("web",), "tag web is missing"),
        ("labels", {"team": "vision"}, "labels: team is not set, not vision"),
        ("metadata", {"a": "1"}, "metadata: a is not set, not 1"),
    ],
)
def test_another_spec_under_the_name_is_refused_with_the_difference(
    cloud: Cloud, field: str, value: object, told: str
) -> None:
    create(cloud)
    wanted = labelled(cloud, nonce="n2")
    value = {**wanted.labels, **value} if field == "labels" else value  # type: ignore[dict-item]
    with pytest.raises(NameTaken, match="another spec") as caught:
        create(cloud, replace(wanted, **{field: value}))
    assert told in caught.value.why
    assert caught.value.exists == (
        f"slice demo in {ZONE}, READY when last seen; it bills until it is deleted",
    )
    assert len(cloud.nodes()) == 1


def test_a_slice_with_all_that_is_asked_for_and_more_is_adopted(cloud: Cloud) -> None:
    everything = {
        "network": f"projects/{PROJECT}/global/networks/default",
        "subnetwork": "default",
        "service_account": "a@b.c",
        "external_addresses": False,
        "data_disks": (DataDisk(DISK),),
        "tags": ("web", "more"),
        "labels": {"team": "vision"},
        "metadata": {"a": "1", "ssh-keys": "ada:key"},
    }
    create(cloud, labelled(cloud, **everything))
    for given in (everything, {"external_addresses": False, "tags": ("web",)}):
        assert not create(cloud, labelled(cloud, nonce="n2", **given)).created


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


def test_a_slice_that_still_says_stopped_after_it_was_started_is_not_started_again(
    cloud: Cloud, clock: FakeClock
) -> None:
    create(cloud)
    cloud.tpu.stop(ZONE, "demo")
    cloud.clock.sleep(31.0)
    at_sleep(clock, 1, lambda: cloud.change("demo", state="STOPPED"))
    create(cloud, labelled(cloud, nonce="n2"))
    assert len(cloud.calls("nodes.start")) == 1


@pytest.mark.parametrize("accelerator_type", ["v3-8", "v3-32"])
def test_a_slice_that_is_being_deleted_is_waited_out_and_made_again(
    cloud: Cloud, accelerator_type: str
) -> None:
    create(cloud)
    cloud.tpu.delete(ZONE, "demo")
    ensured = create(cloud, labelled(cloud, nonce="n2", accelerator_type=accelerator_type))
    assert ensured.created
    assert ensured.slice.labels[naming.NONCE] == "n2"
    assert "DELETING" in cloud.states


@pytest.mark.parametrize("when", ["before", "while creating"])
def test_a_preempted_slice_is_lost_and_its_two_ways_on_are_named(
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
    assert str(caught.value.fix) == f"tpukit up v3-8 demo --zone {ZONE} --recreate"
    assert str(caught.value.otherwise) == f"tpukit delete demo --zone {ZONE}"
    assert "PREEMPTED; it keeps its quota" in caught.value.exists[0]


def test_a_slice_that_vanishes_while_it_is_created_is_lost_and_nothing_is_said_to_exist(
    cloud: Cloud, clock: FakeClock
) -> None:
    at_sleep(clock, 3, lambda: cloud.vanish("demo"))
    with pytest.raises(SliceLost, match="vanished") as caught:
        create(cloud)
    assert caught.value.exists == ()


def test_a_create_that_ends_because_its_slice_was_preempted_away_is_a_loss(
    cloud: Cloud, clock: FakeClock
) -> None:
    path, gone = f"nodes/{cloud.full_name('demo')}:preempt", {"vanish": True}
    at_sleep(clock, 3, lambda: cloud.control("POST", path, gone))
    with pytest.raises(SliceLost, match="vanished") as caught:
        create(cloud)
    assert "PREEMPTED" in caught.value.why
    assert (caught.value.exists, caught.value.fix) == ((), None)


def test_a_create_whose_slice_somebody_deletes_is_a_loss(cloud: Cloud, clock: FakeClock) -> None:
    at_sleep(clock, 3, lambda: cloud.tpu.delete(ZONE, "demo"))
    with pytest.raises(SliceLost, match="vanished") as caught:
        create(cloud)
    assert "The node is being deleted" in caught.value.why
    assert (caught.value.exists, caught.value.fix) == ((), None)


def test_one_unreadable_first_look_does_not_end_a_create(cloud: Cloud, clock: FakeClock) -> None:
    made = create(cloud).slice
    node = cloud.server.service.context.state.nodes[cloud.full_name("demo")]["node"]
    name, node["name"] = node["name"], ""
    clock.on_sleep = lambda: node.update(name=name)
    assert create(cloud).slice.id == made.id
    clock.on_sleep = lambda: None
    node["name"] = ""
    with pytest.raises(TpukitError, match="could not be read"):
        create(cloud)


def test_one_not_found_is_no_loss(cloud: Cloud, clock: FakeClock) -> None:
    stale = {"method": "nodes.get", "status": "NOT_FOUND", "message": "not found", "times": 1}
    at_sleep(clock, 3, lambda: cloud.fault(**stale))
    assert create(cloud).created
    assert cloud.served() == 1


def test_one_not_found_does_not_hide_why_a_create_failed(cloud: Cloud, clock: FakeClock) -> None:
    cloud.fault(preset="stockout")
    over = clock.now + 30.0  # then the create has failed, and the next look shows no slice

    def forget() -> None:
        if clock.now >= over:
            clock.on_sleep = lambda: None
            cloud.fault(method="operations.get", status="NOT_FOUND", message="not found")

    clock.on_sleep = forget
    with pytest.raises(NoCapacity):
        create(cloud)
    assert cloud.served() == 2


def test_one_not_found_is_no_loss_of_a_slice_from_the_queue_and_a_lasting_one_is(
    cloud: Cloud, clock: FakeClock
) -> None:
    """No create can bring it back, and it bills."""
    wanted = labelled(cloud, provisioning="best-effort")
    cloud.tpu.create_queued(QueueRequest(wanted))
    clock.sleep(200.0)
    assert cloud.tpu.get(ZONE, "demo").ready
    cloud.fault(method="nodes.get", status="NOT_FOUND", message="not found")
    assert create(cloud, wanted).slice.ready
    assert cloud.served() == 1
    cloud.vanish("demo")
    with pytest.raises(SliceLost, match="only the queue has its capacity"):
        create(cloud, wanted)
    assert cloud.calls("nodes.create") == []


@pytest.mark.parametrize("preset", ["stockout", "stockout-reserved", "stockout-internal"])
def test_a_stockout_in_the_operation_leaves_nothing_and_says_so(cloud: Cloud, preset: str) -> None:
    cloud.fault(preset=preset)
    with pytest.raises(NoCapacity) as caught:
        create(cloud)
    assert caught.value.exists == ()
    assert cloud.nodes() == []


def test_a_stockout_in_the_operation_is_told_soon_after_a_single_create(
    cloud: Cloud, clock: FakeClock
) -> None:
    cloud.fault(preset="stockout", times=50)
    began, refused_after = clock.now, cloud.server.service.context.timing.refusal
    with pytest.raises(NoCapacity):
        create(cloud)
    assert clock.now - began <= refused_after + 3.0
    assert len(cloud.calls("nodes.create")) == 1


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
    assert str(caught.value.fix) == f"tpukit wait demo --zone {ZONE}"
    assert "note: or run the same command again" in caught.value.lines()
    assert str(caught.value.otherwise) == f"tpukit delete demo --zone {ZONE}"
    assert len(cloud.nodes()) == 1


def test_a_create_after_a_deadline_takes_up_the_same_slice(cloud: Cloud) -> None:
    with pytest.raises(DeadlinePassed):
        create(cloud, seconds=10.0)
    assert create(cloud).created  # by its nonce it is this very request's
    assert len(cloud.calls("nodes.create")) == 1


def test_a_create_that_was_accepted_and_that_nobody_ever_sees_ends_early(
    cloud: Cloud, clock: FakeClock
) -> None:
    began = clock.now
    operation = {"name": f"projects/{PROJECT}/locations/{ZONE}/operations/o"}
    unseen = json_reply(404, {"error": {"status": "NOT_FOUND", "message": "no"}})
    with scripted(unseen, json_reply(200, operation), unseen) as server:
        with pytest.raises(
            TpukitError, match="accepted the create of slice demo but shows no"
        ) as end:
            ensure(
                CloudTpu(cloud.session, PROJECT, server.url),
                labelled(cloud),
                deadline=cloud.deadline(1800.0),
                journal=cloud.journal,
                on_state=cloud.states.append,
            )
        assert [verb for verb, _ in server.seen].count("POST") == 1
    assert clock.now - began < 180.0
    assert (end.value.exit_code, end.value.exists) == (1, ())
    assert "may still appear" in end.value.why


def test_a_name_that_is_taken_for_ever_ends_with_the_api_s_words(
    cloud: Cloud, clock: FakeClock
) -> None:
    began = clock.now
    words = "Resource 'demo' already exists in the future"
    cloud.fault(method="nodes.create", status="ALREADY_EXISTS", message=words, probability=1.0)
    with pytest.raises(NameTaken) as caught:
        create(cloud, seconds=1800.0)
    assert words in caught.value.summary()
    assert f"slice demo in {ZONE} may still appear" in caught.value.why
    assert str(caught.value.otherwise) == f"tpukit delete demo --zone {ZONE}"
    assert clock.now - began < 180.0


def test_a_failed_read_while_our_slice_is_made_names_it(cloud: Cloud, clock: FakeClock) -> None:
    at_sleep(clock, 2, lambda: cloud.fault(method="nodes.get", status="INVALID_ARGUMENT"))
    with pytest.raises(BadInput) as caught:
        create(cloud)
    assert "CREATING when last seen" in caught.value.exists[0]
    assert str(caught.value.fix) == f"tpukit delete demo --zone {ZONE}"


def test_a_name_that_is_taken_for_a_moment_is_asked_for_again(cloud: Cloud) -> None:
    cloud.fault(method="nodes.create", status="ALREADY_EXISTS", times=3)
    assert create(cloud).created


def test_a_slice_that_is_slow_to_be_seen_is_waited_for(cloud: Cloud, clock: FakeClock) -> None:
    """The API accepts a create and does not show the node yet; at the deadline it may bill."""
    operation = {"name": f"projects/{PROJECT}/locations/{ZONE}/operations/o"}
    unseen = json_reply(404, {"error": {"status": "NOT_FOUND", "message": "no"}})
    with scripted(unseen, json_reply(200, operation), unseen, json_reply(200, operation)) as server:
        tpu = CloudTpu(cloud.session, PROJECT, server.url)
        with pytest.raises(TpukitError) as caught:
            ensure(
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
    assert str(caught.value.fix) == f"tpukit delete demo --zone {ZONE}"


def test_a_signal_while_a_state_is_told_names_that_state(cloud: Cloud) -> None:
    def hear(state: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        ensure(
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_as_many_creates_under_faults_make_as_many_slices(cloud: Cloud, count: int) -> None:
    """30 % of all calls fail, half of them after the call was carried out."""
    for seed, fault in enumerate(FAULTS):
        cloud.fault(method="nodes.*", probability=0.085, seed=seed, **fault)
    cloud.fault(method="operations.*", kind="status", probability=0.3, seed=11)
    made = [create(cloud, labelled(cloud, f"s{number}")).slice.name for number in range(count)]
    assert made == [f"s{number}" for number in range(count)]
    assert cloud.nodes() == sorted(cloud.full_name(name) for name in made)
    assert cloud.served() > count


@pytest.mark.slow
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
                ensure(
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
    winners = [outcome for outcome in outcomes if isinstance(outcome, Ensured)]
    assert sum(winner.created for winner in winners) == 1
    assert len(winners) == (2 if same else 1)
    assert same or any(isinstance(outcome, NameTaken) for outcome in outcomes)

"""Searches for capacity: rounds, what is taken up, and that one slice is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.clocks import HastyClock
from support.local_cloud import Cloud, FakeClock, running_cloud
from support.searches import HOUR, Hunter
from support.slices import at_sleep, create, delete, labelled

from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    Interrupted,
    NameTaken,
    NoCapacity,
    NotAllowed,
    NotEnabled,
    QuotaExceeded,
    SliceLost,
    TpukitError,
)
from tpukit.models import Slice, SliceRequest
from tpukit.slices import change, lifetime, naming
from tpukit.slices.claim import claim
from tpukit.slices.ensure import Ensured, ensure
from tpukit.slices.refusals import Refusal, documents, removals

#: Zones that offer a v3-8.
FULL = ("europe-west4-a", "us-central1-a", "us-central1-b")
CLOSED, FREE = "us-central1-f", "us-east1-d"
ZONES = (*FULL, CLOSED, FREE)


@pytest.fixture
def ada(cloud: Cloud) -> Hunter:
    return Hunter(cloud)


def full(cloud: Cloud, *zones: str) -> None:
    for zone in zones:
        cloud.fault(preset="stockout", zone=zone, probability=1.0)


def asked(cloud: Cloud, zone: str) -> int:
    return sum(f"/locations/{zone}/" in call["path"] for call in cloud.calls("nodes.create"))


def room_later(cloud: Cloud, clock: FakeClock, seconds: float) -> None:
    """Let three zones be full, one without quota, and the last one full for so long."""

    def always() -> None:
        full(cloud, *FULL)
        cloud.fault(preset="quota", zone=CLOSED, probability=1.0)

    def pass_time() -> None:
        if clock.now >= opens:
            clock.on_sleep = lambda: None
            cloud.control("DELETE", "faults")
            always()

    opens = clock.now + seconds
    always()
    full(cloud, FREE)
    clock.on_sleep = pass_time


def check_found(cloud: Cloud, made: Ensured, refusals: Sequence[Refusal]) -> None:
    """Hold a search of `room_later` to what it has to end with."""
    assert cloud.nodes() == [cloud.full_name("demo", FREE)]
    assert made.slice.ready
    last = {refusal.zone: (refusal.again, type(refusal.error)) for refusal in refusals}
    assert last[CLOSED] == ("after a fix", QuotaExceeded)
    assert {last[zone] for zone in FULL} == {("later", NoCapacity)}


@pytest.mark.slow
def test_a_search_ends_with_one_slice_where_there_is_room_after_a_while_and_says_who_refused(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    began = clock.now
    room_later(cloud, clock, 20 * 60.0)
    made, refusals = ada.search(*ZONES, asking=6 * HOUR)
    check_found(cloud, made, refusals)
    assert made.created
    assert 20 * 60.0 < clock.now - began < 30 * 60.0
    assert asked(cloud, CLOSED) == 1  # never hammers on what waiting does not mend
    assert 3 < asked(cloud, FULL[0]) < 12
    assert clock.slept.count(75.0) == asked(cloud, FULL[0]) - 1  # a pause between two rounds
    assert next(refusal.times for refusal in refusals) == asked(cloud, FULL[0])
    text = "\n".join(refusal.line for refusal in refusals)
    assert "us-central1-f v3-8: after a fix (RESOURCE_EXHAUSTED, quota-limit-named)" in text
    assert "Google has no free slice of this type" in text


@pytest.mark.slow
def test_an_interrupted_search_goes_on_where_another_machine_starts_it_again(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    room_later(cloud, clock, 20 * 60.0)
    passing = clock.on_sleep

    def interrupt() -> None:
        passing()
        if clock.now > began + 600.0:
            raise KeyboardInterrupt

    began = clock.now
    clock.on_sleep = interrupt
    with pytest.raises(Interrupted) as caught:
        ada.search(*ZONES, asking=6 * HOUR)
    told = "\n".join(caught.value.lines())
    assert "us-central1-f v3-8: after a fix" in told
    assert "continues the search" in told
    clock.on_sleep = passing
    check_found(cloud, *Hunter(cloud, nonce="n2").search(*ZONES, asking=6 * HOUR))


@pytest.mark.parametrize(("zones", "place"), [((FULL[0], FREE), ""), ((FREE,), f" --zone {FREE}")])
def test_an_interrupt_before_the_first_look_names_the_command_that_deletes(
    ada: Hunter, cloud: Cloud, clock: FakeClock, zones: tuple[str, ...], place: str
) -> None:
    """The slice of an earlier search may exist, and would bill."""
    cloud.fault(method="nodes.list", status="UNAVAILABLE", http=503, probability=1.0)

    def interrupt() -> None:
        raise KeyboardInterrupt

    at_sleep(clock, 3, interrupt)
    with pytest.raises(Interrupted) as caught:
        ada.search(*zones)
    assert "was not looked up yet; if it exists, it bills" in caught.value.why
    assert str(caught.value.fix) == f"tpukit delete demo{place}"
    assert "continues the search" in str(caught.value.otherwise)


def test_an_interrupt_after_an_unconfirmed_create_names_the_command_that_deletes(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    cloud.fault(method="nodes.create", kind="reset", zone=FREE, probability=1.0)

    def interrupt() -> None:
        if cloud.calls("nodes.create"):
            raise KeyboardInterrupt

    clock.on_sleep = interrupt
    with pytest.raises(Interrupted) as caught:
        ada.search(FREE)
    assert "may still appear" in caught.value.why
    assert str(caught.value.fix) == f"tpukit delete demo --zone {FREE}"
    assert "continues the search" in str(caught.value.otherwise)


@pytest.mark.parametrize("state", ["CREATING", "READY"])
def test_what_an_earlier_search_has_left_is_taken_up_and_nothing_else_asked_for(
    ada: Hunter, cloud: Cloud, clock: FakeClock, state: str
) -> None:
    """A machine that was switched off in the middle of a create, or right after it."""
    full(cloud, FULL[0])
    cloud.tpu.create(ada.requests(FREE)[0])
    if state == "READY":
        clock.sleep(31.0)
    assert cloud.tpu.get(FREE, "demo").state == state
    slice_, _ = Hunter(cloud, nonce="n2").search(FULL[0], FREE)
    assert not slice_.created
    assert cloud.nodes() == [cloud.full_name("demo", FREE)]
    assert asked(cloud, FULL[0]) == 0


def test_of_two_searches_slices_the_oldest_that_becomes_ready_stays(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    other = Hunter(cloud, nonce="n2")
    clock.sleep(1.0)

    def rival(request: SliceRequest) -> None:
        if not cloud.nodes():
            cloud.tpu.create(other.requests(FREE)[0])
            clock.sleep(2.0)

    found, _ = ada.search(FULL[0], FREE, before=rival)
    assert found.slice.zone == FREE
    assert cloud.nodes() == [cloud.full_name("demo", FREE)]
    assert [len(cloud.calls("nodes.delete")), asked(cloud, FULL[0])] == [1, 1]
    again, _ = other.search(FULL[0], FREE)
    assert again.slice.zone == FREE


def test_of_two_searches_slices_the_younger_stays_where_the_older_comes_to_nothing(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    other = Hunter(cloud, nonce="n2")

    def rival(request: SliceRequest) -> None:
        if not cloud.nodes():
            full(cloud, FREE)
            cloud.tpu.create(other.requests(FREE)[0])
            clock.sleep(2.0)

    found, _ = ada.search(FULL[0], FREE, before=rival)
    assert found.slice.zone == FULL[0]
    assert cloud.nodes() == [cloud.full_name("demo", FULL[0])]


def test_a_slice_that_no_search_made_is_taken_up_and_never_deleted(
    ada: Hunter, cloud: Cloud
) -> None:
    plain = [naming.labelled(cloud.request(zone=zone), "ada", "n0") for zone in (FULL[0], FREE)]
    create(cloud, plain[1])
    assert not ada.search(FULL[0], FREE)[0].created
    with pytest.raises(NameTaken, match=f"as a v3-8 in {FREE}"):
        ada.search(*FULL)
    create(cloud, plain[0])
    with pytest.raises(BadInput, match="in several zones"):
        ada.search(FULL[0], FREE)
    assert len(cloud.nodes()) == 2


def test_a_slice_of_another_owner_is_none_of_ours(ada: Hunter, cloud: Cloud) -> None:
    create(cloud, naming.labelled(cloud.request(zone=FREE), "eve", "n0"))
    assert ada.search(FULL[0], FREE)[0].slice.zone == FULL[0]
    with pytest.raises(NameTaken) as caught:
        Hunter(cloud, owner="bob").search(FREE)
    assert "belongs to eve" in caught.value.why
    found, refusals = Hunter(cloud, owner="bob").search(FREE, FULL[1])
    assert found.slice.zone == FULL[1]
    assert [(refusal.zone, refusal.again) for refusal in refusals] == [(FREE, "elsewhere")]


def test_a_slice_that_was_preempted_is_deleted_and_asked_for_again(
    ada: Hunter, cloud: Cloud
) -> None:
    ada.search(FREE)
    name = cloud.full_name("demo", FREE)
    cloud.control("POST", f"nodes/{name}:preempt", {})
    assert cloud.tpu.get(FREE, "demo").lost
    assert Hunter(cloud, nonce="n2").search(FREE)[0].created
    assert cloud.tpu.get(FREE, "demo").ready


def test_a_slice_left_where_there_is_no_room_does_not_hold_up_the_other_places(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    full(cloud, FULL[0])
    cloud.tpu.create(ada.requests(FULL[0])[0])
    made, _ = Hunter(cloud, nonce="n2").search(FULL[0], FREE, asking=HOUR)
    assert made.slice.zone == FREE
    assert 75.0 not in clock.slept  # the pause between two rounds
    assert asked(cloud, FULL[0]) == 2, "once above, and once to go on with it"


def test_a_lost_slice_that_no_search_made_ends_the_search(ada: Hunter, cloud: Cloud) -> None:
    create(cloud, labelled(cloud))
    cloud.change("demo", state="PREEMPTED")
    with pytest.raises(SliceLost) as caught:
        ada.search(*ZONES, asking=HOUR, before=lambda request: pytest.fail("it is taken up"))
    assert "--recreate" in str(caught.value.fix)
    assert cloud.calls("nodes.delete") == []


def test_a_stopped_slice_without_room_is_started_with_pauses(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    found = create(cloud, labelled(cloud)).slice
    change.stop(cloud.tpu, found, deadline=cloud.deadline(HOUR), on_state=cloud.states.append)
    words = 'There is no more capacity in the zone "z"'
    refusal = {"kind": "status", "status": "RESOURCE_EXHAUSTED", "message": words}
    cloud.fault(method="nodes.start", times=20, **refusal)
    began = clock.now
    ada.search(*ZONES, asking=2 * HOUR)
    assert clock.now - began > 20 * 30.0


def test_types_are_asked_for_in_their_order_in_every_zone(ada: Hunter, cloud: Cloud) -> None:
    cloud.fault(preset="stockout", accelerator_type="v3-8", probability=1.0)
    slice_ = ada.search(*FULL[:2], types=("v3-8", "v2-8"))[0].slice
    assert (slice_.accelerator_type, slice_.zone) == ("v2-8", FULL[0])
    assert [asked(cloud, zone) for zone in FULL] == [2, 1, 0]


def test_one_round_without_room_is_exit_6_with_every_place_s_words(
    ada: Hunter, cloud: Cloud
) -> None:
    full(cloud, *FULL)
    cloud.fault(preset="quota", zone=CLOSED, probability=1.0)
    with pytest.raises(NoCapacity) as caught:
        ada.search(*FULL, CLOSED)
    assert caught.value.exit_code == 6
    assert [refusal["zone"] for refusal in caught.value.details["refusals"]] == [*FULL, CLOSED]
    assert all(zone in caught.value.why for zone in (*FULL, CLOSED))
    assert "--keep-trying" in str(caught.value.fix)
    assert cloud.nodes() == []


@pytest.mark.slow
def test_a_search_ends_when_its_time_is_up(ada: Hunter, cloud: Cloud, clock: FakeClock) -> None:
    began = clock.now
    full(cloud, *FULL)
    with pytest.raises(NoCapacity):
        ada.search(*FULL, asking=1200.0)
    assert 1200.0 <= clock.now - began < 1500.0


def test_where_waiting_mends_nothing_the_search_ends_at_once(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    began = clock.now
    cloud.fault(preset="quota", probability=1.0)
    with pytest.raises(QuotaExceeded):
        ada.search(*FULL, asking=6 * HOUR)
    assert [asked(cloud, zone) for zone in FULL] == [1, 1, 1]
    assert clock.now - began < 60.0
    cloud.control("DELETE", "faults")
    text = "You cannot create a TPU Node on a project linked to a free-trial billing account"
    cloud.fault(method="nodes.create", status="FAILED_PRECONDITION", message=text, probability=1.0)
    with pytest.raises(NotEnabled):
        ada.search(*FULL, asking=6 * HOUR)
    assert [asked(cloud, zone) for zone in FULL] == [2, 1, 1]


def test_a_zone_that_a_list_leaves_out_is_read_by_itself(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    cloud.tpu.create(ada.requests(FREE)[0])
    clock.sleep(31.0)
    cloud.fault(method="nodes.list", kind="unreachable", zone=FREE, probability=1.0)
    began = clock.now
    assert ada.search(FULL[0], FREE, seconds=300.0)[0].slice.zone == FREE
    assert clock.now - began < 30.0
    assert cloud.nodes() == [cloud.full_name("demo", FREE)]


@dataclass
class Meanwhile:
    """A provider that lets something happen once, right before a call for a zone."""

    provider: Any
    method: str
    zone: str
    acts: list[Callable[[], object]]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.provider, name)
        if name in ("once", "within", "only"):
            return lambda *words, **given: replace(self, provider=value(*words, **given))
        return partial(self._call, value) if name == self.method else value

    def _call(self, call: Callable[..., Any], zone: str, *words: Any) -> Any:
        if zone == self.zone and self.acts:
            self.acts.pop()()
        return call(zone, *words)


def silent(cloud: Cloud, zone: str) -> None:
    cloud.fault(method="nodes.list", kind="unreachable", zone=zone, probability=1.0)
    cloud.fault(method="nodes.get", status="UNAVAILABLE", zone=zone, probability=1.0)


def test_a_zone_that_stays_silent_is_left_out_and_not_asked(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    silent(cloud, FREE)
    began = clock.now
    found, refusals = ada.search(FREE, FULL[0], seconds=1800.0)
    assert found.slice.zone == FULL[0]
    assert clock.now - began < 180.0
    assert asked(cloud, FREE) == 0
    (refusal,) = refusals
    assert (refusal.zone, refusal.error.reason, refusal.again) == (FREE, "no answer", "later")
    assert "may exist in" in refusal.error.why
    assert [state for state in cloud.states if "bills too" in state] == [
        f"no answer from {FREE}: if it has a slice demo, that bills too; "
        "when it answers, the same command deletes that slice or names both"
    ]


def made_while_silent(ada: Hunter, cloud: Cloud, clock: FakeClock, *, complete: bool) -> Slice:
    """Return the slice of a search while a zone is silent that has an older one.

    The search for the older one was interrupted, unless that slice is `complete`.
    """
    if complete:
        ada.search(FREE)
    else:
        cloud.tpu.create(ada.requests(FREE)[0])
    clock.sleep(60.0)
    silent(cloud, FREE)
    made = Hunter(cloud, nonce="n2").search(FREE, FULL[0], seconds=1800.0)[0]
    assert (made.slice.zone, made.created) == (FULL[0], True)
    cloud.control("DELETE", "faults")
    return made.slice


def test_a_slice_that_somebody_has_got_stays_when_an_older_unfinished_one_appears(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    mine = made_while_silent(ada, cloud, clock, complete=False)
    again = Hunter(cloud, nonce="n3").search(FREE, FULL[0])[0]
    assert (again.slice.id, again.created) == (mine.id, False)
    assert cloud.nodes() == [cloud.full_name("demo", FULL[0])]


def test_two_slices_that_somebody_has_got_end_a_search_that_names_both(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    made_while_silent(ada, cloud, clock, complete=True)
    for zones in ((FREE, FULL[0]), (CLOSED,)):
        with pytest.raises(BadInput, match="exists in several zones") as caught:
            Hunter(cloud, nonce="n3").search(*zones)
        error = caught.value
        assert error.exit_code == 2
        assert [line.split(",")[0] for line in error.exists] == [
            f"slice demo in {zone}" for zone in (FREE, FULL[0])
        ]
        assert [str(error.fix), str(error.otherwise)] == [
            f"tpukit delete demo --zone {zone}" for zone in (FREE, FULL[0])
        ]
    assert len(cloud.nodes()) == 2


def test_a_slice_that_a_command_uses_is_not_deleted_for_an_older_one(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    """Both searches were interrupted before their ends."""
    for zone in (FREE, FULL[0]):
        cloud.tpu.create(ada.requests(zone)[0])
        clock.sleep(60.0)
    used = claim(
        *(cloud.tpu, cloud.tpu.get(FULL[0], "demo")),
        deadline=cloud.deadline(HOUR),
        on_state=cloud.states.append,
    )
    assert used.labels[naming.SEARCH] == naming.FOUND
    assert Hunter(cloud, nonce="n2").search(FREE, FULL[0])[0].slice.id == used.id
    assert cloud.nodes() == [cloud.full_name("demo", FULL[0])]


def younger_of_two(ada: Hunter, cloud: Cloud, clock: FakeClock) -> Slice:
    """Make the slice in two zones, a minute apart, and return the younger one."""
    for zone in (FREE, FULL[0]):
        cloud.tpu.create(ada.requests(zone)[0])
        clock.sleep(60.0)
    return cloud.tpu.get(FULL[0], "demo")


def test_a_slice_that_is_got_while_another_search_decides_to_delete_it_stays(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    younger = younger_of_two(ada, cloud, clock)
    end = partial(claim, cloud.tpu, younger, deadline=cloud.deadline(HOUR), on_state=print)
    provider = Meanwhile(cloud.tpu, "get", FULL[0], [end])
    made = Hunter(cloud, nonce="n2", provider=provider).search(FREE, FULL[0])[0]
    assert made.slice.id == younger.id
    assert cloud.nodes() == [cloud.full_name("demo", FULL[0])]


def test_a_slice_that_is_got_while_its_delete_is_asked_for_again_stays(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    younger = younger_of_two(ada, cloud, clock)

    def use() -> None:
        if cloud.calls("nodes.delete"):
            clock.on_sleep = lambda: None
            claim(cloud.tpu, younger, deadline=cloud.deadline(HOUR), on_state=print)
            cloud.control("DELETE", "faults")

    cloud.fault(method="nodes.delete", status="UNAVAILABLE", probability=1.0)
    clock.on_sleep = use
    made = Hunter(cloud, nonce="n2").search(FREE, FULL[0])[0]
    assert made.slice.id == younger.id
    assert cloud.nodes() == [cloud.full_name("demo", FULL[0])]
    assert any("it stays, because somebody has got it" in state for state in cloud.states)


def test_a_lost_slice_that_lives_again_while_its_delete_is_asked_for_again_is_taken_up(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    """On Compute Engine a slice that Google has stopped can be started."""
    first = ada.search(FREE)[0].slice
    cloud.change("demo", FREE, state="PREEMPTED")

    def start() -> None:
        if cloud.calls("nodes.delete"):
            clock.on_sleep = lambda: None
            cloud.change("demo", FREE, state="READY")
            cloud.control("DELETE", "faults")

    cloud.fault(method="nodes.delete", status="UNAVAILABLE", probability=1.0)
    clock.on_sleep = start
    again = Hunter(cloud, nonce="n2").search(FULL[0], FREE)[0]
    assert (again.slice.id, again.created) == (first.id, False)
    assert cloud.nodes() == [cloud.full_name("demo", FREE)]
    assert len(cloud.calls("nodes.create")) == 1


def test_a_search_whose_account_may_not_update_ends_with_its_slice_and_a_word(
    ada: Hunter, cloud: Cloud
) -> None:
    cloud.fault(preset="permission-denied", method="nodes.patch", probability=1.0)
    made, _ = ada.search(FREE)
    assert made.created
    assert made.slice.labels[naming.SEARCH] == naming.LOOKING
    assert any("another search may delete it" in state for state in ada.states)
    told: list[str] = []
    used = claim(cloud.tpu, made.slice, deadline=cloud.deadline(), on_state=told.append)
    assert used == made.slice  # it can be used, for example where OS Login lets us in
    assert "another search may delete it" in told[0]
    cloud.change("demo", FREE, labels={**made.slice.labels, lifetime.CLAIM: "60"})
    late = cloud.tpu.get(FREE, "demo")
    with pytest.raises(NotAllowed):
        claim(cloud.tpu, late, deadline=cloud.deadline(), on_state=told.append)


def test_a_slice_that_vanishes_at_the_end_of_its_search_is_lost(ada: Hunter, cloud: Cloud) -> None:
    def vanish() -> None:
        delete(cloud, cloud.tpu.get(FREE, "demo"))

    ada.provider = Meanwhile(cloud.tpu, "update", FREE, [vanish])
    with pytest.raises(SliceLost):
        ada.search(FREE)
    assert cloud.nodes() == []


def test_a_search_goes_on_until_a_silent_zone_answers(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    silent(cloud, FREE)
    cloud.fault(preset="quota", zone=CLOSED, probability=1.0)
    at_sleep(clock, 30, lambda: cloud.control("DELETE", "faults"))
    assert ada.search(CLOSED, FREE, asking=6 * HOUR)[0].slice.zone == FREE


def test_nothing_is_asked_for_if_no_zone_says_what_it_has(ada: Hunter, cloud: Cloud) -> None:
    for zone in (FULL[0], FREE):
        silent(cloud, zone)
    with pytest.raises(DeadlinePassed, match="cannot tell whether slice demo exists"):
        ada.search(FULL[0], FREE, seconds=300.0)
    assert cloud.nodes() == []


def test_a_slice_lives_as_long_as_was_asked_for_from_when_it_was_asked_for(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    full(cloud, FREE)
    at_sleep(clock, 30, lambda: cloud.control("DELETE", "faults"))
    began = clock.now
    given = lifetime.labels(began, HOUR, "")
    requests = [
        replace(request, labels={**request.labels, **given}) for request in ada.requests(FREE)
    ]
    ada.requests = lambda *zones, **_: requests  # type: ignore[method-assign]
    slice_ = ada.search(FREE, asking=6 * HOUR)[0].slice
    ends = lifetime.seconds_of(slice_.labels[lifetime.EXPIRES]) or 0.0
    assert ends > began + HOUR + 120.0


def test_what_may_still_appear_elsewhere_is_told_and_deleted_by_the_same_search(
    ada: Hunter, cloud: Cloud, clock: FakeClock
) -> None:
    cloud.fault(method="nodes.create", kind="reset", zone=FULL[0])
    cloud.fault(preset="quota", zone=FULL[0], probability=1.0)
    made, refusals = ada.search(FULL[0], FREE)
    (line,) = documents(refusals, made.slice)["exists"]
    assert f"slice demo in {FULL[0]} may still appear" in line
    (fix,) = removals(made.slice, refusals)
    assert str(fix) == f"tpukit delete demo --missing-ok --zone {FULL[0]}"
    assert any(f"{FULL[0]} may still appear" in state for state in cloud.states)
    cloud.control("DELETE", "faults")
    clock.sleep(60.0)
    cloud.tpu.create(ada.requests(FULL[0])[0])  # as the service does it late
    slice_ = Hunter(cloud, nonce="n2").search(FULL[0], FREE)[0]
    assert (slice_.slice.zone, slice_.created) == (FREE, False)
    assert cloud.nodes() == [cloud.full_name("demo", FREE)]


def test_an_outage_in_the_middle_ends_no_search(ada: Hunter, cloud: Cloud) -> None:
    cloud.fault(method="nodes.create", status="UNAVAILABLE", http=503, times=3)
    cloud.fault(method="nodes.list", status="UNAVAILABLE", http=503, times=20)
    found, _ = ada.search(*FULL, asking=6 * HOUR)
    assert cloud.nodes() == [cloud.full_name("demo", found.slice.zone)]
    assert cloud.served() == 23


@pytest.mark.full_size
def test_pairs_that_race_for_one_name_leave_one_slice_each(tmp_path: Path) -> None:
    """Of each pair, one asks for the same and joins, or for another type and is told so."""
    with running_cloud(tmp_path, create_seconds=0.0, clock=HastyClock()) as cloud:
        race(cloud)


def race(cloud: Cloud) -> None:
    def one(name: str, kind: str, nonce: str, ends: list[object]) -> None:
        request = cloud.request(name, accelerator_type=kind)
        try:
            made = ensure(
                cloud.tpu,
                naming.labelled(request, "ada", nonce),
                deadline=cloud.deadline(HOUR),
                journal=cloud.journal,
                on_state=lambda state: None,
            )
            ends.append(made.slice.accelerator_type)
        except TpukitError as error:
            ends.append(error)

    for number in range(100):
        ends: list[object] = []
        kinds = ("v3-8", "v3-8" if number % 2 else "v2-8")
        pair = [
            threading.Thread(target=one, args=(f"d{number}", kind, f"n{index}", ends))
            for index, kind in enumerate(kinds)
        ]
        for each in pair:
            each.start()
        for each in pair:
            each.join(60)
        if number % 2:
            assert ends == ["v3-8", "v3-8"]
        else:
            (loser,) = [end for end in ends if isinstance(end, NameTaken)]
            assert loser.exit_code == 5
            assert "accelerator type is" in loser.why
            assert len(ends) == 2
    assert len(cloud.nodes()) == 100

"""Searches that keep places in queues while they ask elsewhere: one slice, and no other request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.contexts import context_on
from support.local_cloud import Cloud, FakeClock
from support.mortal import Killed, Mortal
from support.slices import delete, labelled

from tpukit.access.creation import Reachable, ensure_somewhere
from tpukit.errors import BadInput, Interrupted, NameTaken, NoCapacity, TpukitError
from tpukit.models import QueueRequest, SliceRequest
from tpukit.slices import naming
from tpukit.slices.capacity import Search
from tpukit.slices.claim import claim
from tpukit.slices.queue_requests import ensure_queued
from tpukit.ssh.keys import KeyPair

pytestmark = pytest.mark.slow

HOUR = 3600.0
QUEUE, OTHER_QUEUE, ROOM = "us-east5-a", "us-east5-b", "us-east1-d"
DELETE = f"tpukit queue delete demo --zone {QUEUE}"


def asked(cloud: Cloud, zone: str, tier: str, nonce: str = "n1") -> SliceRequest:
    given = {"accelerator_type": "v6e-4", "runtime_version": "v2-alpha-tpuv6e"}
    labels = {naming.SEARCH: naming.LOOKING}
    return labelled(cloud, zone=zone, nonce=nonce, provisioning=tier, labels=labels, **given)


class Searcher:
    """A process that searches: for spot in a zone, and in the queues of two for best effort."""

    def __init__(self, cloud: Cloud, key: KeyPair, clock: FakeClock) -> None:
        self.cloud, self.key, self.clock = cloud, key, clock
        self.places = [(ROOM, "spot"), (QUEUE, "best-effort"), (OTHER_QUEUE, "best-effort")]

    def search(
        self,
        provider: Any = None,
        nonce: str = "n1",
        asking: float = 6 * HOUR,
        *,
        apart: bool = False,
    ) -> Reachable:
        cloud = self.cloud
        return ensure_somewhere(
            context_on(cloud, self.key, self.clock, provider=provider or cloud.tpu),
            Search(
                [asked(cloud, *place, nonce) for place in self.places],
                cloud.deadline(asking),
                HOUR,
                jitter=lambda least, most: (least + most) / 2,
                apart=apart,
            ),
            firewall=False,
            deadline=cloud.deadline(asking + HOUR),
            on_state=cloud.states.append,
        )

    def waits(self, zone: str = QUEUE, seconds: float = 100 * HOUR) -> None:
        self.cloud.fault(
            method="queuedResources.create",
            kind="wait",
            zone=zone,
            seconds=seconds,
            probability=1.0,
        )

    def full(self) -> None:
        self.cloud.fault(preset="stockout", method="nodes.create", probability=1.0)

    def room_after(self, seconds: float) -> None:
        """Let no zone have spot capacity for so long."""

        def pass_time() -> None:
            if self.clock.now >= opens:
                self.clock.on_sleep = lambda: None
                self.cloud.control("DELETE", "faults")

        self.full()
        opens = self.clock.now + seconds
        self.clock.on_sleep = pass_time


@pytest.fixture
def ada(cloud: Cloud, key: KeyPair, clock: FakeClock) -> Searcher:
    return Searcher(cloud, key, clock)


def requests(cloud: Cloud) -> list[str]:
    """Return the zones of all requests."""
    return sorted(one.zone for one in cloud.tpu.list_queued("-").requests)


def slices(cloud: Cloud) -> list[tuple[str, str]]:
    return [(one.zone, one.provisioning) for one in cloud.tpu.list("-").slices]


def test_a_search_keeps_its_places_while_it_asks_elsewhere_and_gives_them_up_at_the_end(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.waits()
    ada.waits(OTHER_QUEUE)
    ada.room_after(HOUR)
    counting = Mortal(cloud.tpu, 0, False)
    made = ada.search(counting)
    assert slices(cloud) == [(ROOM, "spot")]
    assert made.slice.ready
    assert requests(cloud) == []
    assert counting.calls["create_queued"] == 2  # no place is given up before the end
    assert counting.calls["delete_queued"] == 2
    assert counting.calls["create"] > 20
    waited = next(refusal for refusal in made.refusals if refusal.zone == QUEUE)
    assert (waited.again, waited.times > 20) == ("later", True)
    assert "keeps its place in the queue, WAITING_FOR_RESOURCES" in waited.line


def test_the_queue_that_comes_first_wins_and_the_others_lose_their_request(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.full()
    ada.waits(QUEUE, 2 * HOUR)
    ada.waits(OTHER_QUEUE, HOUR)
    made = ada.search()
    assert slices(cloud) == [(OTHER_QUEUE, "best-effort")]
    assert made.slice.queued_resource == "demo"
    assert requests(cloud) == [OTHER_QUEUE]
    assert not any("unless you use them" in state for state in cloud.states)


def test_if_both_come_at_once_the_older_slice_stays(ada: Searcher, cloud: Cloud) -> None:
    ada.waits(QUEUE, HOUR)
    ada.waits(OTHER_QUEUE, HOUR)
    ada.room_after(HOUR)
    ada.search()
    ada.clock.sleep(HOUR)
    (left,) = slices(cloud)
    assert requests(cloud) == ([] if left[0] == ROOM else [left[0]])


def test_a_slice_of_the_zone_in_whose_queue_it_waits_is_not_deleted_with_the_request(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.places = [(QUEUE, "spot"), (QUEUE, "best-effort")]
    ada.waits()
    ada.room_after(HOUR)
    assert ada.search().slice.ready
    assert slices(cloud) == [(QUEUE, "spot")]
    assert requests(cloud) == []
    assert all("force" not in call["path"] for call in cloud.calls("queuedResources.delete"))


def test_a_name_that_the_queue_holds_ends_only_that_place(ada: Searcher, cloud: Cloud) -> None:
    ada.places = [(QUEUE, "spot"), (QUEUE, "best-effort"), (ROOM, "spot")]
    taken = {"status": "ALREADY_EXISTS", "message": "Resource 'demo' already exists"}
    ada.waits()
    ada.full()

    def taken_once_it_waits() -> None:
        if requests(cloud) and not cloud.calls("queuedResources.delete"):
            cloud.control("DELETE", "faults")
            cloud.fault(method="nodes.create", zone=QUEUE, probability=1.0, **taken)

    ada.clock.on_sleep = taken_once_it_waits
    assert ada.search().slice.zone == ROOM
    assert requests(cloud) == []


def test_the_end_of_a_search_names_each_request_and_the_same_command_takes_it_up(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.full()
    ada.waits()
    ada.waits(OTHER_QUEUE)
    with pytest.raises(NoCapacity) as caught:
        ada.search(asking=HOUR)
    lines = caught.value.lines()
    assert f"fix: {DELETE}" in lines
    (line,) = [line for line in lines if OTHER_QUEUE in line and line.startswith("exists: ")]
    assert "its slices bill until they are deleted" in line
    assert line.endswith(f"tpukit queue delete demo --zone {OTHER_QUEUE}")
    assert requests(cloud) == [QUEUE, OTHER_QUEUE]
    cloud.control("DELETE", "faults")
    counting = Mortal(cloud.tpu, 0, False)
    assert ada.search(counting, nonce="n2").slice.zone == ROOM
    assert requests(cloud) == []
    assert counting.calls["create_queued"] == 0


def test_a_search_gives_up_no_request_of_the_user_s_own_or_of_somebody_else(
    ada: Searcher, cloud: Cloud
) -> None:
    def ask(zone: str, owner: str) -> None:
        given = {"accelerator_type": "v6e-4", "runtime_version": "v2-alpha-tpuv6e"}
        labels = {naming.SEARCH: naming.LOOKING} if owner == "eve" else {}
        own = cloud.request(zone=zone, provisioning="best-effort", labels=labels, **given)
        ensure_queued(
            cloud.tpu,
            QueueRequest(naming.labelled(own, owner, "n0")),
            deadline=cloud.deadline(),
            journal=cloud.journal,
            on_state=cloud.states.append,
        )

    ada.waits()
    ada.waits(OTHER_QUEUE)
    ask(QUEUE, "ada")
    ask(OTHER_QUEUE, "eve")
    ada.room_after(HOUR)
    made = ada.search()
    assert made.slice.zone == ROOM
    assert requests(cloud) == [QUEUE, OTHER_QUEUE]
    assert f"{QUEUE}: queued resource demo stays: no search made it" in cloud.states
    (refused,) = [one for one in made.refusals if one.zone == OTHER_QUEUE]
    assert isinstance(refused.error, NameTaken)
    assert (refused.again, refused.times) == ("elsewhere", 1)


@pytest.mark.parametrize("apart", [True, False])
def test_a_watch_gives_up_no_place_of_a_search_in_zones_of_no_concern(
    ada: Searcher, cloud: Cloud, apart: bool
) -> None:
    ada.full()
    ada.waits()
    ada.waits(OTHER_QUEUE)
    with pytest.raises(NoCapacity):
        ada.search(asking=HOUR)
    cloud.control("DELETE", "faults")
    ada.places = ada.places[:2]
    assert ada.search(nonce="n2", apart=apart).slice.zone == ROOM
    assert requests(cloud) == ([OTHER_QUEUE] if apart else [])


def test_a_request_whose_slice_somebody_has_stays_while_its_zone_is_silent(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.full()
    ada.waits(OTHER_QUEUE)
    assert ada.search().slice.zone == QUEUE
    cloud.control("DELETE", "faults")
    cloud.fault(method="nodes.list", kind="unreachable", zone=QUEUE, probability=1.0)
    cloud.fault(method="nodes.get", status="UNAVAILABLE", zone=QUEUE, probability=1.0)
    assert ada.search(nonce="n2").slice.zone == ROOM
    assert any(state.endswith(f"unless you use them: {DELETE}") for state in cloud.states)
    cloud.control("DELETE", "faults")
    assert sorted(slices(cloud)) == [(ROOM, "spot"), (QUEUE, "best-effort")]
    with pytest.raises(BadInput, match="exists in several zones"):
        ada.search(nonce="n3")
    assert len(slices(cloud)) == 2


def test_a_request_whose_slice_somebody_uses_while_its_delete_is_asked_for_again_stays(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.places = ada.places[:2]
    ada.waits(QUEUE, HOUR)
    refused = {"method": "queuedResources.delete", "status": "UNAVAILABLE", "probability": 1.0}

    def use() -> None:
        ada.clock.on_sleep = lambda: None
        ada.clock.sleep(2 * HOUR)  # the queue gives its slice meanwhile
        slice_ = cloud.tpu.get(QUEUE, "demo")
        claim(cloud.tpu, slice_, deadline=cloud.deadline(), on_state=cloud.states.append)
        cloud.control("DELETE", "faults")

    def waits_for_the_delete() -> None:
        if cloud.calls("queuedResources.delete"):
            use()

    def room() -> None:
        if requests(cloud):
            cloud.control("DELETE", "faults")
            cloud.fault(**refused)
            ada.clock.on_sleep = waits_for_the_delete

    ada.full()
    ada.clock.on_sleep = room
    assert ada.search().slice.zone == ROOM
    assert sorted(slices(cloud)) == [(ROOM, "spot"), (QUEUE, "best-effort")]
    assert any(state.endswith(f"unless you use them: {DELETE}") for state in cloud.states)


def test_a_slice_that_google_takes_back_during_a_search_is_asked_for_again(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.full()
    assert ada.search().slice.zone == QUEUE
    cloud.control("POST", f"nodes/{cloud.full_name('demo', QUEUE)}:preempt", {})
    for _ in range(3):
        ada.clock.sleep(600.0)
        cloud.tpu.list("-")
    assert cloud.tpu.get_queued(QUEUE, "demo").state == "SUSPENDED"
    again = ada.search(nonce="n2")
    assert again.slice.ready
    assert requests(cloud) == [again.slice.zone]


def test_a_request_that_cannot_be_deleted_is_named_beside_the_slice(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.places.reverse()
    ada.waits()
    ada.waits(OTHER_QUEUE)
    cloud.fault(
        method="queuedResources.delete",
        status="PERMISSION_DENIED",
        message="Permission 'tpu.nodes.delete' denied",
        probability=1.0,
    )
    with pytest.raises(TpukitError) as caught:
        ada.search()
    told = caught.value.lines()
    assert f"fix: tpukit delete demo --zone {ROOM}" in told
    (slice_,) = [line for line in told if line.startswith("exists: slice demo")]
    assert f"in {ROOM}, READY" in slice_
    for zone in (QUEUE, OTHER_QUEUE):
        assert any(f"exists: queued resource demo in {zone}" in line for line in told)
        assert f"tpukit queue delete demo --zone {zone}" in "\n".join(told)
    cloud.control("DELETE", "faults")
    assert not ada.search(nonce="n2").created
    assert requests(cloud) == []


def test_a_request_in_a_silent_zone_is_named_and_does_not_hold_up_the_slice(
    ada: Searcher, cloud: Cloud
) -> None:
    ada.full()
    ada.waits()
    ada.places = ada.places[:2]
    with pytest.raises(NoCapacity):
        ada.search(asking=HOUR)
    cloud.control("DELETE", "faults")
    there = {"zone": QUEUE, "probability": 1.0}
    for method in ("nodes.list", "queuedResources.list"):
        cloud.fault(method=method, kind="unreachable", **there)
    for method in ("nodes.get", "queuedResources.get"):
        cloud.fault(method=method, status="UNAVAILABLE", **there)
    assert ada.search(nonce="n2").slice.zone == ROOM
    (line,) = [line for line in cloud.states if "may wait" in line]
    assert line.endswith(f": {DELETE}")


def prepared(ada: Searcher, queue_first: bool) -> None:
    """Let the queue give a slice after some minutes, before or after another zone."""
    ada.cloud.control("DELETE", "faults")
    ada.cloud.states.clear()
    ada.waits(QUEUE, 200.0 if queue_first else 100 * HOUR)
    ada.waits(OTHER_QUEUE, 1000.0)
    ada.room_after(100 * HOUR if queue_first else 200.0)


def clear(ada: Searcher) -> None:
    for slice_ in ada.cloud.tpu.list("-").slices:
        delete(ada.cloud, slice_, HOUR)
    for zone in requests(ada.cloud):
        ada.cloud.tpu.delete_queued(zone, "demo", force=True)
    ada.clock.sleep(HOUR)
    assert requests(ada.cloud) == []


def moments(ada: Searcher, few: int, queue_first: bool) -> Iterator[tuple[int, bool]]:
    """Yield calls spread over a search, before and after the answer, each in a prepared cloud."""
    prepared(ada, queue_first)
    alive = Mortal(ada.cloud.tpu, 0, False)
    ada.search(alive)
    calls = alive.calls["all"]
    for number in range(1, calls + 1, max(1, calls // few)):
        for answered in (False, True):
            clear(ada)
            prepared(ada, queue_first)
            yield number, answered


@pytest.mark.parametrize("queue_first", [False, True])
@pytest.mark.parametrize("few", [8, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_search_that_is_killed_leaves_one_slice_and_no_other_request_once_it_is_typed_again(
    ada: Searcher, cloud: Cloud, few: int, queue_first: bool
) -> None:
    for number, answered in moments(ada, few, queue_first):
        with pytest.raises(Killed):
            ada.search(Mortal(cloud.tpu, number, answered), f"a{number}-{answered:d}")
        ada.search(nonce=f"b{number}-{answered:d}")
        ada.clock.sleep(2 * HOUR)
        ((zone, tier),) = slices(cloud)
        assert requests(cloud) == ([zone] if tier == "best-effort" else []), number


@pytest.mark.parametrize("queue_first", [False, True])
@pytest.mark.parametrize("few", [8, pytest.param(10_000, marks=pytest.mark.long)])
def test_a_search_that_is_interrupted_names_every_request_and_slice_that_it_leaves(
    ada: Searcher, cloud: Cloud, few: int, queue_first: bool
) -> None:
    for number, answered in moments(ada, few, queue_first):
        mortal = Mortal(cloud.tpu, number, answered, KeyboardInterrupt)
        with pytest.raises(Interrupted) as caught:
            ada.search(mortal, f"a{number}-{answered:d}")
        told = "\n".join(caught.value.lines())
        for zone in requests(cloud):
            assert f"in {zone}" in told, (number, answered)
            assert f"tpukit queue delete demo --zone {zone}" in told, (number, answered)
        for zone, tier in slices(cloud):
            if tier == "spot":
                assert f"tpukit delete demo --zone {zone}" in told, (number, answered)

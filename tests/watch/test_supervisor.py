"""Each turn that a watched slice can take, on a clock that waits for nobody."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud, FakeClock
from support.slices import OWNER, create, delete, labelled

from tpukit.access import ssh_rule
from tpukit.access.cleanup import Cleanup
from tpukit.clock import Deadline
from tpukit.errors import (
    Interrupted,
    NameTaken,
    NoCapacity,
    NotAllowed,
    ProvisionFailed,
    SliceLost,
    TerminationSignal,
    TpukitError,
    TransportFailed,
)
from tpukit.models import DataDisk, FirewallRule, QueueRequest, Slice, SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.slices.capacity import Search, obtain
from tpukit.slices.ensure import Ensured, ensure
from tpukit.watch.saved_watches import (
    NotWritten,
    Record,
    Watch,
    WatchFile,
    WatchFiles,
    WatchSpec,
    refreshed,
    request_of,
)
from tpukit.watch.supervisor import Watcher, condition
from tpukit.watch.workload import Ended


@dataclass
class PaperWork:
    """Slices that are really made, and a command that runs on paper: once a slice, by its nonce."""

    cloud: Cloud
    begun: list[str] = field(default_factory=list)  #: the nonces of the slices, in turn
    ends: list[Ended] = field(default_factory=list)  #: what `ended` says, in turn
    failures: list[TpukitError] = field(default_factory=list)  #: what `begin` raises, in turn
    unlucky: list[Callable[[], object]] = field(default_factory=list)  #: what a make meets
    running: bool = False
    lost: bool = False  #: whether the run's processes are gone
    bought: set[str] = field(default_factory=set)  #: how all slices were
    labels: Mapping[str, str] = field(default_factory=dict)  #: of the last slice

    def make(self, search: Search) -> Slice:
        deadline = Deadline.after(self.cloud.clock, search.asking.remaining() + 1200.0)
        given = {"journal": self.cloud.journal, "on_state": self.cloud.states.append}

        def attempt(request: SliceRequest) -> Ensured:
            return ensure(self.cloud.tpu, request, deadline=deadline, **given)

        if self.unlucky:
            self.unlucky.pop()()
        if search.single:  # as `ensure_somewhere` has it
            return attempt(search.requests[0]).slice
        steady = replace(search, jitter=lambda least, most: most)
        return obtain(self.cloud.tpu, steady, attempt, deadline=deadline, **given)[0].slice

    def begin(self, slice_: Slice, request: SliceRequest) -> str:
        if self.failures:
            raise self.failures.pop(0)
        own = slice_.labels[naming.NONCE]
        self.bought.add(slice_.provisioning)
        self.labels = slice_.labels
        alive = {
            slice_.labels[naming.NONCE]
            for slice_ in self.cloud.tpu.list("-").slices
            if slice_.ready
        }
        assert not (alive & {*self.begun}) - {own}, "two copies at once"
        self.running = True
        if own in self.begun and not self.lost:
            return "run r1 found"
        self.lost = False
        self.begun.append(own)
        return "run r1 started"

    def ended(self) -> Ended | None:
        return self.ends[0] if self.ends else None

    def leave(self) -> None:
        self.running = False


def cleanup_of(cloud: Cloud, say: Callable[[str], object]) -> Cleanup:
    place = (cloud.tpu, cloud.firewall, PROJECT, cloud.journal)
    return Cleanup(*place, on_state=lambda name: say, on_warning=say)


@dataclass
class Scene:
    """A cloud with a READY slice, a watch of it, and what happens between two looks."""

    cloud: Cloud
    clock: FakeClock
    file: WatchFile
    record: Record
    work: PaperWork
    said: list[str] = field(default_factory=list)

    def watcher(self) -> Watcher:
        say = self.said.append
        return Watcher(cleanup_of(self.cloud, say), self.record, self.work, self.clock, OWNER, say)

    def watch(self, *acts: Callable[[], object]) -> int:
        """Watch while these happen, one after the other, each after some quiet looks."""
        left = list(acts)
        quiet, pauses = 0, 0

        def on_sleep() -> None:
            nonlocal quiet, pauses
            pauses += 1
            assert pauses < 2000, "nothing comes of it"
            quiet = quiet + 1 if self.work.running else 0
            if quiet == 4 and left:
                quiet = 0
                left.pop(0)()

        self.clock.on_sleep = on_sleep
        status = self.watcher().watch()
        assert not left
        return status

    def preempt(self) -> None:
        name = self.cloud.full_name("demo", self.record.watch.zone)
        self.cloud.control("POST", f"nodes/{name}:preempt")

    def vanish(self) -> None:
        self.cloud.vanish("demo")

    def end(self) -> None:
        self.work.ends = [Ended(0)]

    @property
    def events(self) -> list[str]:
        return [each.event for each in self.record.watch.history]

    def lives(self, seconds: float) -> None:
        """Set the end of the slice."""
        slice_ = self.cloud.tpu.get(ZONE, "demo")
        end = lifetime.moment(self.clock.time() + seconds)
        self.cloud.change("demo", labels={**slice_.labels, lifetime.EXPIRES: end})

    def spec(self, **changes: object) -> None:
        watch = self.record.watch
        self.record.watch = replace(watch, spec=replace(watch.spec, **changes))  # type: ignore[arg-type]


@pytest.fixture
def scene(cloud: Cloud, clock: FakeClock, tmp_path: Path) -> Scene:
    found = create(cloud, labelled(cloud, provisioning="spot")).slice
    file = WatchFiles(tmp_path / "watches", cloud.url, PROJECT).of(ZONE, "demo")
    spec = WatchSpec(request_of(found), run_id="r1", command="train", zones=(OTHER_ZONE,))
    watch = Watch(spec, zone=ZONE)
    file.save(watch)
    return Scene(cloud, clock, file, Record(file, watch, clock.time), PaperWork(cloud))


LOSSES = {
    "preempted": Scene.preempt,
    "vanished": Scene.vanish,
    "terminated": lambda scene: scene.cloud.change("demo", state="TERMINATED"),
}


@pytest.mark.process
@pytest.mark.parametrize("word", LOSSES)
def test_a_lost_slice_is_deleted_and_made_again_and_the_command_begun_on_it(
    scene: Scene, word: str
) -> None:
    """Ten times in a row; each has its word, none runs beside another, and one slice is left."""
    lose = LOSSES[word]
    assert scene.watch(*[lambda: lose(scene)] * 10, scene.end) == 0
    assert len(scene.work.begun) == len(set(scene.work.begun)) == 11
    assert scene.cloud.nodes() == [scene.cloud.full_name("demo")]
    assert scene.events.count(word) == 10
    assert scene.events[-1] == "ended"
    assert scene.record.watch.recoveries == 10
    assert scene.file.load() == scene.record.watch
    slice_ = scene.cloud.tpu.get(ZONE, "demo")
    assert (slice_.provisioning, slice_.labels[naming.OWNER]) == ("spot", OWNER)


def test_a_watch_that_is_taken_up_leaves_a_stranger_of_the_name_alone(scene: Scene) -> None:
    """Ours was deleted and another was made under its name while nobody watched."""
    scene.record.watch = replace(scene.record.watch, id=scene.cloud.tpu.get(ZONE, "demo").id)
    scene.vanish()
    stranger = naming.labelled(scene.cloud.request("demo"), "bob", "bobs")
    scene.cloud.tpu.create(stranger)
    scene.clock.sleep(60.0)
    before = scene.cloud.tpu.get(ZONE, "demo")
    scene.spec(zones=())
    with pytest.raises(NameTaken) as refused:
        scene.watch()
    assert "belongs to bob" in refused.value.why
    assert scene.work.begun == []
    assert scene.cloud.tpu.get(ZONE, "demo") == before
    scene.spec(zones=(OTHER_ZONE,))
    assert scene.watch(scene.end) == 0
    assert scene.record.watch.zone == OTHER_ZONE
    assert scene.cloud.tpu.get(ZONE, "demo") == before


def test_a_watch_that_knows_no_id_yet_does_not_take_a_stranger_of_the_name(scene: Scene) -> None:
    scene.vanish()
    scene.cloud.tpu.create(naming.labelled(scene.cloud.request("demo"), "bob", "bobs"))
    scene.clock.sleep(60.0)
    with pytest.raises(NameTaken, match="belongs to bob") as refused:
        scene.watch()
    assert scene.work.begun == []
    assert scene.record.watch.id == ""
    assert str(refused.value.fix) == "tpukit watch demo --stop"


def test_an_api_that_is_silent_is_no_loss(scene: Scene) -> None:
    def silence() -> None:
        scene.cloud.fault(method="nodes.get", status="UNAVAILABLE", message="busy", times=30)

    assert scene.watch(silence, scene.end) == 0
    assert scene.cloud.served() == 30
    assert len(scene.work.begun) == 1
    assert not scene.cloud.calls("nodes.delete")
    assert any("no answer from the API" in line for line in scene.said)


def test_maintenance_is_told_once_and_is_no_loss(scene: Scene) -> None:
    def maintain() -> None:
        scene.cloud.change("demo", health="UNHEALTHY_MAINTENANCE")

    def heal() -> None:
        scene.cloud.change("demo", health="HEALTHY")

    assert scene.watch(maintain, heal, scene.end) == 0
    told = [event for event in scene.events if "MAINTENANCE" in event or "healthy" in event]
    assert told == ["UNHEALTHY_MAINTENANCE: it may restart or be lost", "healthy again"]
    assert len(scene.work.begun) == 1


@pytest.mark.parametrize(("state", "fix"), [("STOPPED", "start"), ("DELETING", "")])
def test_what_somebody_has_asked_for_is_not_undone(scene: Scene, state: str, fix: str) -> None:
    with pytest.raises(TpukitError, match="not by this watch") as caught:
        scene.watch(lambda: scene.cloud.change("demo", state=state))
    assert fix in str(caught.value.fix or "")
    assert "slice demo in us-central1-a" in caught.value.exists[0]
    assert not scene.cloud.calls("nodes.delete")
    assert len(scene.cloud.calls("nodes.create")) == 1
    assert scene.record.watch.state == "ended"


def test_a_slice_that_somebody_has_deleted_is_not_made_again(scene: Scene) -> None:
    """It is gone as one that vanished is: the operation of its delete tells them apart."""

    def delete_at_once() -> None:
        scene.cloud.tpu.delete(ZONE, "demo")
        scene.clock.now += 60.0

    with pytest.raises(TpukitError, match="not by this watch") as caught:
        scene.watch(scene.preempt, delete_at_once)  # our own delete of the first one does not count
    assert caught.value.exists == ()
    assert scene.cloud.nodes() == []
    assert len(scene.work.begun) == 2


@pytest.mark.parametrize("state", ["DELETING", ""])
def test_an_end_by_the_slice_s_own_guard_is_a_loss(scene: Scene, state: str) -> None:
    """Its lifetime is over, or its devices were idle; nothing goes on, and nothing is left."""
    scene.lives(60)

    def end() -> None:
        scene.clock.sleep(60.0)
        if state:
            scene.cloud.change("demo", state=state)
        else:
            scene.cloud.tpu.delete(ZONE, "demo")
            scene.clock.sleep(60.0)

    with pytest.raises(SliceLost, match="lifetime is over") as caught:
        scene.watch(end)
    gone = "slice demo in us-central1-a, DELETING when last seen; it bills until it is gone"
    assert caught.value.exists == ((gone,) if state else ())
    assert scene.record.watch.state == "ended"


def test_an_end_after_idle_hours_may_be_the_guard_s(scene: Scene) -> None:
    slice_ = scene.cloud.tpu.get(ZONE, "demo")
    scene.cloud.change("demo", labels={**slice_.labels, lifetime.IDLE: "1800"})
    with pytest.raises(SliceLost, match="being deleted") as caught:
        scene.watch(lambda: scene.cloud.change("demo", state="DELETING"))
    assert "if no device is in use for 1800 s" in caught.value.why


def test_a_slice_that_was_preempted_and_then_deleted_by_somebody_is_made_again(
    scene: Scene,
) -> None:
    """The watch saw the one, and was ended before it saw the other."""

    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if line.startswith("preempted"):
                scene.cloud.tpu.delete(ZONE, "demo")
                raise Killed

    scene.said = Heard()
    with pytest.raises(Killed):
        scene.watch(scene.preempt)
    scene.said, scene.work.running = [], False
    assert scene.watch(scene.end) == 0
    assert len(scene.work.begun) == 2


def test_a_slice_that_is_not_needed_any_more_is_deleted_although_the_watch_is_killed(
    scene: Scene,
) -> None:
    """Between the end of its command and the delete; the command is not run again."""
    scene.spec(delete_when_done=True)

    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if "DELETING" in line:
                raise Killed

    scene.said = Heard()
    with pytest.raises(Killed):
        scene.watch(scene.end)
    assert scene.record.watch.open
    scene.said, scene.work.ends = [], []
    assert scene.watch() == 0
    assert len(scene.work.begun) == 1
    assert scene.cloud.nodes() == []
    assert scene.record.watch.state == "ended"


def test_the_queued_resource_of_a_slice_that_is_not_needed_any_more_goes_with_it(
    scene: Scene,
) -> None:
    queue(scene)
    scene.spec(delete_when_done=True)
    assert scene.watch(scene.end) == 0
    assert (scene.cloud.nodes(), scene.cloud.tpu.list_queued("-").requests) == ([], ())
    scene.cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0)
    scene.cloud.tpu.create_queued(QueueRequest(labelled(scene.cloud, "wish")))
    scene.record.change(spec=replace(scene.record.watch.spec, queued_resource="wish"))
    assert scene.watcher().watch() == 0  # as after a kill: it knows no more when its slice was made
    assert [request.name for request in scene.cloud.tpu.list_queued("-").requests] == ["wish"]


def test_no_room_where_it_was_leads_elsewhere_and_nothing_is_left_behind(scene: Scene) -> None:
    scene.cloud.fault(preset="stockout", zone=ZONE, probability=1.0)
    assert scene.watch(scene.preempt, scene.end) == 0
    assert scene.cloud.nodes() == [scene.cloud.full_name("demo", OTHER_ZONE)]
    assert scene.record.watch.zone == OTHER_ZONE


def test_the_zone_that_a_watch_began_in_is_asked_again_when_the_other_has_no_room(
    scene: Scene,
) -> None:
    scene.cloud.fault(preset="stockout", zone=ZONE, times=1)

    def preempt() -> None:
        assert scene.record.watch.zone == OTHER_ZONE
        scene.cloud.fault(preset="stockout", zone=OTHER_ZONE, times=1)
        scene.preempt()

    assert scene.watch(scene.preempt, preempt, scene.end) == 0
    assert scene.cloud.nodes() == [scene.cloud.full_name("demo")]
    assert len(scene.cloud.calls("nodes.create")) == 5


@pytest.mark.slow
def test_room_that_comes_later_is_waited_for_and_none_ends_the_watch_in_time(
    scene: Scene,
) -> None:
    scene.spec(max_wait=3600.0)
    scene.cloud.fault(preset="stockout", times=6)
    assert scene.watch(scene.preempt, scene.end) == 0
    assert scene.cloud.served() == 6
    scene.cloud.fault(preset="stockout", probability=1.0)
    scene.work.ends, scene.work.running = [], False
    scene.record.watch = replace(scene.record.watch, state="watching", status=None)
    began = scene.clock.time()
    with pytest.raises(NoCapacity) as caught:
        scene.watch(scene.preempt)
    assert 3500 < scene.clock.time() - began < 3600 + 600
    assert str(caught.value.fix) == "tpukit watch demo"
    assert caught.value.exists == ()
    assert scene.cloud.nodes() == []
    assert scene.record.watch.open, "it can be taken up"


def test_another_s_slice_of_that_name_elsewhere_is_left_alone(scene: Scene) -> None:
    scene.cloud.tpu.create(naming.labelled(scene.cloud.request(zone=OTHER_ZONE), "eve", "hers"))
    hers = scene.cloud.tpu.get(OTHER_ZONE, "demo")
    scene.cloud.fault(preset="stockout", zone=ZONE, times=1)
    assert scene.watch(scene.preempt, scene.end) == 0
    assert scene.record.watch.zone == ZONE
    assert scene.cloud.tpu.get(OTHER_ZONE, "demo").id == hers.id


@pytest.mark.parametrize("labels", [{}, {naming.SEARCH: naming.LOOKING}])
def test_a_slice_of_ours_of_that_name_in_a_zone_of_no_concern_is_another_one(
    scene: Scene, labels: dict[str, str]
) -> None:
    """Each of two watches keeps its own, also while the other one's is lost."""
    scene.cloud.tpu.create(labelled(scene.cloud, zone="us-east1-d", nonce="n2", labels=labels))
    scene.clock.sleep(60.0)
    other = scene.cloud.tpu.get("us-east1-d", "demo")
    scene.cloud.change("demo", zone="us-east1-d", state="PREEMPTED")
    assert scene.watch(scene.preempt, scene.end) == 0
    assert scene.cloud.tpu.get("us-east1-d", "demo").id == other.id
    assert scene.record.watch.zone == ZONE
    assert scene.cloud.tpu.get(ZONE, "demo").ready


def queue(scene: Scene) -> None:
    """Let the slice come from a queued resource."""
    cloud = scene.cloud
    delete(cloud, cloud.tpu.get(ZONE, "demo"))
    place = f"projects/{PROJECT}/locations/{ZONE}"
    node = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    node["labels"] = dict(labelled(cloud).labels)  # type: ignore[assignment]
    spec = {"parent": place, "nodeId": "demo", "node": node}
    url = f"{cloud.url}/v2/{place}/queuedResources?queuedResourceId=wish"
    cloud.session.rest("queue", "POST", url, body={"tpu": {"nodeSpec": [spec]}, "spot": {}})
    while not (slices := cloud.tpu.list(ZONE).slices) or not slices[0].ready:
        scene.clock.sleep(30.0)
    scene.spec(request=request_of(slices[0]), queued_resource="wish")


def test_a_slice_of_a_queued_resource_is_suspended_with_it_and_made_again_without(
    scene: Scene,
) -> None:
    queue(scene)
    cloud = scene.cloud
    assert scene.watch(scene.preempt, scene.end) == 0
    assert "suspended" in scene.events
    assert cloud.tpu.list_queued("-").requests == ()
    assert cloud.nodes() == [cloud.full_name("demo")]
    assert scene.record.watch.spec.queued_resource == ""


def test_a_slice_that_is_lost_while_it_is_made_is_made_again(scene: Scene) -> None:
    def lose() -> None:
        quiet = scene.clock.on_sleep

        def lose_once() -> None:
            if scene.cloud.nodes():
                scene.clock.on_sleep = quiet
                scene.preempt()

        scene.clock.on_sleep = lose_once

    scene.work.unlucky = [lose]
    assert scene.watch(scene.vanish, scene.end) == 0
    assert len(scene.cloud.nodes()) == 1
    assert len(scene.work.begun) == 2
    assert len(scene.cloud.calls("nodes.create")) == 3


def test_the_recoveries_are_bounded(scene: Scene) -> None:
    scene.spec(recoveries=2)
    with pytest.raises(SliceLost, match="given up: preempted") as caught:
        scene.watch(*[scene.preempt] * 3)
    assert caught.value.exit_code == 7
    assert "PREEMPTED" in caught.value.exists[0]
    assert len(scene.work.begun) == 3


def test_a_slice_whose_lifetime_is_over_is_not_made_again(scene: Scene) -> None:
    scene.lives(60)
    with pytest.raises(SliceLost, match="lifetime is over") as caught:
        scene.watch(lambda: (scene.clock.sleep(60.0), scene.preempt()))
    assert len(scene.cloud.calls("nodes.create")) == 1
    assert scene.cloud.nodes() == []
    assert caught.value.exists == ()


@pytest.mark.slow
def test_a_slice_is_asked_for_until_its_end_and_no_longer(scene: Scene) -> None:
    """Of six hours for capacity, those before its end count."""
    scene.lives(3600)
    scene.cloud.fault(preset="stockout", probability=1.0)
    end = scene.clock.time() + 3600
    with pytest.raises(SliceLost, match="lifetime is over"):
        scene.watch(scene.preempt)
    assert end - 60 < scene.clock.time() < end + 60
    assert scene.record.watch.state == "ended"


def test_what_changes_on_a_slice_reaches_the_next_one(scene: Scene) -> None:
    """Its end is put off, and labels, tags and metadata are updated, while it is watched."""
    scene.lives(60)
    later = lifetime.moment(scene.clock.time() + 7200)

    def update() -> None:
        slice_ = scene.cloud.tpu.get(ZONE, "demo")
        labels = {**slice_.labels, lifetime.EXPIRES: later, "team": "vision"}
        scene.cloud.change("demo", labels=labels, tags=["web"], metadata={"a": "b"})

    def lose() -> None:
        scene.clock.sleep(60.0)
        scene.preempt()

    assert scene.watch(update, lose, scene.end) == 0
    assert len(scene.work.begun) == 2
    own = scene.cloud.tpu.get(ZONE, "demo")
    assert (own.labels[lifetime.EXPIRES], own.labels["team"]) == (later, "vision")
    assert (own.tags, own.metadata) == (("web",), {"a": "b"})


def test_the_time_of_a_slice_that_is_kept_begins_when_it_is_made(scene: Scene) -> None:
    """By the API's clock, however long there was no room: `up --keep --ttl`."""
    scene.vanish()
    wanted = lifetime.labels(scene.clock.time() - 7200, 1800.0, "")  # by a clock that is slow
    request = replace(scene.record.watch.spec.request, labels=wanted)
    scene.record.watch = replace(scene.record.watch, state="recovering", id="")
    scene.spec(request=request, command="")
    scene.cloud.fault(preset="stockout", times=4)
    assert scene.watch(scene.end) == 0
    found = scene.cloud.tpu.get(ZONE, "demo")
    left = lifetime.lifetime(found, scene.clock.time()).seconds_left
    assert left is not None
    assert 1500 < left <= 1800
    assert lifetime.CREATED not in scene.record.watch.spec.request.labels


def test_a_command_that_fails_is_not_begun_again_unless_its_slice_was_lost(scene: Scene) -> None:
    def fail() -> None:
        scene.work.ends = [Ended(3)]

    assert scene.watch(fail) == 3
    assert len(scene.work.begun) == 1


def test_a_command_that_fails_because_its_slice_is_taken_away_is_begun_again(
    scene: Scene,
) -> None:
    def fail() -> None:
        scene.work.ends = [Ended(143)]
        scene.clock.on_sleep = lose

    def lose() -> None:
        scene.clock.on_sleep = lambda: None
        scene.preempt()
        scene.work.ends = []
        scene.clock.on_sleep = finish

    def finish() -> None:
        if scene.work.running and len(scene.work.begun) == 2:
            scene.end()

    assert scene.watch(fail) == 0
    assert len(scene.work.begun) == 2


def test_a_run_whose_processes_are_gone_is_begun_again_on_the_same_slice(scene: Scene) -> None:
    def restart() -> None:
        scene.work.ends = [Ended(None, "the worker restarted")]
        scene.work.running, scene.work.lost = False, True
        scene.clock.on_sleep = lambda: len(scene.work.begun) == 2 and scene.end()  # type: ignore[assignment]

    assert scene.watch(restart) == 0
    assert len(scene.work.begun) == 2
    assert len(scene.cloud.calls("nodes.create")) == 1
    assert "run r1 was lost" in scene.events


def test_a_beginning_that_fails_is_tried_again_and_not_for_ever(scene: Scene) -> None:
    scene.work.failures = [TransportFailed("no way"), ProvisionFailed("no uv")]
    assert scene.watch(scene.end) == 0
    scene.work.failures = [TransportFailed("no way")] * 9
    scene.work.running, scene.work.ends = False, []
    scene.record.watch = replace(scene.record.watch, state="watching", status=None)
    with pytest.raises(TransportFailed):
        scene.watch()
    assert len(scene.work.failures) == 6


@pytest.mark.parametrize(
    ("method", "status"),
    [
        ("nodes.get", "PERMISSION_DENIED"),
        ("*", "UNAUTHENTICATED"),
        ("nodes.create", "PERMISSION_DENIED"),
    ],
)
def test_an_api_that_has_accepted_us_may_refuse_us_for_some_minutes(
    scene: Scene, method: str, status: str
) -> None:
    """A login is renewed, or a role set anew, at rest or in the middle of a recovery."""

    def refuse() -> None:
        scene.preempt()
        scene.cloud.fault(method=method, status=status, message="not you", probability=1.0)
        usual, until = scene.clock.on_sleep, scene.clock.now + 300.0

        def sleep() -> None:
            if scene.clock.now > until:
                scene.cloud.control("DELETE", "faults")
                scene.clock.on_sleep = usual

        scene.clock.on_sleep = sleep

    assert scene.watch(refuse, refuse, scene.end) == 0
    assert len(scene.work.begun) == 3
    assert len([line for line in scene.said if line.endswith("; trying again")]) == 2


def test_a_refusal_that_lasts_ends_the_watch_and_so_does_the_first_one(scene: Scene) -> None:
    scene.work.failures = [NotAllowed("not you")] * 99
    began = scene.clock.time()
    with pytest.raises(NotAllowed):
        scene.watch()
    assert 600 <= scene.clock.time() - began < 660
    assert scene.record.watch.open, "it can be taken up"
    scene.cloud.fault(method="nodes.get", status="PERMISSION_DENIED", message="no", probability=1.0)
    began = scene.clock.time()
    with pytest.raises(NotAllowed):
        scene.watch()
    assert scene.clock.time() == began


@pytest.mark.parametrize("signal", [KeyboardInterrupt, TerminationSignal])
def test_an_interrupt_says_what_goes_on_and_how_it_is_taken_up(
    scene: Scene, signal: type[KeyboardInterrupt]
) -> None:
    def interrupt() -> None:
        raise signal

    with pytest.raises(TpukitError) as caught:
        scene.watch(interrupt)
    error = caught.value
    assert error.exit_code == (143 if signal is TerminationSignal else 130)
    assert "slice demo in us-central1-a, READY" in error.exists[0]
    assert error.exists[1] == "run r1 of slice demo goes on"
    assert str(error.fix) == "tpukit watch demo"
    assert str(error.otherwise) == "tpukit delete demo --zone us-central1-a"
    assert scene.record.watch.stopped is (signal is TerminationSignal)


def test_an_interrupt_while_the_slice_is_made_again_says_how_to_delete_it(scene: Scene) -> None:
    def lose() -> None:
        scene.vanish()
        scene.clock.on_sleep = interrupt

    def interrupt() -> None:
        if scene.cloud.calls("nodes.create")[1:]:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        scene.watch(lose)
    error = caught.value
    assert "slice demo in us-central1-a" in error.exists[0]
    assert str(error.fix) == "tpukit watch demo"
    assert str(error.otherwise) == "tpukit delete demo --zone us-central1-a"


def test_a_slice_that_was_never_seen_is_not_deleted_before_it_is_made(scene: Scene) -> None:
    """Without an id, whatever took the name meanwhile would be deleted in its place."""
    scene.vanish()
    scene.record.watch = replace(scene.record.watch, state="recovering")
    assert scene.watch(scene.end) == 0
    assert "deleted" not in scene.said


def test_an_interrupt_does_not_say_that_a_run_goes_on_which_has_ended(scene: Scene) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def fail() -> None:
        scene.work.ends = [Ended(3)]
        scene.clock.on_sleep = interrupt

    with pytest.raises(Interrupted) as caught:
        scene.watch(fail)
    assert [line.split(",")[0] for line in caught.value.exists] == ["slice demo in us-central1-a"]


#: A watch is ended at every so manyeth of its steps: a prime number, for all kinds of them.
_STRIDE = 11


class Killed(BaseException):
    """The process ends here, with no word."""


@dataclass
class Steps:
    """Counts writes, waits and calls of an API, and ends the life at one of them.

    Who is dead calls nobody any more: what an error's clean-up would do, a kill does not. On a disk
    that is full from that step on the next three writes fail, and all else goes on.
    """

    fatal: int
    fills: bool = False
    count: int = 0
    failed: int = 0  #: writes
    armed: bool = False

    @property
    def reached(self) -> bool:
        return self.count >= self.fatal

    def step(self) -> None:
        self.count += self.armed
        if self.armed and self.reached and not self.fills:
            raise Killed

    def write(self) -> None:
        self.step()
        if self.armed and self.reached and self.fills and self.failed < 3:
            self.failed += 1
            raise NotWritten("cannot write")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[Steps], None]:
    """Let a new count of steps hear of the calls of an API, in place of the one before."""
    current: list[Steps] = []
    audit = sys.audit

    def heard(event: str, *arguments: object) -> None:
        audit(event, *arguments)
        if event == "tpukit.call" and current:
            current[0].step()

    monkeypatch.setattr(sys, "audit", heard)

    def listen(to: Steps) -> None:
        current[:] = [to]

    return listen


@pytest.mark.full_size
@pytest.mark.parametrize("fills", [False, True], ids=["killed", "disk full"])
def test_a_watch_that_is_ended_at_any_step_is_taken_up_from_its_file(
    cloud: Cloud,
    clock: FakeClock,
    tmp_path: Path,
    steps: Callable[[Steps], None],
    fills: bool,
) -> None:
    """Before and after each write and each call of an API, and at each wait, of a watch that loses
    its slice.

    Whenever that was, one slice is left, and the command has never run twice at once. Some of the
    moments; with TPUKIT_EVERY_STEP set, all of them.
    """
    files = WatchFiles(tmp_path / "watches", cloud.url, PROJECT)
    stride = 1 if os.environ.get("TPUKIT_EVERY_STEP") else _STRIDE
    for number in count(1, stride):
        at = Steps(number, fills)
        steps(at)
        if not _ended(cloud, clock, files, at):
            break
    sys.stdout.write(f"{at.count} steps\n")
    assert at.count > 60, "so many steps there are"


def _ended(cloud: Cloud, clock: FakeClock, files: WatchFiles, steps: Steps) -> bool:
    """Watch, be ended at that step, and take it up; return whether the step was reached."""
    name = f"demo-{steps.fatal}"
    found = create(cloud, labelled(cloud, name)).slice
    file, work = files.of(ZONE, name), PaperWork(cloud)
    first = Watch(
        WatchSpec(request_of(found), run_id="r1", command="train", zones=(OTHER_ZONE,)),
        zone=ZONE,
    )
    file.save(first)
    cloud.control("DELETE", "faults")
    cloud.fault(preset="stockout", zone=ZONE, times=1)
    lost = False

    class Mortal(WatchFile):
        def save(self, watch: Watch) -> None:
            steps.write()
            super().save(watch)
            steps.step()

    def on_sleep() -> None:
        nonlocal lost
        steps.step()
        if work.running and not lost:
            lost = True
            cloud.control("POST", f"nodes/{cloud.full_name(name)}:preempt")
        elif work.running and lost:
            work.ends = [Ended(0)]

    def live() -> int:
        clock.on_sleep = on_sleep
        kept = file.load()
        assert kept is not None
        record = Record(Mortal(file.path), kept, clock.time)
        said: list[str] = []
        args = (cleanup_of(cloud, said.append), record, work, clock, OWNER, said.append)
        return Watcher(*args).watch() if kept.open else 0

    steps.armed = True
    with suppress(Killed, TpukitError):
        assert live() == 0
    steps.armed = False
    if steps.reached:
        assert live() == 0
    clock.on_sleep = lambda: None
    here = [node for node in cloud.nodes() if node.endswith(f"/{name}")]
    assert len(here) == 1, steps  # where there was room: the first life may have met the stockout
    assert len(work.begun) == 2, steps
    return steps.reached


def test_a_watch_file_survives_what_is_in_it_and_tells_who_is_at_it(
    scene: Scene, tmp_path: Path
) -> None:
    request = replace(
        scene.record.watch.spec.request,
        data_disks=(DataDisk("projects/p/zones/z/disks/d", read_only=True),),
        metadata={"a": "b\n"},
    )
    watch = replace(scene.record.watch, spec=replace(scene.record.watch.spec, request=request))
    scene.file.save(watch)
    assert scene.file.load() == watch
    assert scene.file.path.stat().st_mode & 0o777 == 0o600
    assert scene.file.process() is None
    with scene.file.held():
        assert scene.file.process()
        with (
            pytest.raises(TpukitError, match="already watched by process") as caught,
            scene.file.held(),
        ):
            pass
        assert str(caught.value.fix) == "tpukit watch demo --stop"
    assert scene.file.process() is None
    whole = scene.file.path.read_bytes()
    for cut in (0, len(whole) // 2, len(whole) - 1):
        scene.file.path.write_bytes(whole[:cut])
        assert scene.file.load() is None
    secret = watch.document()
    assert "metadata" not in str(secret)
    assert WatchFiles(scene.file.path.parent, "elsewhere", PROJECT).all() == []


def test_a_disk_that_is_full_holds_up_a_watch_and_ends_none(scene: Scene) -> None:
    """The spec and the intent are on the disk before anything is deleted; nothing else needs it."""
    full: list[str] = []

    class Full(WatchFile):
        def save(self, watch: Watch) -> None:
            if full:
                raise NotWritten("cannot write")
            super().save(watch)

    def fill() -> None:
        full.append("up")
        scene.preempt()
        usual, until = scene.clock.on_sleep, scene.clock.now + 3600.0

        def sleep() -> None:
            assert not scene.cloud.calls("nodes.delete")
            if scene.clock.now > until:
                full.clear()
                scene.clock.on_sleep = usual

        scene.clock.on_sleep = sleep

    def end() -> None:
        full.append("up")
        scene.end()

    scene.record = Record(Full(scene.file.path), scene.record.watch, scene.clock.time)
    assert scene.watch(fill, end) == 0
    assert len(scene.work.begun) == 2
    assert scene.said.count("cannot write; trying again") == 1
    assert scene.said[-1] == "cannot write"
    kept = scene.file.load()
    assert kept, "it is found by its name"
    assert kept.open

    scene.work.ends, scene.work.running = [], False

    def interrupt() -> None:
        raise KeyboardInterrupt

    full.clear()
    with pytest.raises(Interrupted, match="interrupted"):
        scene.watch(lambda: (full.append("up"), interrupt()))


@pytest.mark.slow
def test_an_hour_without_an_api_ends_no_recovery(scene: Scene) -> None:
    """Of any call, or for ten minutes of one: the slice is made again once there is an answer."""
    minutes = {"delete": 10, "get": 10, "create": 10, "list": 10, "*": 60}

    def lose(method: str) -> None:
        scene.preempt()
        name = f"nodes.{method}"
        scene.cloud.fault(method=name, status="UNAVAILABLE", message="busy", probability=1.0)
        usual, until = scene.clock.on_sleep, scene.clock.now + 60.0 * minutes[method]

        def sleep() -> None:
            if scene.clock.now > until:
                scene.cloud.control("DELETE", "faults")
                scene.clock.on_sleep = usual

        scene.clock.on_sleep = sleep

    acts = [partial(lose, method) for method in minutes]
    assert scene.watch(*acts, scene.end) == 0
    assert len(scene.work.begun) == len(minutes) + 1
    assert scene.cloud.nodes() == [scene.cloud.full_name("demo", scene.record.watch.zone)]


def test_a_slice_that_was_made_again_meanwhile_is_taken_up_and_not_deleted(scene: Scene) -> None:
    """A watch on another machine was faster."""

    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if line.startswith("preempted"):
                scene.cloud.vanish("demo")
                create(scene.cloud, labelled(scene.cloud, nonce="n2", provisioning="spot"))

    scene.said = Heard()
    assert scene.watch(scene.preempt, scene.end) == 0
    assert not scene.cloud.calls("nodes.delete")
    assert scene.cloud.nodes() == [scene.cloud.full_name("demo")]
    assert len(scene.work.begun) == 2


def test_an_outage_does_not_let_a_slice_be_made_again_that_somebody_has_deleted(
    scene: Scene,
) -> None:
    def delete_in_an_outage() -> None:
        scene.cloud.tpu.delete(ZONE, "demo")
        scene.clock.now += 60.0
        refusal = {"status": "UNAVAILABLE", "message": "busy", "times": 20}
        scene.cloud.fault(method="operations.list", **refusal)

    with pytest.raises(TpukitError, match="not by this watch"):
        scene.watch(delete_in_an_outage)
    assert scene.cloud.nodes() == []
    assert scene.cloud.served() == 20


def test_a_request_is_made_from_a_slice_without_what_tpukit_adds_by_itself(cloud: Cloud) -> None:
    asked = labelled(
        cloud,
        labels={"team": "vision"},
        tags=("web",),
        metadata={"ssh-keys": "ada:ssh-ed25519 A", "startup-script": "true"},
        subnetwork="default",
    )
    found = create(cloud, asked).slice
    request = request_of(found)
    assert request.labels == {k: v for k, v in asked.labels.items() if k != naming.NONCE}
    assert request.metadata == asked.metadata
    assert (request.tags, request.network) == (("web",), "default")
    shared = request_of(replace(found, network_project="host", subnetwork="sub"))
    assert shared.network == "projects/host/global/networks/default"
    assert shared.subnetwork == "projects/host/regions/us-central1/subnetworks/sub"
    unread = replace(found, labels={}, unreadable=("labels",))
    assert refreshed(request, unread) == request, "what cannot be read is no change"


def test_each_state_has_its_word(cloud: Cloud) -> None:
    found = create(cloud).slice
    words = {
        "READY": "ready",
        "CREATING": "coming",
        "RESTARTING": "coming",
        "REPAIRING": "coming",
        "A_NEW_ONE": "coming",
        "STOPPED": "stopped",
        "STOPPING": "coming",
        "DELETING": "being deleted",
        "PREEMPTED": "preempted",
        "TERMINATED": "terminated",
        "HIDDEN": "coming",
        "SUSPENDED": "suspended",
    }
    assert {state: condition(replace(found, state=state)) for state in words} == words
    assert condition(None) == "vanished"
    assert condition(None, "SUSPENDED") == "suspended"
    assert condition(replace(found, state="DELETING"), "SUSPENDING") == "suspended"
    assert condition(found, "SUSPENDED") == "ready"
    assert condition(replace(found, health="UNHEALTHY_MAINTENANCE")) == "maintenance"
    assert condition(replace(found, health="UNHEALTHY_TENSORFLOW")) == "ready"


@pytest.mark.slow
def test_a_weekend_leaves_one_copy_of_the_job_at_a_time_and_nothing_at_the_end(
    scene: Scene,
) -> None:
    """60 hours: preemptions, extensions, an update, expired logins, a suspended laptop."""
    hour = 3600.0
    scene.spec(delete_when_done=True)
    scene.lives(20 * hour)
    rule = ssh_rule.tag(PROJECT, ZONE, "demo")
    # The emulator holds the answer until a rule is there, and this clock stands still meanwhile.
    context = scene.cloud.server.service.context
    context.timing = replace(context.timing, update=0.0)
    scene.cloud.firewall.insert(FirewallRule(rule, "default", ("192.0.2.7/32",), (rule,)))()

    def lose() -> None:
        scene.clock.now += 1.5 * hour
        scene.preempt()

    def extend() -> None:
        assert [each.name for each in scene.cloud.firewall.list()] == [rule]
        scene.lives(20 * hour)

    def update() -> None:
        slice_ = scene.cloud.tpu.get(ZONE, "demo")
        scene.cloud.change("demo", labels={**slice_.labels, "team": "vision"})

    def expire() -> None:
        """Let the API refuse our login for five minutes, in which the slice is lost."""
        scene.preempt()
        scene.cloud.fault(method="*", status="UNAUTHENTICATED", message="login", probability=1.0)
        usual, until = scene.clock.on_sleep, scene.clock.now + 300.0

        def sleep() -> None:
            if scene.clock.now > until:
                scene.cloud.control("DELETE", "faults")
                scene.clock.on_sleep = usual

        scene.clock.on_sleep = sleep

    def suspend() -> None:
        scene.preempt()
        scene.clock.now += 8 * hour

    night = [*[lose] * 9, extend, expire]
    began = scene.clock.now
    weekend = [*night, update, *night, suspend, extend, *[lose] * 9]
    assert scene.watch(*weekend, scene.end) == 0
    assert scene.clock.now - began > 48 * hour
    losses = sum(act in (lose, expire, suspend) for act in weekend)
    assert losses == 30
    assert len(scene.work.begun) == len({*scene.work.begun}) == losses + 1
    assert scene.work.bought == {"spot"}
    assert scene.work.labels["team"] == "vision"
    assert scene.record.watch.recoveries == losses
    assert scene.cloud.nodes() == []
    assert scene.cloud.firewall.list() == ()
    assert scene.record.watch.state == "ended"

"""Updates that keep what they do not name, and notice who else writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud, FakeClock
from support.slices import create

from tpukit.errors import BadInput, DeadlinePassed, NotAllowed, NotFound, SliceLost, TpukitError
from tpukit.models import DataDisk, Slice, SliceChange
from tpukit.slices.update import Edits, Updated, update

DISK = f"projects/{PROJECT}/zones/{ZONE}/disks/data"


def apply(cloud: Cloud, slice_: Slice, edits: Edits, seconds: float = 300.0) -> Updated:
    return update(
        cloud.tpu, slice_, edits, deadline=cloud.deadline(seconds), on_state=cloud.states.append
    )


def test_what_is_not_named_stays_and_a_second_update_changes_nothing(cloud: Cloud) -> None:
    slice_ = create(cloud).slice
    edits = Edits(
        labels={"team": "vision", "stage": "two"},
        tags=("web",),
        metadata={"startup-script": "true"},
        disks=(DataDisk(DISK, read_only=True),),
    )
    done = apply(cloud, slice_, edits)
    now = cloud.tpu.get(ZONE, "demo")
    assert done.changed == ["data_disks", "labels", "metadata", "tags"]
    assert now.labels == {**slice_.labels, "team": "vision", "stage": "two"}
    assert now.tags == (*slice_.tags, "web")
    assert now.metadata == {**slice_.metadata, "startup-script": "true"}
    assert now.data_disks == (DataDisk(DISK, read_only=True),)
    assert apply(cloud, now, edits).changed == []
    assert len(cloud.calls("nodes.patch")) == 1
    undone = Edits(
        labels={"team": None, "stage": None},
        without_tags=("web",),
        metadata={"startup-script": None},
        without_disks=("data",),
    )
    done = apply(cloud, now, undone)
    assert (done.slice.labels, done.slice.tags) == (slice_.labels, slice_.tags)
    assert (done.slice.metadata, done.slice.data_disks) == (slice_.metadata, ())
    assert done.beside == []


@pytest.mark.parametrize("after", [1, 2], ids=["at once", "once we had seen ours"])
def test_an_update_that_undoes_ours_is_noticed_and_ours_is_applied_to_what_it_left(
    cloud: Cloud, clock: FakeClock, after: int
) -> None:
    slice_ = create(cloud).slice
    theirs = {**slice_.labels, "their": "s"}
    undone: list[bool] = []

    def undo_once() -> None:
        if "our" in cloud.tpu.get(ZONE, "demo").labels and len(undone) < after:
            undone.append(True)
            if len(undone) == after:
                cloud.change("demo", labels=theirs)

    clock.on_sleep = undo_once
    done = apply(cloud, slice_, Edits(labels={"our": "s"}))
    assert done.slice.labels == {**slice_.labels, "our": "s", "their": "s"}


def test_an_update_between_our_read_and_our_write_is_told(cloud: Cloud) -> None:
    """Of what it wrote nothing may be left: the API replaces labels as a whole, without an etag."""
    found = create(cloud).slice

    class Beside:
        """The same cloud, where somebody writes right before our write."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cloud.tpu, name)

        def within(self, deadline: Any) -> Any:
            return self

        def only(self, api: str) -> Any:
            return self

        def update(self, zone: str, name: str, change: SliceChange) -> str:
            if not cloud.calls("nodes.patch"):
                cloud.tpu.update(zone, name, SliceChange(tags=("theirs",)))
                cloud.clock.sleep(30.0)
            return cloud.tpu.update(zone, name, change)

    done = update(
        Beside(),  # type: ignore[arg-type]
        found,
        Edits(labels={"our": "s"}),
        deadline=cloud.deadline(),
        on_state=cloud.states.append,
    )
    assert len(done.beside) == 1
    assert done.slice.labels["our"] == "s"


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "reset", "phase": "before"},
        {"kind": "reset", "phase": "after"},
        {"status": "NOT_FOUND"},
    ],
    ids=str,
)
def test_an_update_whose_answer_was_lost_or_stale_is_read_back(
    cloud: Cloud, fault: dict[str, str]
) -> None:
    found = create(cloud).slice
    cloud.fault(method="nodes.patch", times=1, **fault)
    done = apply(cloud, found, Edits(labels={"team": "vision"}))
    assert done.slice.labels["team"] == "vision"
    assert not done.beside


@pytest.mark.parametrize("status", ["ABORTED", "ALREADY_EXISTS"])
def test_an_update_beside_another_operation_is_asked_for_again(cloud: Cloud, status: str) -> None:
    slice_ = create(cloud).slice
    cloud.fault(method="nodes.patch", status=status, message="in progress", times=3)
    assert apply(cloud, slice_, Edits(tags=("web",))).slice.tags == (*slice_.tags, "web")


def vanish(cloud: Cloud) -> None:
    cloud.vanish("demo")


def preempt(cloud: Cloud) -> None:
    cloud.control("POST", f"nodes/{cloud.full_name('demo')}:preempt")


def refuse(cloud: Cloud) -> None:
    cloud.fault(preset="permission-denied", method="nodes.patch")


def fail(cloud: Cloud) -> None:
    """Let the update be accepted, and end without having changed anything."""

    def end_badly() -> None:
        assert isinstance(cloud.clock, FakeClock)
        records = cloud.server.service.context.state.operations
        for name, record in list(records.items()):
            if record["verb"] == "update" and not record["done"]:
                error = {"code": 13, "message": "broken"}
                records[name] = {**record, "done": True, "ended": cloud.clock.now, "error": error}

    assert isinstance(cloud.clock, FakeClock)
    cloud.clock.on_sleep = end_badly


def stall(cloud: Cloud) -> None:
    cloud.fault(method="nodes.patch", status="UNAVAILABLE", message="busy", times=10_000)


@pytest.mark.parametrize(
    ("arrange", "error"),
    [
        (vanish, NotFound),
        (preempt, SliceLost),
        (refuse, NotAllowed),
        (fail, TpukitError),
        (stall, DeadlinePassed),
    ],
)
def test_an_update_that_cannot_be_made_says_why(
    cloud: Cloud, arrange: Callable[[Cloud], None], error: type[TpukitError]
) -> None:
    found = create(cloud).slice
    arrange(cloud)
    with pytest.raises(error) as caught:
        apply(cloud, found, Edits(labels={"team": "vision"}))
    assert "delete" not in str(caught.value.fix) or error is SliceLost
    assert arrange is not stall or "busy" in caught.value.why


@pytest.mark.parametrize("edits", [Edits(), Edits(labels={"tpukit-owner": "eve"})])
def test_nothing_and_what_is_tpukit_s_own_are_no_update(cloud: Cloud, edits: Edits) -> None:
    found = create(cloud).slice
    with pytest.raises(BadInput):
        apply(cloud, found, edits)
    assert not cloud.calls("nodes.patch")

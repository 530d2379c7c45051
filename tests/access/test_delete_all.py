"""Several deletes: none stands in another's way, and what is left is named."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

import pytest
from support.local_cloud import PROJECT, ZONE, Cloud
from support.slices import labelled

from tpukit.access import cleanup, ssh_rule
from tpukit.errors import Interrupted, NotAllowed, NotFound
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu
from tpukit.models import (
    DataDisk,
    FirewallRule,
    QueuedResource,
    QueueRequest,
    Slice,
    SliceChange,
)
from tpukit.slices.last_seen import OnState

pytestmark = pytest.mark.process

NAMES = ("a", "b", "c", "d")


@pytest.fixture
def four(prompt_cloud: Cloud) -> list[Slice]:
    """Four slices; two of them have rules of their own."""
    for name in NAMES:
        tag = ssh_rule.tag(PROJECT, ZONE, name)
        prompt_cloud.tpu.create(labelled(prompt_cloud, name, tags=(tag,)))
        if name in "ab":
            rule = FirewallRule(tag, "default", ("192.0.2.7/32",), (tag,))
            prompt_cloud.firewall.insert(rule)
    return list(prompt_cloud.tpu.list(ZONE).slices)


def delete_all(
    cloud: Cloud,
    slices: Sequence[Slice | QueuedResource],
    seconds: float = 3.0,
    on_state: Callable[[str], OnState] = lambda name: lambda state: None,
    warnings: list[str] | None = None,
) -> cleanup.Deleted:
    deleter = cleanup.Cleanup(
        CloudTpu(Session(cloud.tokens, cloud.clock, timeout=1.0), PROJECT, cloud.url),
        cloud.firewall,
        PROJECT,
        cloud.journal,
        on_state=on_state,
        on_warning=(warnings if warnings is not None else []).append,
    )
    return deleter.end_all({slice_.name: slice_ for slice_ in slices}, cloud.deadline(seconds))


@pytest.mark.parametrize(
    "fault",
    [
        {"status": "FAILED_PRECONDITION", "message": "held"},
        {"status": "PERMISSION_DENIED", "message": "not yours"},
        {"kind": "stall", "seconds": 30.0},
        {"kind": "reset"},
    ],
    ids=lambda fault: fault.get("status", fault.get("kind")),
)
def test_of_four_the_first_cannot_be_deleted_and_the_others_are_gone(
    prompt_cloud: Cloud, four: list[Slice], fault: dict[str, object]
) -> None:
    prompt_cloud.fault(method="nodes.delete", name="a", probability=1.0, **fault)
    done = delete_all(prompt_cloud, four)
    assert prompt_cloud.nodes() == [prompt_cloud.full_name("a")]
    assert [rule.name for rule in prompt_cloud.firewall.list()] == [ssh_rule.rule_name(four[0])]
    assert done.names == ["b", "c", "d"]
    error = cleanup.not_deleted(done.failed, done.names)
    assert (error.reason, error.what) == ("a", "1 of 4 slices were not deleted")
    assert f"slice a in {ZONE}, READY when last seen" in error.exists[0]
    assert str(error.fix) == "tpukit delete a"
    assert error.details["deleted"] == ["b", "c", "d"]


def test_a_rule_that_cannot_be_removed_holds_up_nobody_and_is_named(
    prompt_cloud: Cloud, four: list[Slice]
) -> None:
    rule = ssh_rule.rule_name(four[0])
    refusal = {"status": "INVALID_ARGUMENT", "message": "no", "probability": 1.0}
    prompt_cloud.fault(method="firewalls.delete", name=rule, **refusal)
    warnings: list[str] = []
    done = delete_all(prompt_cloud, four, warnings=warnings)
    assert prompt_cloud.nodes() == []
    assert (list(done.rules), done.failed) == ([rule], {})
    assert len(warnings) == 1
    assert [each.name for each in prompt_cloud.firewall.list()] == [rule]


def test_the_data_disks_that_stay_are_named(prompt_cloud: Cloud) -> None:
    disks = tuple(DataDisk(f"projects/p/zones/{ZONE}/disks/{name}") for name in ("data", "more"))
    prompt_cloud.tpu.create(labelled(prompt_cloud, "kept", data_disks=disks))
    warnings: list[str] = []
    delete_all(prompt_cloud, prompt_cloud.tpu.list(ZONE).slices, warnings=warnings)
    assert prompt_cloud.nodes() == []
    assert warnings == ["data disk data of kept stays", "data disk more of kept stays"]
    warnings.clear()
    for name, given in (("asked", disks[:1]), ("bare", ())):
        request = QueueRequest(labelled(prompt_cloud, name, data_disks=given))
        prompt_cloud.tpu.create_queued(request)
    more = SliceChange(data_disks=disks)  # attached later: of the slice, not of the request
    prompt_cloud.tpu.update(ZONE, "asked", more)
    delete_all(prompt_cloud, prompt_cloud.tpu.list_queued("-").requests, warnings=warnings)
    assert prompt_cloud.nodes() == []
    assert warnings == ["data disk data of asked stays", "data disk more of asked stays"]


@pytest.mark.parametrize("queued", [False, True], ids=["slices", "queued resources"])
def test_a_signal_names_all_that_is_left(
    prompt_cloud: Cloud, four: list[Slice], queued: bool
) -> None:
    """It comes once three of the four are gone; some of them may still be in the list."""
    due: Sequence[Slice | QueuedResource] = four
    if queued:
        for name in NAMES:
            prompt_cloud.tpu.create_queued(QueueRequest(labelled(prompt_cloud, f"q{name}")))
        due = prompt_cloud.tpu.list_queued("-").requests
    method = "queuedResources.delete" if queued else "nodes.delete"
    prompt_cloud.fault(method=method, name=due[0].name, status="ABORTED", probability=1.0)
    others, gone = threading.Semaphore(2), list[str]()

    def states(name: str) -> OnState:
        def hear(state: str) -> None:
            if state == "deleted":
                gone.append(name)
                if not others.acquire(blocking=False):
                    signal.raise_signal(signal.SIGINT)

        return hear

    with pytest.raises(Interrupted) as caught:
        delete_all(prompt_cloud, due, seconds=60.0, on_state=states)
    left = [line.partition(" in ")[0].split()[-1] for line in caught.value.exists]
    assert [name for name in left if name not in gone] == [due[0].name]
    ended = "queue delete qa" if queued else "delete a "
    assert str(caught.value.fix).startswith(f"tpukit {ended}")


def test_what_is_missing_is_not_found_only_where_nothing_is_worse() -> None:
    gone, held = NotFound("no slice x"), NotAllowed("not yours", exists=("slice y",))
    assert cleanup.not_deleted({"x": gone}, ["a"]).exit_code == 3
    assert cleanup.not_deleted({"x": gone}, []) is gone
    both = cleanup.not_deleted({"x": gone, "y": held}, ["a"])
    assert (both.exit_code, both.exists) == (4, ("slice y",))
    assert str(both.fix) == "tpukit delete y"

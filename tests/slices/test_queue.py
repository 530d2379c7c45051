"""Requests in the queue: made once, waited for, and left alone by a wait that ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.local_cloud import ZONE, Cloud, FakeClock, running_cloud
from support.slices import at_sleep, labelled

from tpukit.errors import (
    DeadlinePassed,
    Interrupted,
    NameTaken,
    NoCapacity,
    NotAllowed,
    SliceLost,
    TpukitError,
)
from tpukit.google.node_json import MAX_RUN
from tpukit.models import DataDisk, QueuedResource, QueueRequest
from tpukit.slices import lifetime, naming
from tpukit.slices import queue_requests as queue
from tpukit.slices.find import find, find_named
from tpukit.slices.queued import delete_queued


def request(cloud: Cloud, name: str = "pair", count: int = 2, **given: object) -> QueueRequest:
    return QueueRequest(labelled(cloud, name, **given), count)


def ensure(cloud: Cloud, wanted: QueueRequest | None = None) -> tuple[QueuedResource, bool]:
    return queue.ensure_queued(
        cloud.tpu,
        wanted or request(cloud),
        deadline=cloud.deadline(),
        journal=cloud.journal,
        on_state=cloud.states.append,
    )


def wait(cloud: Cloud, resource: QueuedResource, seconds: float = 3600.0) -> QueuedResource:
    return queue.wait_queued(
        cloud.tpu, resource, deadline=cloud.deadline(seconds), on_state=cloud.states.append
    )


def delete(cloud: Cloud, resource: QueuedResource) -> None:
    delete_queued(
        cloud.tpu,
        resource,
        force=not resource.dead,
        deadline=cloud.deadline(),
        journal=cloud.journal,
        on_state=cloud.states.append,
    )


def test_a_multislice_is_asked_for_once_waited_for_and_found_by_its_one_name(
    cloud: Cloud,
) -> None:
    found, made = ensure(cloud)
    assert made
    assert found.slices == ("pair-0", "pair-1")
    again, made = ensure(cloud)
    assert (again.name, made) == ("pair", False)
    assert wait(cloud, found).state == "ACTIVE"
    assert cloud.states[-1] == "ACTIVE: its slices are there"
    assert [each.name for each in find_named(cloud.tpu, "pair")] == ["pair-0", "pair-1"]
    assert [each.name for each in find_named(cloud.tpu, "pair", ZONE)] == ["pair-0", "pair-1"]
    assert [each.name for each in find_named(cloud.tpu, "pair-1")] == ["pair-1"]
    with pytest.raises(Exception, match="is a multislice of 2 slices: pair-0, pair-1"):
        find(cloud.tpu, "pair")
    delete(cloud, found)
    assert cloud.nodes() == []


@pytest.mark.parametrize(
    ("given", "has"),
    [
        ({"provisioning": "spot"}, {"spot": {}}),
        ({"provisioning": "reserved"}, {"reservationName"}),
        ({}, set()),
    ],
)
def test_what_is_asked_for_is_what_the_queue_has(
    cloud: Cloud, given: dict[str, object], has: set[str]
) -> None:
    wanted = replace(request(cloud, "one", 1, **given), valid_seconds=3600.0)
    found, _ = ensure(cloud, wanted)
    assert found.slices == ("one",)
    assert found.provisioning == given.get("provisioning", "on-demand")
    (record,) = cloud.server.service.context.state.queued_resources.values()
    assert record["request"]["queueingPolicy"] == {"validUntilDuration": "3600s"}
    assert {*has} <= record["request"].keys()
    assert record["request"]["tpu"]["nodeSpec"][0]["node"]["labels"][naming.OWNER] == "ada"


def test_best_effort_goes_by_the_version_of_the_api_that_has_it(cloud: Cloud) -> None:
    wanted = request(cloud, provisioning="best-effort")
    found, made = ensure(cloud, wanted)
    assert made
    assert found.slices == ("pair-0", "pair-1")
    (record,) = cloud.server.service.context.state.queued_resources.values()
    assert record["request"]["bestEffort"] == {}


def test_flex_start_ends_after_its_duration(cloud: Cloud, clock: FakeClock) -> None:
    flex = {
        "zone": "us-east5-a",
        "accelerator_type": "v6e-4",
        "runtime_version": "v2-alpha-tpuv6e",
        "provisioning": "flex-start",
        "labels": {MAX_RUN: "7200"},
    }
    queued, _ = ensure(cloud, request(cloud, **flex))
    (record,) = cloud.server.service.context.state.queued_resources.values()
    assert record["request"]["provisioningModel"] == "FLEX_START"
    assert record["request"]["runDuration"] == {"maxRunDuration": "7200s"}
    assert queued.provisioning == "flex-start"
    wait(cloud, queued)
    slice_ = find(cloud.tpu, "pair-0")
    assert slice_.provisioning == "flex-start"
    assert lifetime.lifetime(slice_, clock.time()).seconds_left == pytest.approx(7200, abs=120)
    clock.sleep(7200.0)
    clock.sleep(120.0)
    assert cloud.tpu.list("-").slices == ()
    assert cloud.tpu.get_queued("us-east5-a", "pair").state == "SUSPENDED"


def test_provisioning_is_not_waited_for_longer_than_an_hour(
    tmp_path: Path, clock: FakeClock
) -> None:
    with running_cloud(tmp_path, create_seconds=7200.0, clock=clock) as slow:
        queued, _ = ensure(slow)
        began = clock.monotonic()
        with pytest.raises(DeadlinePassed, match="PROVISIONING for 3600 s") as caught:
            wait(slow, queued, 24 * 3600.0)
        assert clock.monotonic() - began < 2 * 3600
        assert str(caught.value.fix).startswith("tpukit queue delete pair")
        assert slow.tpu.list_queued("-").requests


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_request_whose_answer_was_lost_is_made_once(cloud: Cloud, phase: str) -> None:
    cloud.fault(method="queuedResources.create", kind="reset", phase=phase)
    _, made = ensure(cloud)
    assert made
    assert len(cloud.tpu.list_queued("-").requests) == 1


def lives(seconds: float | None, purpose: str = "") -> dict[str, object]:
    return {"labels": lifetime.labels(1_700_000_000.0, seconds, purpose)}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": 3}, "slices is 2, not 3"),
        ({"provisioning": "spot"}, "provisioning is on-demand, not spot"),
        ({"accelerator_type": "v2-8"}, "accelerator type is v3-8, not v2-8"),
        ({"runtime_version": "tpu-vm-base"}, "runtime version is tpu-ubuntu2204-base"),
        ({"network": "other"}, "network is default, not other"),
        ({"external_addresses": False}, "it has external addresses"),
        ({"metadata": {"startup-script": "true"}}, "metadata: startup-script is not set"),
        ({"labels": {"team": "vision"}}, "labels: team is not set, not vision"),
        ({"service_account": "a@b.example"}, "service account is"),
        ({"data_disks": (DataDisk("projects/p/zones/z/disks/d"),)}, "data disk d is not attached"),
        (lives(7200.0), "ttl is not set, not 7200 s"),
        (lives(None, "tests"), "purpose is not set, not tests"),
    ],
)
def test_a_request_with_another_spec_is_refused(
    cloud: Cloud, given: dict[str, object], told: str
) -> None:
    ensure(cloud)
    with pytest.raises(NameTaken, match="with another spec") as caught:
        ensure(cloud, request(cloud, **given))  # type: ignore[arg-type]
    assert told in caught.value.why


@pytest.mark.parametrize("tiers", [("best-effort", "on-demand"), ("on-demand", "best-effort")])
def test_best_effort_and_on_demand_are_two_requests(cloud: Cloud, tiers: tuple[str, str]) -> None:
    first, second = (request(cloud, provisioning=tier) for tier in tiers)
    ensure(cloud, first)
    with pytest.raises(NameTaken, match="with another spec"):
        ensure(cloud, second)
    assert not ensure(cloud, first)[1]


def test_the_same_request_is_taken_up_with_its_lifetime_and_the_time_it_is_tried(
    cloud: Cloud, clock: FakeClock
) -> None:
    """Both count from when the request was made."""
    wanted = replace(request(cloud, **lives(7200.0, "tests")), valid_seconds=600.0)
    assert ensure(cloud, wanted)[1]
    clock.sleep(100.0)
    assert not ensure(cloud, wanted)[1]
    with pytest.raises(NameTaken, match="with another spec") as caught:
        ensure(cloud, replace(wanted, valid_seconds=None))
    assert caught.value.why == "valid until is 600.0, not unset"


def test_another_owner_and_a_slice_of_the_name_are_refused(cloud: Cloud) -> None:
    ensure(cloud)
    eve = QueueRequest(naming.labelled(cloud.request("pair"), "eve", "n"), 2)
    with pytest.raises(NameTaken, match="belongs to ada"):
        ensure(cloud, eve)
    cloud.tpu.create(labelled(cloud, "alone"))
    with pytest.raises(NameTaken, match="alone"):
        ensure(cloud, request(cloud, "alone", 1))


@pytest.mark.process
def test_a_wait_that_ends_leaves_the_request_and_what_it_yields_later(
    cloud: Cloud, clock: FakeClock
) -> None:
    cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0)
    found, _ = ensure(cloud)
    with pytest.raises(DeadlinePassed) as caught:
        wait(cloud, found)
    assert "no capacity yet, which can last for days" in caught.value.why
    assert str(caught.value.fix) == f"tpukit queue wait pair --zone {ZONE}"
    assert "its slices bill until they are deleted" in caught.value.exists[0]
    clock.sleep(7200.0)
    assert len(cloud.tpu.list("-").slices) == 2  # shown by `list`, with its request
    assert {slice_.queued_resource for slice_ in cloud.tpu.list("-").slices} == {"pair"}
    assert wait(cloud, found).state == "ACTIVE"
    assert cloud.calls("queuedResources.delete") == []


def test_ctrl_c_while_waiting_says_what_stays(cloud: Cloud, clock: FakeClock) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    found, _ = ensure(cloud)
    at_sleep(clock, 1, interrupt)
    with pytest.raises(Interrupted) as caught:
        wait(cloud, found)
    assert "queued resource pair" in caught.value.exists[0]
    assert str(caught.value.fix) == f"tpukit queue delete pair --zone {ZONE}"


@pytest.mark.parametrize(
    ("preset", "kind"), [("queued-stockout-internal", NoCapacity), ("queue-closed", NotAllowed)]
)
def test_a_request_that_failed_is_of_the_class_of_its_words_and_can_be_deleted(
    cloud: Cloud, preset: str, kind: type[Exception]
) -> None:
    cloud.fault(preset=preset)
    found, _ = ensure(cloud)
    with pytest.raises(kind) as caught:
        wait(cloud, found)
    assert "it keeps its quota" in caught.value.exists[0]  # type: ignore[attr-defined]
    dead = cloud.tpu.get_queued(ZONE, "pair")
    assert queue.meaning(dead) == "it comes to nothing; it keeps its name and its quota"
    delete(cloud, dead)
    assert ensure(cloud, request(cloud, nonce="n2"))[1]


def test_a_request_that_has_failed_is_asked_for_anew(cloud: Cloud) -> None:
    """Under the same nonce the API would take it for the one that it has had."""
    cloud.fault(preset="queued-stockout-internal", times=1)
    with pytest.raises(NoCapacity):
        wait(cloud, ensure(cloud)[0])
    found, made = ensure(cloud)
    assert made
    assert wait(cloud, found).state == "ACTIVE"
    assert len(cloud.tpu.list_queued("-").requests) == 1


def test_another_end_is_not_given_to_a_request_whose_slices_come_meanwhile(cloud: Cloud) -> None:
    cloud.fault(method="queuedResources.create", kind="wait", seconds=600.0)
    waiting, _ = ensure(cloud)
    assert waiting.state in queue.WAITING
    cloud.clock.sleep(3600.0)
    given = {"journal": cloud.journal, "on_state": cloud.states.append, "on_fix": print}
    with pytest.raises(TpukitError, match="is ACTIVE: its slices come") as caught:
        queue.extend_queued(cloud.tpu, waiting, "", deadline=cloud.deadline(), **given)
    assert str(caught.value.fix) == f"tpukit queue wait pair --zone {ZONE}"
    assert cloud.calls("queuedResources.delete") == []


def test_a_request_whose_slices_were_taken_is_lost(cloud: Cloud) -> None:
    found = wait(cloud, ensure(cloud)[0])
    cloud.control("POST", f"nodes/{cloud.full_name('pair-0')}:preempt", {})
    cloud.clock.sleep(120.0)
    with pytest.raises(SliceLost) as caught:
        wait(cloud, found)
    assert "Google took them" in caught.value.why


def test_a_wait_ends_if_another_request_has_the_name(cloud: Cloud) -> None:
    found, _ = ensure(cloud)
    delete(cloud, found)
    wait(cloud, ensure(cloud, request(cloud, nonce="n2"))[0])
    with pytest.raises(SliceLost, match="is gone"):
        wait(cloud, found)


@pytest.mark.parametrize("readable", [True, False])
def test_a_request_that_is_hidden_for_a_moment_is_waited_for_and_one_that_stays_hidden_is_gone(
    cloud: Cloud, readable: bool
) -> None:
    found, _ = ensure(cloud)
    cloud.fault(method="queuedResources.get", status="NOT_FOUND", times=1)
    assert wait(cloud, found).state == "ACTIVE"
    cloud.fault(method="queuedResources.get", status="NOT_FOUND", probability=1.0)
    if not readable:
        cloud.fault(method="nodes.get", status="UNAVAILABLE", probability=1.0)
    with pytest.raises(SliceLost, match="is gone") as caught:
        wait(cloud, found)
    slices = [f"slice pair-0 in {ZONE}", f"slice pair-1 in {ZONE}"]
    named = [line.replace(";", ",").split(",")[0] for line in caught.value.exists]
    assert named == (slices if readable else [f"queued resource pair in {ZONE}"])
    assert str(caught.value.fix) == f"tpukit queue list --zone {ZONE}"


@pytest.mark.parametrize("method", ["queuedResources.get", "queuedResources.delete"])
def test_one_not_found_is_no_proof_of_a_delete(cloud: Cloud, method: str) -> None:
    """The request, or its slices, would bill on."""
    found, _ = ensure(cloud)
    cloud.fault(method=method, status="NOT_FOUND", message="not found", times=1)
    assert queue.find_queued(cloud.tpu, "pair", ZONE) == found
    cloud.fault(method=method, status="NOT_FOUND", message="not found", times=1)
    delete(cloud, found)
    assert (cloud.tpu.list_queued("-").requests, cloud.nodes()) == ((), [])


@pytest.mark.parametrize("refusal", [{"preset": "permission-denied"}, {"status": "UNAVAILABLE"}])
def test_a_request_that_the_list_of_its_zone_still_shows_is_not_deleted(
    cloud: Cloud, refusal: dict[str, str]
) -> None:
    found, _ = ensure(cloud)
    unseen = {"method": "queuedResources.get", "status": "NOT_FOUND", "probability": 1.0}
    cloud.fault(**unseen, message="not found")
    cloud.fault(method="queuedResources.delete", status="UNAVAILABLE", probability=1.0)
    with pytest.raises(DeadlinePassed) as caught:
        delete(cloud, found)
    assert "when last seen" in caught.value.exists[0]
    cloud.control("DELETE", "faults")
    cloud.fault(**unseen, message="not found")
    cloud.fault(method="queuedResources.list", probability=1.0, **refusal)
    delete(cloud, found)
    assert cloud.calls("queuedResources.delete")


@pytest.mark.parametrize("step", [wait, delete])
def test_a_refusal_in_the_middle_of_a_wait_is_outlasted(
    cloud: Cloud, clock: FakeClock, step: Callable[[Cloud, QueuedResource], object]
) -> None:
    cloud.fault(method="queuedResources.create", kind="wait", seconds=300.0, times=1)
    given, _ = ensure(cloud)
    refused = {"method": "queuedResources.get", "status": "PERMISSION_DENIED", "times": 3}
    at_sleep(clock, 1, lambda: cloud.fault(**refused))
    step(cloud, given)
    assert cloud.served() == 4  # the lack of capacity, and the refusals


def test_an_outage_before_a_request_was_made_names_no_request(cloud: Cloud) -> None:
    fault = {"status": "UNAVAILABLE", "message": "down", "probability": 1.0}
    cloud.fault(method="queuedResources.get", **fault)
    with pytest.raises(TpukitError, match="cannot tell") as caught:
        ensure(cloud)
    assert (caught.value.exit_code, caught.value.exists, caught.value.fix) == (1, (), None)
    cloud.control("DELETE", "faults")
    cloud.fault(method="queuedResources.create", **fault)
    with pytest.raises(DeadlinePassed) as late:
        ensure(cloud)
    assert "down" in late.value.why
    assert cloud.states.count("cannot create queued resource pair: down; reading back") == 1


def test_ctrl_c_before_a_request_was_made_names_no_request(cloud: Cloud, clock: FakeClock) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    cloud.fault(method="queuedResources.get", status="UNAVAILABLE", http=503)
    at_sleep(clock, 1, interrupt)
    with pytest.raises(Interrupted) as caught:
        ensure(cloud)
    assert caught.value.exists == ()
    assert caught.value.why.startswith("nothing was requested; an earlier queued resource pair")
    assert str(caught.value.fix) == f"tpukit queue describe pair --zone {ZONE}"


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        ({"status": "PERMISSION_DENIED", "message": "no"}, NotAllowed),
        ({"status": "ALREADY_EXISTS", "message": "it exists"}, NameTaken),
    ],
)
def test_a_request_whose_answer_was_lost_is_named_when_it_is_hidden_and_the_next_is_refused(
    cloud: Cloud, clock: FakeClock, refusal: dict[str, str], kind: type[TpukitError]
) -> None:
    cloud.fault(method="queuedResources.create", kind="reset", phase="after")
    at_sleep(clock, 1, lambda: cloud.fault(method="queuedResources.create", **refusal))
    cloud.fault(method="queuedResources.get", status="NOT_FOUND", message="none", times=3)
    with pytest.raises(kind) as caught:
        ensure(cloud)
    assert len(cloud.tpu.list_queued("-").requests) == 1
    assert caught.value.exists == ()
    assert f"queued resource pair in {ZONE} may exist: its create was not confirmed" in (
        caught.value.why
    )
    fixes = (caught.value.fix, caught.value.otherwise)
    assert f"tpukit queue delete pair --zone {ZONE}" in map(str, fixes)


@pytest.mark.parametrize("phase", ["before", "after"])
def test_ctrl_c_after_a_request_that_was_not_answered_names_what_may_exist(
    cloud: Cloud, clock: FakeClock, phase: str
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    cloud.fault(method="queuedResources.create", kind="reset", phase=phase)
    at_sleep(clock, 1, interrupt)
    with pytest.raises(Interrupted) as caught:
        ensure(cloud)
    assert caught.value.exists == ()
    assert f"queued resource pair in {ZONE} may exist" in caught.value.why
    assert str(caught.value.fix) == f"tpukit queue describe pair --zone {ZONE}"
    assert str(caught.value.otherwise) == f"tpukit queue delete pair --zone {ZONE}"


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_refusals_after_an_accepted_request_are_outlasted(
    cloud: Cloud, clock: FakeClock, status: str
) -> None:
    refused = {"method": "queuedResources.get", "status": status, "message": "no"}
    at_sleep(clock, 1, lambda: cloud.fault(**refused, times=6))
    found, created = ensure(cloud)
    assert (found.name, created) == ("pair", True)
    assert len(cloud.calls("queuedResources.get")) > 6


def test_every_state_of_the_api_has_a_meaning() -> None:
    from google.cloud import tpu_v2

    names = {each.name for each in tpu_v2.QueuedResourceState.State}
    assert queue.states().keys() == names - {"STATE_UNSPECIFIED"}


@pytest.mark.parametrize("step", [ensure, wait, delete])
def test_a_refused_read_leaves_a_request_that_its_error_names(
    cloud: Cloud, clock: FakeClock, step: Callable[[Cloud, Any], object]
) -> None:
    """Google may fill it, and then its slices bill."""
    wanted = request(cloud)
    cloud.fault(method="queuedResources.create", kind="wait", seconds=7200.0, times=1)
    given = wanted if step is ensure else ensure(cloud, wanted)[0]
    refused = {"method": "queuedResources.get", "status": "PERMISSION_DENIED", "probability": 1.0}
    at_sleep(clock, 1, lambda: cloud.fault(**refused))
    with pytest.raises(NotAllowed) as raised:
        step(cloud, given)
    assert [line.split(";")[0] for line in raised.value.exists] == [
        f"queued resource pair in {ZONE}"
    ]
    assert raised.value.fix
    assert raised.value.fix.arguments == ("tpukit", "queue", "delete", "pair", "--zone", ZONE)

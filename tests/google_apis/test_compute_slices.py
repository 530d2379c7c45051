"""Slices of several workers on Compute Engine, against the emulator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.local_cloud import (
    PROJECT,
    Cloud,
    FakeClock,
    json_reply,
    running_cloud,
    scripted,
)
from support.slices import create, delete, labelled

from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    NameTaken,
    NoCapacity,
    NotFound,
    QuotaExceeded,
    SliceLost,
    TpukitError,
)
from tpukit.google import group_json
from tpukit.google.compute_machines import SliceShape, machine_of, shape_of, type_of, types_on
from tpukit.google.compute_slices import ComputeSlices
from tpukit.google.group_json import SliceParts
from tpukit.google.node_json import MAX_RUN
from tpukit.models import ApiCall, DataDisk, Slice, SliceChange, SliceRequest
from tpukit.slices import lifetime
from tpukit.slices.find import find_named
from tpukit.slices.survey import still_due, survey

pytestmark = pytest.mark.process

ZONE = "us-east5-b"
FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
METHOD = "instanceGroupManagers.insert"


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud whose client asks Compute Engine alone."""
    with running_cloud(tmp_path, clock=clock) as cloud:
        cloud.tpu = cloud.instances
        yield cloud


def asked(cloud: Cloud, name: str = "demo", **given: Any) -> SliceRequest:
    values = {"zone": ZONE, "accelerator_type": "v6e-16", "runtime_version": FAMILY, **given}
    return labelled(cloud, name, api="compute", **values)


def parts(cloud: Cloud) -> list[str]:
    """Return the short names of all that exists: policies, templates, groups, instances, disks."""
    state = cloud.server.service.context.state
    kinds = (state.policies, state.templates, state.groups, state.instances, state.disks)
    return [name.rpartition("/")[2] for records in kinds for name in records]


def change(cloud: Cloud, **fields: Any) -> None:
    """Let the record of the group have other fields."""
    groups = cloud.server.service.context.state.groups
    (name,) = groups
    groups[name] = {**groups[name], **fields}


def test_a_slice_of_several_workers_is_one_slice_in_the_list(cloud: Cloud) -> None:
    slice_ = create(cloud, asked(cloud)).slice
    create(cloud, asked(cloud, "single", accelerator_type="v6e-1"))
    assert (slice_.accelerator_type, slice_.runtime_version) == ("v6e-16", FAMILY)
    assert [worker.index for worker in slice_.workers] == [0, 1, 2, 3]
    for zone in ("-", ZONE):
        listed = {one.name: one for one in cloud.tpu.list(zone).slices}
        assert sorted(listed) == ["demo", "single"]
        assert listed["demo"] == slice_ == cloud.tpu.get(ZONE, "demo")


def test_each_part_has_the_owner_the_nonce_and_the_name(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    state = cloud.server.service.context.state
    mark = "tpukit slice=demo tpukit-owner=ada tpukit-nonce=n1"
    ((_, policy),), ((_, template),), ((_, group),) = (
        records.items() for records in (state.policies, state.templates, state.groups)
    )
    assert {policy["description"], template["description"], group["group"]["description"]} == {mark}
    labels = [record["instance"]["labels"] for record in state.instances.values()]
    assert {label["tpukit-nonce"] for label in [template["properties"]["labels"], *labels]} == {
        "n1"
    }


@pytest.mark.slow
@pytest.mark.parametrize("made", ["template", "policy"])
def test_a_part_without_its_group_is_a_stopped_slice_that_the_same_create_completes(
    cloud: Cloud, made: str
) -> None:
    last = "resourcePolicies.insert" if made == "template" else METHOD
    cloud.fault(method=last, kind="status", probability=1.0)
    with pytest.raises(TpukitError):
        create(cloud, asked(cloud), seconds=20)
    (slice_,) = cloud.tpu.list("-").slices
    assert (slice_.name, slice_.zone, slice_.state) == ("demo", ZONE, "STOPPED")
    assert (slice_.accelerator_type, slice_.workers) == ("v6e-16", ())
    cloud.control("DELETE", "faults")
    whole = create(cloud, asked(cloud, nonce="n2"))
    assert (whole.slice.id, whole.created) == (slice_.id, False)
    assert len(parts(cloud)) == 3 + 4 + 4


@pytest.mark.parametrize("found", range(3), ids=["instance", "group", "template"])
def test_an_answer_that_is_not_the_resource_is_no_proof_that_it_is_gone(
    cloud: Cloud, found: int
) -> None:
    missing = json_reply(404, {"error": {"code": 404, "message": "not found"}})
    with scripted(*[missing] * found, json_reply(200, {})) as server:
        compute = ComputeSlices(cloud.session, PROJECT, f"{server.url}/compute/v1/")
        with pytest.raises(TpukitError, match="not the resource of that name") as caught:
            compute.get(ZONE, "demo")
    assert caught.value.exit_code == 1
    assert len(server.seen) == found + 1


def test_a_create_without_its_group_at_the_deadline_can_be_continued(cloud: Cloud) -> None:
    cloud.fault(method=METHOD, kind="status", probability=1.0)
    with pytest.raises(DeadlinePassed) as caught:
        create(cloud, asked(cloud), seconds=20)
    assert str(caught.value.fix) == f"tpukit start demo --zone {ZONE}"


def test_a_part_without_its_group_can_be_deleted(cloud: Cloud) -> None:
    cloud.fault(method=METHOD, kind="status", probability=1.0)
    with pytest.raises(TpukitError):
        create(cloud, asked(cloud), seconds=20)
    assert parts(cloud) == ["demo-b", "demo-b"]
    delete(cloud, cloud.tpu.get(ZONE, "demo"))
    assert parts(cloud) == []


def left_by_group(cloud: Cloud, **given: Any) -> Slice:
    """Return a slice whose group is gone, for example after its machines were abandoned."""
    made = create(cloud, asked(cloud, **given)).slice
    cloud.server.service.context.state.groups.clear()
    return made


def test_machines_without_their_group_are_one_slice_and_a_delete_ends_all(cloud: Cloud) -> None:
    made = left_by_group(cloud)
    (slice_,) = cloud.tpu.list("-").slices
    assert (slice_.name, slice_.state, slice_.id) == ("demo", "REPAIRING", made.id)
    assert slice_.workers == made.workers
    assert slice_ == cloud.tpu.get(ZONE, "demo")
    delete(cloud, slice_)
    assert parts(cloud) == []


def test_a_group_that_has_abandoned_a_machine_is_deleted_with_it(cloud: Cloud) -> None:
    made = create(cloud, asked(cloud)).slice
    groups = cloud.server.service.context.state.groups
    ((_, record),) = groups.items()
    record["group"]["targetSize"] = 3
    change(cloud, members=record["members"][:3])
    assert [one.name for one in cloud.tpu.list("-").slices] == ["demo"]
    delete(cloud, made)
    assert parts(cloud) == []


def test_machines_without_group_and_template_are_listed_each(cloud: Cloud) -> None:
    left_by_group(cloud)
    state = cloud.server.service.context.state
    state.templates.clear()
    state.policies.clear()
    slices = cloud.tpu.list("-").slices
    assert [one.name for one in slices] == [f"demo-w-00{number}" for number in (1, 2, 3, 4)]
    for slice_ in slices:
        delete(cloud, slice_)
    assert parts(cloud) == []


def test_a_create_with_machines_of_a_lost_group_ends_and_names_them(cloud: Cloud) -> None:
    left_by_group(cloud)
    began = cloud.clock.time()
    with pytest.raises(TpukitError, match="slice demo has lost its group") as caught:
        create(cloud, asked(cloud, nonce="n2"))
    assert "slice demo in us-east5-b, REPAIRING" in caught.value.exists[0]
    assert str(caught.value.fix) == f"tpukit delete demo --zone {ZONE}"
    assert cloud.clock.time() - began < 30.0
    with pytest.raises(BadInput, match="cannot be started"):
        cloud.tpu.start(ZONE, "demo")


def test_machines_of_another_create_are_not_deleted_with_what_is_left_of_a_slice(
    cloud: Cloud,
) -> None:
    left_by_group(cloud)
    instances = cloud.server.service.context.state.instances
    last = [*instances][-1]
    instance = instances[last]["instance"]
    labels = {**instance["labels"], "tpukit-nonce": "other"}
    instances[last] = {**instances[last], "instance": {**instance, "labels": labels}}
    delete(cloud, cloud.tpu.get(ZONE, "demo"))
    assert [one.name for one in cloud.tpu.list("-").slices] == [last.rpartition("/")[2]]


def test_reap_names_machines_without_a_group_and_deletes_them_at_their_end(cloud: Cloud) -> None:
    end = {lifetime.EXPIRES: lifetime.moment(cloud.clock.time() + 7200.0)}
    left_by_group(cloud, labels=end)
    seen = survey(cloud.tpu, "ada")
    assert [(one.name, one.why) for one in seen.spared] == [("demo", "its group is gone")]
    assert seen.due == ()
    cloud.clock.sleep(7200.0)
    (due,) = survey(cloud.tpu, "ada").due
    assert (due.name, due.why.partition(" ")[0]) == ("demo", "it")
    delete(cloud, due.thing)
    assert (parts(cloud), survey(cloud.tpu, "ada").due) == ([], ())


def test_reap_deletes_the_template_of_a_create_that_nobody_completes(cloud: Cloud) -> None:
    cloud.fault(method=METHOD, kind="status", probability=1.0)
    with pytest.raises(TpukitError):
        create(cloud, asked(cloud), seconds=20)
    assert survey(cloud.tpu, "ada").due == ()
    cloud.clock.sleep(3600.0)
    (due,) = survey(cloud.tpu, "ada").due
    assert still_due(cloud.tpu, due.thing)
    delete(cloud, due.thing)
    assert parts(cloud) == []


def test_a_delete_ends_the_group_before_its_parts(cloud: Cloud) -> None:
    slice_ = create(cloud, asked(cloud)).slice
    delete(cloud, slice_)
    seen = [entry["method"] for entry in cloud.control("GET", "log")["requests"]]
    deleted = [method for method in seen if method.endswith(".delete")]
    assert deleted == [
        "instanceGroupManagers.delete",
        "resourcePolicies.delete",
        "regionInstanceTemplates.delete",
    ]
    assert parts(cloud) == []
    with pytest.raises(NotFound):
        cloud.tpu.get(ZONE, "demo")


@pytest.mark.parametrize("flex", [False, True])
def test_a_quota_withdraws_the_whole_slice(cloud: Cloud, flex: bool) -> None:
    limit = {"name": "ct6e-standard-4t", "zone": ZONE, "limit": 8, "spot": flex}
    cloud.control("POST", "catalogue/quotas", limit)
    bought = {"provisioning": "flex-start"} if flex else {}
    request = asked(cloud, **bought)
    request = replace(request, labels={**request.labels, MAX_RUN: "3600"})
    with pytest.raises(QuotaExceeded) as caught:
        create(cloud, request)
    assert (parts(cloud), caught.value.exists) == ([], ())


def test_a_stockout_withdraws_the_whole_slice(cloud: Cloud) -> None:
    cloud.fault(preset="stockout")
    with pytest.raises(NoCapacity) as caught:
        create(cloud, asked(cloud))
    assert (parts(cloud), caught.value.exists) == ([], ())


def test_a_stockout_that_cannot_be_withdrawn_names_what_exists(cloud: Cloud) -> None:
    cloud.fault(preset="stockout")
    cloud.fault(method="instanceGroupManagers.delete", kind="status", status="PERMISSION_DENIED")
    with pytest.raises(NoCapacity) as caught:
        create(cloud, asked(cloud))
    assert "slice demo in us-east5-b, CREATING" in caught.value.exists[0]
    assert "tpukit delete demo" in f"{caught.value.fix} {caught.value.otherwise}"


def test_one_machine_that_does_not_start_again_stays_with_its_disk(cloud: Cloud) -> None:
    request = asked(cloud, accelerator_type="v6e-1")
    create(cloud, request)
    cloud.tpu.stop(ZONE, "demo")
    cloud.clock.sleep(60)
    cloud.fault(kind="operation", method="instances.start", times=9)
    with pytest.raises(TpukitError):
        create(cloud, request)
    assert parts(cloud) == ["demo", "demo"]


def test_a_group_that_a_start_could_not_fill_is_withdrawn(cloud: Cloud) -> None:
    cloud.fault(method=METHOD, kind="status", probability=1.0)
    with pytest.raises(TpukitError):
        create(cloud, asked(cloud), seconds=20)
    cloud.control("DELETE", "faults")
    cloud.fault(preset="stockout")
    with pytest.raises(NoCapacity):
        create(cloud, asked(cloud))
    assert parts(cloud) == []


@pytest.mark.parametrize("phase", ["after", "before"])
def test_a_lost_answer_to_a_group_without_capacity_withdraws_it_too(
    cloud: Cloud, phase: str
) -> None:
    cloud.fault(preset="stockout")
    if phase == "after":
        cloud.fault(method=METHOD, kind="reset", phase="after")
    else:  # a create that was killed at this point
        request = asked(cloud)
        cloud.tpu.create(request)
    with pytest.raises(NoCapacity):
        create(cloud, asked(cloud))
    assert parts(cloud) == []


@pytest.mark.parametrize("method", ["regionOperations.get", "zoneOperations.get"])
def test_an_operation_that_the_api_has_forgotten_is_over(cloud: Cloud, method: str) -> None:
    cloud.fault(method=method, status="NOT_FOUND", probability=1.0)
    assert len(create(cloud, asked(cloud)).slice.workers) == 4


def test_flex_start_waits_for_capacity(cloud: Cloud) -> None:
    request = asked(cloud, provisioning="flex-start")
    request = replace(request, labels={**request.labels, MAX_RUN: "3600"})
    cloud.fault(preset="stockout")
    with pytest.raises(DeadlinePassed):
        create(cloud, request, seconds=60)
    assert cloud.tpu.get(ZONE, "demo").state == "CREATING"


def test_a_refused_group_leaves_no_part(cloud: Cloud) -> None:
    cloud.fault(method=METHOD, kind="status", status="INVALID_ARGUMENT")
    with pytest.raises(BadInput):
        create(cloud, asked(cloud))
    assert parts(cloud) == []


def test_a_refused_group_whose_parts_cannot_be_removed_names_them(cloud: Cloud) -> None:
    for method in (METHOD, "resourcePolicies.delete"):
        cloud.fault(method=method, kind="status", status="INVALID_ARGUMENT")
    with pytest.raises(BadInput) as caught:
        create(cloud, asked(cloud))
    assert caught.value.exists == ("slice demo in us-east5-b, STOPPED; it bills nothing",)
    assert parts(cloud) == ["demo-b", "demo-b"]


def test_another_s_policy_of_the_name_is_not_used_and_not_deleted(cloud: Cloud) -> None:
    state = cloud.server.service.context.state
    name = f"projects/{PROJECT}/regions/us-east5/resourcePolicies/demo-b"
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    state.policies[name] = {"name": "demo-b", "id": "1", "workloadPolicy": policy}
    with pytest.raises(NameTaken, match="another resource policy demo-b"):
        create(cloud, asked(cloud))
    assert parts(cloud) == ["demo-b"]


def machine_beside(cloud: Cloud) -> str:
    """Make a machine without TPUs that has the name of our slice, and return its full name."""
    records = cloud.server.service.context.state.instances
    create(cloud, asked(cloud, "other", accelerator_type="v6e-1"))
    name = f"projects/{PROJECT}/zones/{ZONE}/instances/demo"
    text = json.dumps(records.pop(f"projects/{PROJECT}/zones/{ZONE}/instances/other"))
    machine = json.loads(text.replace("other", "demo").replace("ct6e-standard-1t", "n2-standard-4"))
    records[name] = machine
    return name


def test_a_machine_without_tpus_that_has_the_name_of_our_slice_is_left_alone(cloud: Cloud) -> None:
    name = machine_beside(cloud)
    records = cloud.server.service.context.state.instances
    before = records[name]
    slice_ = create(cloud, asked(cloud)).slice
    assert slice_.workers[0] != slice_.workers[1]
    cloud.tpu.update(ZONE, "demo", SliceChange({"a": "b"}))
    for act in (cloud.tpu.start, cloud.tpu.stop):
        with pytest.raises(BadInput):
            act(ZONE, "demo")
    delete(cloud, slice_)
    assert records == {name: before}


def theirs(cloud: Cloud, kind: str) -> None:
    """Let somebody else have a part of the name that a part of ours needs."""
    state = cloud.server.service.context.state
    create(cloud, asked(cloud))
    kept = getattr(state, kind)
    for records in (state.groups, state.templates, state.policies, state.instances, state.disks):
        for name in [*records]:
            text = json.dumps(records.pop(name)).replace("tpukit", "theirs")
            if records is kept:
                text = re.sub("(instanceTemplates|resourcePolicies)/demo-b", r"\1/hers", text)
                records[name] = json.loads(text)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("groups", "instance group demo"),
        ("templates", "instance template demo-b"),
        ("policies", "resource policy demo-b"),
    ],
)
def test_a_part_of_somebody_else_s_that_has_the_name_of_ours_ends_a_create_at_once(
    cloud: Cloud, clock: FakeClock, kind: str, named: str
) -> None:
    theirs(cloud, kind)
    left, began = parts(cloud), clock.now
    with pytest.raises(NameTaken, match=f"another {named} exists") as caught:
        create(cloud, asked(cloud))
    assert (parts(cloud), caught.value.exists, caught.value.why) == (left, (), "")
    assert clock.now - began < 60.0


def test_a_machine_without_tpus_that_has_the_name_of_one_worker_ends_a_create_at_once(
    cloud: Cloud, clock: FakeClock
) -> None:
    machine_beside(cloud)
    began = clock.now
    with pytest.raises(NameTaken, match="another machine demo exists") as caught:
        create(cloud, asked(cloud, accelerator_type="v6e-1"))
    assert (caught.value.exists, caught.value.why) == ((), "")
    assert clock.now - began < 60.0


def test_the_preemption_of_one_worker_is_the_slice_s(cloud: Cloud) -> None:
    create(cloud, asked(cloud, provisioning="spot"))
    cloud.control("POST", "nodes/demo-w-002:preempt", {})
    assert cloud.tpu.get(ZONE, "demo").state == "PREEMPTED"  # although its machines are STOPPING
    cloud.clock.sleep(60)
    assert cloud.tpu.get(ZONE, "demo").state == "PREEMPTED"
    with pytest.raises(SliceLost):
        create(cloud, asked(cloud, provisioning="spot"))
    delete(cloud, cloud.tpu.get(ZONE, "demo"))
    assert parts(cloud) == []


def test_a_spot_slice_is_preempted_although_only_one_of_its_machines_has_ended(
    cloud: Cloud,
) -> None:
    create(cloud, asked(cloud, provisioning="spot"))
    cloud.control("POST", "nodes/demo-w-002:preempt", {})
    cloud.clock.sleep(60)
    for number in (1, 3, 4):
        cloud.control("POST", f"nodes/demo-w-00{number}:setState", {"state": "RUNNING"})
    slice_ = cloud.tpu.get(ZONE, "demo")
    assert (slice_.state, len(slice_.workers)) == ("PREEMPTED", 4)


def test_a_slice_that_lost_one_worker_is_repairing_and_one_that_lost_all_is_terminated(
    cloud: Cloud,
) -> None:
    create(cloud, asked(cloud))
    for number, state in ((1, "REPAIRING"), (2, "REPAIRING"), (3, "REPAIRING"), (4, "TERMINATED")):
        cloud.control("POST", f"nodes/demo-w-00{number}:preempt", {"vanish": True})
        assert cloud.tpu.get(ZONE, "demo").state == state


def test_an_update_changes_all_workers_and_keeps_the_items_of_each(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    slice_ = cloud.tpu.get(ZONE, "demo")
    metadata = {**slice_.metadata, "new": "item"}
    cloud.tpu.update(ZONE, "demo", SliceChange({"a": "b"}, ("t",), metadata))
    now = cloud.tpu.get(ZONE, "demo")
    assert (now.labels, now.tags, now.metadata) == ({"a": "b"}, ("t",), metadata)
    numbers = set()
    for record in cloud.server.service.context.state.instances.values():
        items = {item["key"]: item["value"] for item in record["instance"]["metadata"]}
        assert (items["new"], record["instance"]["labels"]) == ("item", {"a": "b"})
        numbers.add(items["agent-worker-number"])
    assert numbers == {"0", "1", "2", "3"}
    assert len(cloud.calls("instances.setLabels")) == 4


def test_an_update_gives_no_worker_the_number_of_another(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    instances = cloud.server.service.context.state.instances
    last = max(instances)
    record = instances[last]
    items = [
        item
        for item in record["instance"]["metadata"]
        if item["key"] not in ("agent-worker-number", "tpu-env")
    ]
    instances[last] = {**record, "instance": {**record["instance"], "metadata": items}}
    new = {**cloud.tpu.get(ZONE, "demo").metadata, "new": "item"}
    cloud.tpu.update(ZONE, "demo", SliceChange(metadata=new))
    keys = {item["key"] for item in instances[last]["instance"]["metadata"]}
    assert ("new" in keys, "agent-worker-number" in keys) == (True, False)


def test_a_half_written_update_is_not_shown_as_done(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    cloud.fault(method="instances.setLabels", name="demo-w-002", kind="status")
    with pytest.raises(TpukitError):
        cloud.tpu.once().update(ZONE, "demo", SliceChange({"a": "b"}))
    assert "a" not in cloud.tpu.get(ZONE, "demo").labels


def test_what_several_workers_cannot_do_is_refused_with_a_way_out(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    for act in (cloud.tpu.start, cloud.tpu.stop):
        with pytest.raises(BadInput) as caught:
            act(ZONE, "demo")
        assert "tpukit delete demo" in str(caught.value.fix)
    disk = DataDisk(f"projects/{PROJECT}/zones/{ZONE}/disks/d")
    with pytest.raises(BadInput, match="only read a data disk"):
        cloud.tpu.create(asked(cloud, "other", data_disks=(disk,)))
    with pytest.raises(BadInput, match="too long"):
        cloud.tpu.create(asked(cloud, "a" * 51))


def test_a_slice_without_its_workers_cannot_be_changed(cloud: Cloud) -> None:
    cloud.fault(method=METHOD, kind="status", probability=1.0)
    with pytest.raises(TpukitError):
        create(cloud, asked(cloud), seconds=20)
    with pytest.raises(BadInput, match="not all of its workers exist"):
        cloud.tpu.update(ZONE, "demo", SliceChange({"a": "b"}))


def test_a_dry_run_notes_each_write_in_its_order(cloud: Cloud) -> None:
    noted: list[ApiCall] = []
    cloud.tpu.planning(noted.append).create(asked(cloud))
    kinds = [call.url.partition("?")[0].rpartition("/")[2] for call in noted]
    assert kinds == ["instanceTemplates", "resourcePolicies", "instanceGroupManagers"]
    assert parts(cloud) == []
    create(cloud, asked(cloud))
    noted.clear()
    cloud.tpu.planning(noted.append).delete(ZONE, "demo")
    assert [call.method for call in noted] == ["DELETE"] * 3
    assert len(parts(cloud)) == 11


def test_the_same_name_in_two_zones_of_a_region_is_two_slices(cloud: Cloud) -> None:
    zones = ("europe-west4-a", "europe-west4-b")
    cloud.control("POST", "catalogue/acceleratorTypes", {"name": "v6e-8", "zone": zones[1]})
    for zone in zones:
        create(cloud, asked(cloud, zone=zone))
    assert sorted(slice_.zone for slice_ in cloud.tpu.list("-").slices) == list(zones)
    delete(cloud, cloud.tpu.get(zones[0], "demo"))
    assert [slice_.zone for slice_ in cloud.tpu.list("-").slices] == [zones[1]]


def test_a_silent_zone_shows_no_part_as_stopped_and_no_worker_as_a_slice(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    method = "instanceGroupManagers.aggregatedList"
    cloud.fault(kind="unreachable", method=method, zone=ZONE)
    listed = cloud.tpu.list("-")
    assert (listed.slices, listed.unreachable) == ((), (ZONE,))


def test_another_s_group_is_a_slice_and_only_the_group_is_deleted(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    state = cloud.server.service.context.state
    (path,) = state.templates
    record = state.templates.pop(path)
    own = path.replace("regions/us-east5", "global").replace("demo-b", "theirs")
    state.templates[own] = {**record, "name": "theirs"}
    change(cloud, template=own)
    for zone in ("-", ZONE):
        (slice_,) = cloud.tpu.list(zone).slices
        assert (slice_.name, slice_.accelerator_type, slice_.state) == ("demo", "v6e-16", "READY")
    delete(cloud, slice_)
    assert parts(cloud) == ["demo-b", "theirs"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_machine_of_a_regional_group_is_listed_alone_and_deleted_only_without_it(
    cloud: Cloud, exists: bool
) -> None:
    maker = "projects/1/regions/us-east5/instanceGroupManagers/theirs"
    machine = {
        "id": "7",
        "name": "theirs-x1",
        "zone": f"zones/{ZONE}",
        "status": "RUNNING",
        "machineType": "ct6e-standard-4t",
        "metadata": {"items": [{"key": "created-by", "value": maker}]},
    }
    group = {"name": "theirs", "region": "regions/us-east5", "instanceTemplate": ""}
    pages = (
        {"items": {f"zones/{ZONE}": {"instances": [machine]}}},
        {"items": {"regions/us-east5": {"instanceGroupManagers": [group]}}},
        {"items": {}},
    )
    missing = json_reply(404, {"error": {"code": 404}})
    # Of its group, of a group with its own name, and of that one's template.
    answers = [json_reply(200, group)] if exists else [missing] * 3
    done = json_reply(200, {"name": "operation-1"})
    replies = [json_reply(200, document) for document in (*pages, machine)]
    with scripted(*replies, *answers, done) as server:
        compute = ComputeSlices(cloud.session, PROJECT, f"{server.url}/compute/v1/")
        listed = compute.list("-").slices
        assert [(one.name, one.zone, one.state) for one in listed] == [("theirs-x1", ZONE, "READY")]
        if exists:
            with pytest.raises(BadInput, match="a machine of the managed instance group") as caught:
                compute.delete(ZONE, "theirs-x1")
            assert "managed delete theirs --region us-east5" in str(caught.value.fix)
        else:
            compute.delete(ZONE, "theirs-x1")
        assert [verb for verb, _ in server.seen[4:]] == [
            "GET",
            *([] if exists else ["GET", "GET", "DELETE"]),
        ]


def test_a_machine_of_a_group_is_not_deleted_alone(cloud: Cloud) -> None:
    create(cloud, asked(cloud))
    with pytest.raises(BadInput, match="a machine of the managed instance group demo") as caught:
        cloud.tpu.delete(ZONE, "demo-w-002")
    assert str(caught.value.fix) == f"tpukit delete demo --zone {ZONE}"
    assert len(parts(cloud)) == 3 + 4 + 4


def test_a_machine_and_a_group_of_one_name_are_both_named_and_neither_is_deleted(
    cloud: Cloud,
) -> None:
    create(cloud, asked(cloud, accelerator_type="v6e-1"))
    create(cloud, asked(cloud, "other"))
    state = cloud.server.service.context.state
    for records in (state.templates, state.groups):
        ((path, record),) = records.items()
        del records[path]
        records[path.replace("other", "demo")] = json.loads(
            json.dumps(record).replace("other", "demo")
        )
    before = parts(cloud)
    for find in (
        lambda: delete(cloud, cloud.tpu.get(ZONE, "demo")),
        lambda: find_named(cloud.tpu, "demo"),
    ):
        with pytest.raises(
            BadInput, match="as a machine and as a managed instance group"
        ) as caught:
            find()
        assert (
            str(caught.value.fix)
            == f"gcloud compute instances delete demo --zone {ZONE} --project {PROJECT}"
        )
        assert str(caught.value.otherwise).startswith(
            "gcloud compute instance-groups managed delete"
        )
    assert parts(cloud) == before


def test_an_unreadable_group_hides_no_slice_and_is_listed_itself(cloud: Cloud) -> None:
    create(cloud, asked(cloud, "other"))
    other = cloud.tpu.get(ZONE, "other")
    group = {"name": "demo", "zone": f"zones/{ZONE}", "targetSize": "four", "status": 7}
    template = {"properties": {"machineType": "ct6e-standard-4t", "labels": 7}}
    listed = group_json.read_slice(SliceParts(ZONE, "demo", template, group), PROJECT)
    assert (listed.name, listed.state, listed.unreadable) == ("demo", "", ("instanceGroupManager",))
    assert other.topology == "4x4"


def test_workers_have_the_order_of_their_numbers_or_of_their_names() -> None:
    def member(name: str, number: str) -> Any:
        item = {"key": "agent-worker-number", "value": number}
        return {"name": name, "metadata": {"items": [item] if number else []}}

    one, two = member("a", "1"), member("b", "0")
    assert group_json.in_order([one, two]) == [two, one]
    assert group_json.in_order([two, member("a", "")]) == [member("a", ""), two]


@pytest.mark.parametrize(
    ("kind", "machine", "hosts", "topology"),
    [
        ("v6e-8", "ct6e-standard-8t", 1, ""),
        ("v6e-16", "ct6e-standard-4t", 4, "4x4"),
        ("v6e-256", "ct6e-standard-4t", 64, "16x16"),
        ("v5p-16", "ct5p-hightpu-4t", 2, "2x2x2"),
        ("tpu7x-16", "tpu7x-standard-4t", 2, "2x2x2"),
    ],
)
def test_each_type_has_its_machines_and_the_machines_their_type(
    kind: str, machine: str, hosts: int, topology: str
) -> None:
    assert shape_of(kind) == SliceShape(machine_of(kind), hosts, topology)
    assert machine_of(kind).name == machine
    assert (type_of(machine, hosts), kind in types_on(machine)) == (kind, True)


@pytest.mark.parametrize("kind", ["v5litepod-16", "v6e-12", "v5p-7", "tpu7x-9", "x"])
def test_a_type_without_machines_is_refused(kind: str) -> None:
    with pytest.raises(BadInput, match="through Compute Engine"):
        shape_of(kind)

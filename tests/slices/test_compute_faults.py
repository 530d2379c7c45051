"""Creates and deletes on Compute Engine while calls fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cloud import Cloud, FakeClock, running_cloud
from support.slices import create, delete, labelled

from tpukit.google.roads import Roads
from tpukit.models import Slice
from tpukit.slices import change

pytestmark = pytest.mark.slow

ZONE = "us-east5-b"
FAULTS = [
    {"kind": "status", "status": "UNAVAILABLE", "phase": "before"},
    {"kind": "status", "status": "UNAVAILABLE", "phase": "after"},
    {"kind": "reset", "phase": "before"},
    {"kind": "reset", "phase": "after"},
]


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud whose client asks both APIs."""
    with running_cloud(tmp_path, clock=clock) as cloud:
        cloud.tpu = Roads(cloud.tpu, cloud.instances)
        yield cloud


#: The calls for instances, and for what groups of them are made of.
METHODS = (
    "instances.* instanceGroupManagers.* instanceTemplates.* regionInstanceTemplates.* "
    "resourcePolicies.*"
)


def fail(cloud: Cloud, share: float) -> None:
    """Let this share of all calls fail, half of them after the call was carried out."""
    for seed, fault in enumerate(FAULTS):
        cloud.fault(method=METHODS, probability=share / len(FAULTS), seed=seed, **fault)
    operations = "zoneOperations.* regionOperations.*"
    cloud.fault(method=operations, kind="status", probability=share, seed=11)


def names(cloud: Cloud) -> tuple[list[str], list[str]]:
    """Return the names of all instances and of all disks."""
    state = cloud.server.service.context.state
    return sorted(state.instances), sorted(state.disks)


def parts(cloud: Cloud) -> list[list[str]]:
    """Return the names of all groups, templates and policies."""
    state = cloud.server.service.context.state
    return [sorted(records) for records in (state.groups, state.templates, state.policies)]


def create_on_compute_engine(cloud: Cloud, name: str, accelerator_type: str) -> Slice:
    """Create a slice through the Compute Engine API, and return it."""
    request = labelled(
        cloud,
        name,
        zone=ZONE,
        accelerator_type=accelerator_type,
        runtime_version="ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        api="compute",
    )
    return create(cloud, request).slice


class PassingClock(FakeClock):
    """Two seconds pass between any two looks, as on a machine with too much to do."""

    def time(self) -> float:
        self.now += 2.0
        return self.now


def test_a_group_remains_although_much_time_passes_between_two_looks_at_the_clock(
    tmp_path: Path,
) -> None:
    with running_cloud(tmp_path, clock=PassingClock()) as cloud:
        cloud.tpu = Roads(cloud.tpu, cloud.instances)
        slice_ = create_on_compute_engine(cloud, "demo", "v6e-16")
        assert [len(records) for records in parts(cloud)] == [1, 1, 1]
        assert len(slice_.workers) == 4


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("count", [10, pytest.param(300, marks=pytest.mark.long)])
def test_as_many_creates_of_several_workers_make_as_many_groups_and_no_other_part(
    cloud: Cloud, count: int, share: float
) -> None:
    fail(cloud, share)
    slices = [create_on_compute_engine(cloud, f"s{number}", "v6e-16") for number in range(count)]
    assert [len(records) for records in parts(cloud)] == [count] * 3
    instances, disks = names(cloud)
    assert len(instances) == len(disks) == 4 * count
    assert {len(slice_.workers) for slice_ in slices} == {4}
    assert cloud.served() > count * share
    for slice_ in slices:
        delete(cloud, slice_)
    assert (names(cloud), parts(cloud)) == (([], []), [[], [], []])


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("count", [20, pytest.param(300, marks=pytest.mark.long)])
def test_as_many_creates_under_faults_make_as_many_instances(
    cloud: Cloud, count: int, share: float
) -> None:
    fail(cloud, share)
    slices = [create_on_compute_engine(cloud, f"s{number}", "v6e-1") for number in range(count)]
    instances, disks = names(cloud)
    assert len(instances) == len(disks) == count
    assert {slice_.name for slice_ in slices} == {name.rpartition("/")[2] for name in instances}
    assert cloud.served() > count * share
    for slice_ in slices:
        delete(cloud, slice_)
    assert names(cloud) == ([], [])


@pytest.mark.parametrize("lost", [False, True], ids=["accepted", "without an answer"])
def test_a_slice_of_several_whose_delete_has_begun_is_deleted_to_its_end(
    cloud: Cloud, lost: bool
) -> None:
    """Its machines had the newer labels; the template has those that it was made with."""
    slice_ = create_on_compute_engine(cloud, "demo", "v6e-16")
    if lost:
        cloud.fault(method="instanceGroupManagers.delete", kind="reset", phase="after")
    ended = change.delete(
        cloud.tpu,
        slice_,
        deadline=cloud.deadline(),
        journal=cloud.journal,
        on_state=cloud.states.append,
        stays=lambda current: bool(cloud.calls("instanceGroupManagers.delete")),
    )
    assert ended
    assert (names(cloud), parts(cloud)) == (([], []), [[], [], []])

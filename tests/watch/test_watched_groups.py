"""Watched slices of several workers on Compute Engine: a lost group is made again, and its job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_cloud import PROJECT, Cloud, FakeClock, running_cloud
from support.slices import create, labelled

from tpukit.errors import TpukitError
from tpukit.google import group_json
from tpukit.slices import naming
from tpukit.watch.saved_watches import RECOVERING, Record, Watch, WatchFiles, WatchSpec, request_of
from watch.test_supervisor import Killed, PaperWork, Scene

pytestmark = pytest.mark.process

ZONE, OTHER_ZONE = "us-east5-b", "us-east5-a"
FAMILY = "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud whose client asks Compute Engine alone."""
    with running_cloud(tmp_path, clock=clock) as cloud:
        cloud.tpu = cloud.instances
        yield cloud


def scene_of(cloud: Cloud, directory: Path, provisioning: str) -> Scene:
    given = {"zone": ZONE, "accelerator_type": "v6e-16", "runtime_version": FAMILY}
    request = labelled(cloud, api="compute", provisioning=provisioning, **given)
    found = create(cloud, request).slice
    file = WatchFiles(directory, cloud.url, PROJECT).of(ZONE, "demo")
    spec = WatchSpec(request_of(found), run_id="r1", command="train", zones=(OTHER_ZONE,))
    watch = Watch(spec, zone=ZONE)
    file.save(watch)
    clock = cloud.clock
    assert isinstance(clock, FakeClock)
    return Scene(cloud, clock, file, Record(file, watch, clock.time), PaperWork(cloud))


@pytest.fixture
def scene(cloud: Cloud, tmp_path: Path) -> Scene:
    return scene_of(cloud, tmp_path / "watches", "spot")


def preempt(scene: Scene) -> None:
    scene.cloud.control("POST", "nodes/demo-w-002:preempt", {})


def parts(cloud: Cloud) -> list[str]:
    """Return the kinds and zones of all that exists."""
    state = cloud.server.service.context.state
    kinds = (state.policies, state.templates, state.groups, state.instances)
    return [path.partition("/")[2] for records in kinds for path in records]


@pytest.mark.slow
def test_a_preempted_spot_group_is_made_again_with_all_its_parts(scene: Scene) -> None:
    """Three times in a row; one group is left, and the command runs once on each."""
    assert scene.watch(*[lambda: preempt(scene)] * 3, scene.end) == 0
    assert len(set(scene.work.begun)) == len(scene.work.begun) == 4
    assert scene.events.count("preempted") == scene.record.watch.recoveries == 3
    (slice_,) = scene.cloud.tpu.list("-").slices
    assert (slice_.ready, slice_.provisioning, len(slice_.workers)) == (True, "spot", 4)
    assert slice_.labels[naming.HOSTS] == "4"
    (template,) = scene.cloud.server.service.context.state.templates.values()
    assert "created-by" not in str(template["properties"]["metadata"])
    assert len(parts(scene.cloud)) == 3 + 4
    assert scene.file.load() == scene.record.watch


def test_a_group_without_room_is_made_in_the_other_zone(scene: Scene) -> None:
    fault = {"method": "instanceGroupManagers.insert", "zone": ZONE, "probability": 1.0}
    scene.cloud.fault(preset="stockout", **fault)
    assert scene.watch(lambda: preempt(scene), scene.end) == 0
    assert scene.record.watch.zone == OTHER_ZONE
    assert [one.zone for one in scene.cloud.tpu.list("-").slices] == [OTHER_ZONE]
    assert len(parts(scene.cloud)) == 3 + 4


@pytest.mark.parametrize("at_once", [False, True])
def test_a_group_that_somebody_has_deleted_is_not_made_again(scene: Scene, at_once: bool) -> None:
    def delete() -> None:
        scene.cloud.tpu.delete(ZONE, "demo")
        if at_once:  # between two looks of the watch
            scene.clock.now += 60.0
            scene.cloud.tpu.list("-")
            scene.cloud.tpu.delete(ZONE, "demo")

    with pytest.raises(TpukitError, match="not by this watch"):
        scene.watch(lambda: preempt(scene), delete)
    assert len(scene.work.begun) == 2
    scene.clock.on_sleep = lambda: None
    scene.clock.sleep(60.0)
    assert all(slice_.state == "STOPPED" for slice_ in scene.cloud.tpu.list("-").slices)
    assert not [part for part in parts(scene.cloud) if "/instance" in part and "Temp" not in part]


@pytest.mark.slow
@pytest.mark.parametrize("provisioning", ["spot", "on-demand"])
def test_a_group_that_has_lost_a_worker_for_good_is_made_again(
    cloud: Cloud, tmp_path: Path, provisioning: str
) -> None:
    """Nothing makes that worker again, and the others bill."""
    scene = scene_of(cloud, tmp_path / "watches", provisioning)

    def lose() -> None:
        cloud.control("POST", "nodes/demo-w-003:preempt", {"vanish": True})

    assert scene.watch(lose, scene.end) == 0
    assert len(scene.work.begun) == 2
    assert len(parts(cloud)) == 3 + 4


def test_machines_whose_group_is_gone_are_deleted_and_the_slice_is_made_again(
    scene: Scene,
) -> None:
    assert scene.watch(scene.cloud.server.service.context.state.groups.clear, scene.end) == 0
    assert len(scene.work.begun) == 2
    assert len(parts(scene.cloud)) == 3 + 4


@pytest.mark.parametrize("word", ["preempted", "DELETING", "STOPPED", "deleted", "CREATING"])
def test_a_watch_that_is_killed_during_a_recovery_goes_on_with_what_is_left(
    scene: Scene, word: str
) -> None:
    """A delete takes the group first, and then its template, which is a STOPPED slice."""
    killed: list[str] = []

    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if line.startswith(word) and "preempted" in scene.events and not killed:
                killed.append(line)
                raise Killed

    scene.said = scene.cloud.states = Heard()
    with pytest.raises(Killed):
        scene.watch(lambda: preempt(scene))
    scene.work.running = False
    assert scene.watch(scene.end) == 0
    assert len(scene.work.begun) == 2
    assert len(parts(scene.cloud)) == 3 + 4


def test_a_watch_that_is_killed_when_it_gives_up_a_group_deletes_it_later(
    cloud: Cloud, tmp_path: Path
) -> None:
    scene = scene_of(cloud, tmp_path / "watches", "on-demand")
    older = cloud.tpu.get(ZONE, "demo").id

    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if line.startswith("broken"):
                raise Killed

    def lose() -> None:
        cloud.control("POST", "nodes/demo-w-003:preempt", {"vanish": True})

    scene.said = Heard()
    with pytest.raises(Killed):
        scene.watch(lose)
    scene.said, scene.work.running = [], False
    assert scene.watch(scene.end) == 0
    assert cloud.tpu.get(ZONE, "demo").id != older
    assert len(parts(cloud)) == 3 + 4


@pytest.mark.parametrize("word", ["CREATING", "READY", "made again"])
@pytest.mark.parametrize("first", [False, True])
def test_a_new_group_outlives_a_watch_that_is_killed_after_making_it(
    scene: Scene, word: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks a worker for a moment when the watch starts again.

    The file of a watch that makes its first group has no id yet.
    """
    killed: list[str] = []

    class Heard(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if word in line and "making it again" in scene.events and not killed:
                killed.append(line)
                raise Killed

    if first:
        while parts(scene.cloud):
            for slice_ in scene.cloud.tpu.list("-").slices:
                scene.cloud.tpu.delete(ZONE, slice_.name)
            scene.clock.sleep(60.0)
        scene.record.watch = replace(scene.record.watch, state=RECOVERING)
    scene.said = scene.cloud.states = Heard()
    with pytest.raises(Killed):
        scene.watch(*([] if first else [lambda: preempt(scene)]))
    newer = scene.cloud.tpu.get(ZONE, "demo").id
    scene.work.running = False
    looks, real = iter(range(3)), group_json._state

    def state(parts: group_json.SliceParts) -> str:
        lacks = parts.group is not None and next(looks, None) is not None
        return "REPAIRING" if lacks else real(parts)

    monkeypatch.setattr(group_json, "_state", state)
    assert scene.watch(scene.end) == 0
    assert scene.cloud.tpu.get(ZONE, "demo").id == newer
    assert len(parts(scene.cloud)) == 3 + 4

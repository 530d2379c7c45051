"""`create --all-or-none`: a gang of slices is complete, or nothing of it is left."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.local_cloud import OTHER_ZONE, ZONE, Cloud, FakeClock, running_cloud
from support.warm_tpukit import WarmTpukit

from cli.conftest import Run
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.search_flags import ONE_PLACE, CapacityFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.create import create
from tpukit.console import View
from tpukit.errors import Interrupted, NameTaken, NoCapacity
from tpukit.google.roads import Roads
from tpukit.slices import naming
from tpukit.slices.claim import claim
from tpukit.slices.naming import GANG, LOOKING, NONCE, SEARCH

pytestmark = pytest.mark.slow

WORDS = ("create", "v3-8", "pod", "--count", "3", "--source-range", "192.0.2.7/32")
GANG_WORDS = (*WORDS, "--all-or-none")


def names(cloud: Cloud) -> list[str]:
    return [name.rpartition("/")[2] for name in cloud.nodes()]


def no_room(cloud: Cloud, name: str) -> None:
    cloud.fault(preset="stockout", name=name, probability=1.0)


def gang(
    cloud: Cloud,
    clock: FakeClock,
    capacity: CapacityFlags = ONE_PLACE,
    *,
    apis: str = "tpu",
    kind: str = "v3-8",
    all_or_none: bool = True,
) -> View:
    """Create a gang of three in this process, on the test's clock."""
    environment = {**cloud.environment(), "TPUKIT_APIS": apis}
    toolkit = Toolkit(GlobalFlags(quiet=True), environ=environment, clock=clock)
    with toolkit.closing:
        return create(
            *(toolkit, kind, "pod"),
            no_firewall=True,
            count=3,
            all_or_none=all_or_none,
            capacity=capacity,
        )


def test_a_gang_is_complete_and_then_a_later_failure_deletes_none_of_it(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    done = run(*GANG_WORDS, "--json", environment=environment)
    assert done.status == 0, done.err
    assert all(GANG not in slice_["slice"]["labels"] for slice_ in done.document["slices"])
    assert all(GANG not in slice_.labels for slice_ in prompt_cloud.tpu.list("-").slices)
    prompt_cloud.vanish("pod-2")
    no_room(prompt_cloud, "pod-2")
    told = run(*GANG_WORDS, environment=environment).says(6).err
    assert names(prompt_cloud) == ["pod-0", "pod-1"]
    assert f"exists: slice pod-0 in {ZONE}, READY when last seen; it stays" in told
    assert "deleted:" not in told
    assert "deleting slice" not in told


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ({"preset": "stockout"}, 6),
        ({"preset": "quota"}, 6),
        ({"preset": "permission-denied"}, 4),
    ],
    ids=lambda value: value["preset"] if isinstance(value, dict) else "",
)
def test_without_one_of_three_none_is_left_and_no_rule(
    run: Run, prompt_cloud: Cloud, fault: dict[str, str], status: int
) -> None:
    prompt_cloud.fault(**fault, method="nodes.create", name="pod-2", probability=1.0)
    told = run(*GANG_WORDS, environment=prompt_cloud.environment()).says(status).err
    assert f"deleted: slice pod-0 in {ZONE}, slice pod-1 in {ZONE}\n" in told
    assert "exists:" not in told
    assert "pod-2 --zone" not in told
    assert names(prompt_cloud) == []
    assert prompt_cloud.firewall.list() == ()


def test_a_taken_name_ends_the_gang_and_its_slice_stays(run: Run, prompt_cloud: Cloud) -> None:
    environment = prompt_cloud.environment()
    assert run("create", "v2-8", "pod-1", "--no-firewall", environment=environment).status == 0
    told = run(*GANG_WORDS, environment=environment).says(5).err
    assert names(prompt_cloud) == ["pod-1"]
    assert f"deleted: slice pod-0 in {ZONE}\n" in told
    assert f"fix: tpukit delete pod-1 --zone {ZONE}\n" in told


def test_what_cannot_be_deleted_is_named_with_a_command_that_deletes_it(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    no_room(prompt_cloud, "pod-2")
    prompt_cloud.fault(
        preset="permission-denied", method="nodes.delete", name="pod-1", probability=1.0
    )
    told = run(*GANG_WORDS, environment=environment).says(6).err
    assert names(prompt_cloud) == ["pod-1"]
    assert f"deleted: slice pod-0 in {ZONE}\n" in told
    assert f"slice pod-1 in {ZONE} was not deleted: " in told
    assert len(re.findall(f"exists: slice pod-1 in {ZONE}, READY when last seen; ", told)) == 1
    (fix, *_) = [line.split()[2:] for line in told.splitlines() if line.startswith("fix: ")]
    prompt_cloud.control("DELETE", "faults")
    assert run(*fix, "--yes", environment=environment).status == 0
    assert names(prompt_cloud) == []


def test_a_gang_that_keeps_trying_holds_no_slice_between_two_rounds(
    cloud: Cloud, clock: FakeClock
) -> None:
    held: list[list[str]] = []

    def watch() -> None:
        if clock.slept[-1] >= 30.0:  # the pause between two rounds
            held.append(names(cloud))
            if len(held) == 3:
                cloud.control("DELETE", "faults")

    no_room(cloud, "pod-2")
    clock.on_sleep = watch
    gang(cloud, clock, CapacityFlags(keep_trying=True, max_wait="2h"))
    assert held == [[], [], []]
    assert names(cloud) == ["pod-0", "pod-1", "pod-2"]


def test_a_gang_that_keeps_trying_ends_with_none_when_its_time_is_over(
    cloud: Cloud, clock: FakeClock
) -> None:
    no_room(cloud, "pod-1")
    began = clock.now
    with pytest.raises(NoCapacity) as caught:
        gang(cloud, clock, CapacityFlags(keep_trying=True, max_wait="20m"))
    assert names(cloud) == []
    assert 1200.0 < clock.now - began < 1500.0
    assert "the same command asks again" in str(caught.value.fix)


def test_a_slice_that_somebody_uses_stays_if_its_gang_cannot_be_completed(
    cloud: Cloud, clock: FakeClock
) -> None:
    """Its command was killed, or it still looks for the others."""

    def use() -> None:
        if "pod-1" in names(cloud):
            clock.on_sleep = lambda: None
            first = cloud.tpu.get(ZONE, "pod-0")
            claim(cloud.tpu, first, deadline=cloud.deadline(), on_state=cloud.states.append)

    no_room(cloud, "pod-2")
    clock.on_sleep = use
    with pytest.raises(NoCapacity) as caught:
        gang(cloud, clock)
    assert names(cloud) == ["pod-0"]
    assert [line.partition(",")[0] for line in caught.value.exists] == [f"slice pod-0 in {ZONE}"]
    assert f"deleted: slice pod-1 in {ZONE}" in caught.value.why


def test_a_slice_that_somebody_uses_while_its_gang_deletes_it_stays(
    cloud: Cloud, clock: FakeClock
) -> None:
    def use() -> None:
        if cloud.calls("nodes.delete"):
            clock.on_sleep = lambda: None
            first = cloud.tpu.get(ZONE, "pod-0")
            claim(cloud.tpu, first, deadline=cloud.deadline(), on_state=cloud.states.append)
            cloud.control("DELETE", "faults")

    no_room(cloud, "pod-1")
    cloud.fault(method="nodes.delete", status="UNAVAILABLE", probability=1.0)
    clock.on_sleep = use
    with pytest.raises(NoCapacity) as caught:
        gang(cloud, clock)
    assert names(cloud) == ["pod-0"]
    assert [line.partition(",")[0] for line in caught.value.exists] == [f"slice pod-0 in {ZONE}"]


def test_a_gang_of_another_owner_with_the_same_names_loses_nothing(
    cloud: Cloud, clock: FakeClock
) -> None:
    theirs = naming.labelled(cloud.request("pod-1", labels={GANG: "1"}), "eve", "n1")
    cloud.tpu.create(theirs)
    clock.sleep(60.0)
    with pytest.raises(NameTaken, match="belongs to eve"):
        gang(cloud, clock)
    assert names(cloud) == ["pod-1"]


def test_a_slice_of_a_killed_gang_that_is_asked_for_alone_stays_if_the_gang_fails(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    alone = ("create", "v3-8", "pod-0", "--no-firewall")
    assert run(*alone, environment=environment).status == 0
    labels = {**prompt_cloud.tpu.get(ZONE, "pod-0").labels, GANG: "1"}
    prompt_cloud.change("pod-0", labels=labels)
    assert run(*alone, environment=environment).status == 0
    no_room(prompt_cloud, "pod-2")
    run(*GANG_WORDS, environment=environment).says(6)
    assert names(prompt_cloud) == ["pod-0"]


@pytest.mark.parametrize("late", [True, False])
def test_what_appears_late_in_the_other_api_of_the_zone_is_deleted_or_told(
    cloud: Cloud, clock: FakeClock, late: bool
) -> None:
    """The answer to pod-0's create was lost, and that API was full when it was asked again."""
    zone, appeared = "us-east5-b", [] if late else ["never"]
    both = Roads(cloud.tpu, cloud.instances)

    def appear() -> None:
        if not appeared and len(cloud.calls("instances.insert")) == 2:
            appeared.append(zone)
            cloud.control("DELETE", "faults")
            first = next(one for one in both.list("-").slices if one.name == "pod-0")
            labels = {**first.labels, SEARCH: LOOKING, NONCE: "lost"}
            given = {"accelerator_type": "v6e-4", "runtime_version": "v2-alpha-tpuv6e"}
            cloud.tpu.create(cloud.request("pod-0", zone=zone, labels=labels, **given))

    cloud.fault(method="nodes.create", kind="reset", name="pod-0", times=3)
    cloud.fault(preset="stockout", method="nodes.create", probability=1.0)
    cloud.fault(preset="stockout", method="instances.insert", name="pod-1", probability=1.0)
    clock.on_sleep = appear
    with pytest.raises(NoCapacity) as caught:
        gang(cloud, clock, CapacityFlags(zones=zone), apis="tpu,compute", kind="v6e-4")
    assert [one.api for one in both.list("-").slices] == []
    deleted = caught.value.why.rpartition("deleted: ")[2].splitlines()[0].split(", ")
    assert sorted(deleted) == [f"slice pod-0 in {zone}"] * late + [
        f"slice pod-0 in {zone} on Compute Engine"
    ]
    assert (f"slice pod-0 in {zone} may still appear" in caught.value.why) is not late


def test_each_slice_of_a_gang_may_be_in_another_zone(run: Run, prompt_cloud: Cloud) -> None:
    """All are deleted, wherever they are."""
    prompt_cloud.fault(preset="stockout", zone=ZONE, name="pod-1", probability=1.0)
    no_room(prompt_cloud, "pod-2")
    places = ("--zones", f"{ZONE},{OTHER_ZONE}")
    told = run(*GANG_WORDS, *places, environment=prompt_cloud.environment()).says(6).err
    assert f"deleted: slice pod-0 in {ZONE}, slice pod-1 in {OTHER_ZONE}\n" in told
    assert names(prompt_cloud) == []
    assert prompt_cloud.firewall.list() == ()


def interrupted(cloud: Cloud, clock: FakeClock, interrupt: Callable[[], None]) -> Interrupted:
    """Create the gang, call `interrupt` at each of its pauses, and return the error at its end."""
    clock.on_sleep = interrupt
    with pytest.raises(Interrupted) as caught:
        gang(cloud, clock)
    return caught.value


def test_ctrl_c_while_the_second_is_made_leaves_none(cloud: Cloud, clock: FakeClock) -> None:
    def interrupt() -> None:
        if "pod-1" in names(cloud):
            clock.on_sleep = lambda: None
            raise KeyboardInterrupt

    ended = interrupted(cloud, clock, interrupt)
    assert names(cloud) == []
    assert ended.exists == ()
    assert f"deleted: slice pod-0 in {ZONE}, slice pod-1 in {ZONE}" in ended.why


def test_ctrl_c_without_all_or_none_suggests_a_command_that_deletes_all(
    cloud: Cloud, clock: FakeClock
) -> None:
    def interrupt() -> None:
        if "pod-1" in names(cloud):
            clock.on_sleep = lambda: None
            raise KeyboardInterrupt

    clock.on_sleep = interrupt
    with pytest.raises(Interrupted) as caught:
        gang(cloud, clock, all_or_none=False)
    assert {line.split()[1] for line in caught.value.exists} == {"pod-0", "pod-1"}
    assert str(caught.value.fix) == "tpukit delete pod-0 pod-1"
    no_room(cloud, "pod-2")
    clock.on_sleep = lambda: None
    with pytest.raises(NoCapacity) as refused:
        gang(cloud, clock, all_or_none=False)
    assert str(refused.value.otherwise) == "tpukit delete pod-0 pod-1"


def test_the_command_that_deletes_all_fits_a_slice_that_may_not_exist_and_two_other_fixes(
    run: Run, prompt_cloud: Cloud
) -> None:
    environment = prompt_cloud.environment()
    silent = {"method": "nodes.create", "name": "pod-1", "kind": "reset", "probability": 1.0}
    prompt_cloud.fault(**silent)
    told = run(*WORDS, "--timeout", "2s", environment=environment).says(1).err
    fixes = [line.split()[2:] for line in told.splitlines() if line.startswith("fix: tpukit")]
    assert fixes[-1] == ["delete", "pod-0", "pod-1", "--missing-ok"]
    prompt_cloud.control("DELETE", "faults")
    assert run(*fixes[-1], "--yes", environment=environment).status == 0
    assert names(prompt_cloud) == []
    assert run("create", "v3-8", "pod-0", *WORDS[-2:], environment=environment).status == 0
    refused = {"method": "firewalls.insert", "status": "PERMISSION_DENIED", "message": "no"}
    prompt_cloud.fault(**refused, probability=1.0)
    told = run(*WORDS, environment=environment).says(4).err
    assert "fix: gcloud compute firewall-rules create tpukit-pod-1-" in told
    assert "add --no-firewall if the network already lets you in" in told
    assert "fix: tpukit delete pod-0\n" in told


def test_a_slice_that_one_list_leaves_out_is_deleted_all_the_same(
    cloud: Cloud, clock: FakeClock
) -> None:
    """It was there a moment ago, so one list is no proof that it is gone."""
    nodes, hidden = cloud.server.service.context.state.nodes, dict[str, Any]()

    def interrupt() -> None:
        if hidden:
            nodes.update(hidden)
            hidden.clear()
            clock.on_sleep = lambda: None
        elif "pod-1" in names(cloud):
            hidden[cloud.full_name("pod-0")] = nodes.pop(cloud.full_name("pod-0"))
            raise KeyboardInterrupt

    ended = interrupted(cloud, clock, interrupt)
    assert names(cloud) == []
    assert ended.exists == ()


def test_ctrl_c_in_a_complete_gang_deletes_none_of_it_and_names_all(
    cloud: Cloud, clock: FakeClock
) -> None:
    def interrupt() -> None:
        if cloud.calls("nodes.patch"):  # in a thread, for which the main thread waits
            clock.on_sleep = lambda: None
            signal.raise_signal(signal.SIGINT)

    ended = interrupted(cloud, clock, interrupt)
    assert names(cloud) == ["pod-0", "pod-1", "pod-2"]
    assert [line.split()[1] for line in ended.exists] == names(cloud)


def test_ctrl_c_names_what_cannot_be_deleted(cloud: Cloud, clock: FakeClock) -> None:
    def interrupt() -> None:
        if "pod-1" in names(cloud):
            clock.on_sleep = lambda: None
            raise KeyboardInterrupt

    cloud.fault(preset="permission-denied", method="nodes.delete", name="pod-0", probability=1.0)
    ended = interrupted(cloud, clock, interrupt)
    assert names(cloud) == ["pod-0"]
    assert [line.partition(",")[0] for line in ended.exists] == [f"slice pod-0 in {ZONE}"]
    assert str(ended.fix) == "tpukit delete pod-0"


def test_if_the_api_is_silent_the_error_names_the_slices_that_were_made(
    cloud: Cloud, clock: FakeClock
) -> None:
    """The same command continues with them."""
    no_room(cloud, "pod-2")
    cloud.fault(method="nodes.list", status="UNAVAILABLE", probability=1.0)
    with pytest.raises(NoCapacity) as caught:
        gang(cloud, clock)
    assert names(cloud) == ["pod-0", "pod-1"]
    lines = [line.partition(",")[0] for line in caught.value.exists]
    assert lines == [f"slice pod-0 in {ZONE}", f"slice pod-1 in {ZONE}"]
    assert "cannot tell which of its slices exist" in caught.value.why
    assert str(caught.value.fix) == "tpukit list"
    cloud.control("DELETE", "faults")
    assert len(gang(cloud, clock).document["slices"]) == 3


def test_ctrl_c_during_an_unconfirmed_create_waits_for_its_slice_and_deletes_it(
    cloud: Cloud, clock: FakeClock
) -> None:
    """The API makes the slice, but the answer is lost, and the slice appears later."""
    hidden: dict[str, object] = {}
    nodes = cloud.server.service.context.state.nodes

    def interrupt() -> None:
        if "pod-1" in names(cloud):
            hidden[cloud.full_name("pod-1")] = nodes.pop(cloud.full_name("pod-1"))
            clock.on_sleep = appear
            raise KeyboardInterrupt

    def appear() -> None:
        clock.on_sleep = lambda: None
        nodes.update(hidden)

    cloud.fault(method="nodes.create", kind="reset", phase="after", name="pod-1")
    ended = interrupted(cloud, clock, interrupt)
    assert names(cloud) == []
    assert "may still appear" not in ended.why


def started(cloud: Cloud, words: Sequence[str] = GANG_WORDS) -> WarmTpukit:
    pipe = subprocess.PIPE
    return WarmTpukit(
        words,
        env=cloud.environment(),
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
    )


def told_until(process: WarmTpukit, line: str) -> None:
    assert process.stderr
    assert any(line in told for told in process.stderr)


@pytest.mark.parametrize("room", [True, False], ids=["all", "none"])
def test_killed_in_the_middle_the_same_command_ends_in_all_or_none(
    run: Run, tmp_path: Path, room: bool
) -> None:
    with running_cloud(tmp_path / "cloud", create_seconds=1.5) as cloud:
        with started(cloud) as process:
            told_until(process, "pod-1: CREATING")
            process.kill()
            process.communicate()
        assert names(cloud)[:1] == ["pod-0"]
        if not room:
            no_room(cloud, "pod-2")
        again = run(*GANG_WORDS, environment=cloud.environment())
        assert again.status == (0 if room else 6), again.err
        assert names(cloud) == (["pod-0", "pod-1", "pod-2"] if room else [])
        assert all(GANG not in slice_.labels for slice_ in cloud.tpu.list("-").slices)
        assert len(cloud.firewall.list()) == len(names(cloud))


def test_terminated_in_the_middle_none_is_left(tmp_path: Path) -> None:
    with running_cloud(tmp_path, create_seconds=1.5) as cloud, started(cloud) as process:
        told_until(process, "pod-1: CREATING")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 143, told
        assert f"deleted: slice pod-0 in {ZONE}" in told
        assert "exists:" not in told
        assert names(cloud) == []
        assert cloud.firewall.list() == ()


def test_terminated_between_two_creates_the_first_is_named_with_a_command_that_deletes_it(
    run: Run, tmp_path: Path
) -> None:
    with running_cloud(tmp_path, create_seconds=1.5) as cloud, started(cloud, WORDS) as process:
        cloud.fault(method="nodes.get", name="pod-1", kind="stall", seconds=5.0)
        told_until(process, "rule tpukit-pod-0-")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 143, told
        assert f"exists: slice pod-0 in {ZONE}, READY when last seen" in told
        (fix,) = [line.split()[2:] for line in told.splitlines() if line.startswith("fix: ")]
        assert run(*fix, "--yes", environment=cloud.environment()).status == 0
        assert names(cloud) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--all-or-none",), "--all-or-none needs --count"),
        (("--all-or-none", "--count", "1"), "--all-or-none needs --count"),
        (("--all-or-none", "--count", "2", "--best-effort"), "cannot wait in the queue"),
    ],
)
def test_flags_that_make_no_gang_are_refused(
    run: Run, standing: Cloud, words: tuple[str, ...], why: str
) -> None:
    told = run("create", "v3-8", "other", *words, environment=standing.environment()).says(2).err
    assert why in told

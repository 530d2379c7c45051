"""What is left over goes, in all zones; what is not stays, and what was not seen is said."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud
from support.slices import labelled

from tpukit.access import ssh_rule
from tpukit.access.cleanup import Cleanup, Deleted
from tpukit.errors import Interrupted, TpukitError
from tpukit.models import FirewallRule
from tpukit.slices import lifetime, naming
from tpukit.slices.survey import Survey, survey

pytestmark = pytest.mark.process

ZONES = (ZONE, OTHER_ZONE, "us-central1-c", "europe-west4-a", "us-west1-c", "us-east5-a")
LIVING, EXPIRED = 900_000.0, 60.0


class World:
    """A cloud with things in it; `due` are those that ada may reap."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.due: set[tuple[str, str]] = set()
        self.count = 0

    def labels(self, ttl: float | None, owner: str = "ada") -> dict[str, str]:
        own = {naming.MANAGED: "1", naming.OWNER: owner, naming.NONCE: "n"} if owner else {}
        return {**own, **lifetime.labels(self.cloud.clock.time(), ttl, "")}

    def slice(self, zone: str, labels: dict[str, str]) -> str:
        self.count += 1
        name = f"s{self.count}"
        kind = "v5litepod-8" if zone.startswith(("us-west", "us-east", "europe")) else "v2-8"
        image = "v2-alpha-tpuv5-lite" if kind[1] == "5" else "tpu-ubuntu2204-base"
        request = self.cloud.request(name, zone=zone, accelerator_type=kind, runtime_version=image)
        tags = (ssh_rule.tag(PROJECT, zone, name),)
        self.cloud.tpu.create(naming.replace(request, labels=labels, tags=tags))
        return name

    def queued(self, zone: str, labels: dict[str, str], fault: dict[str, Any] | None = None) -> str:
        self.count += 1
        name = f"q{self.count}"
        if fault:
            self.cloud.fault(**fault)
        parent = f"projects/{PROJECT}/locations/{zone}"
        kind = "v5litepod-8" if zone.startswith(("us-west", "us-east", "europe")) else "v2-8"
        image = "v2-alpha-tpuv5-lite" if kind[1] == "5" else "tpu-ubuntu2204-base"
        node = {"acceleratorType": kind, "runtimeVersion": image, "labels": labels}
        spec = {"parent": parent, "nodeId": f"{name}-0", "node": node}
        url = f"{self.cloud.url}/v2/{parent}/queuedResources?queuedResourceId={name}"
        self.cloud.session.rest("ask", "POST", url, body={"tpu": {"nodeSpec": [spec]}})
        return name

    def preempt(self, name: str, zone: str) -> None:
        self.cloud.control("POST", f"nodes/{self.cloud.full_name(name, zone)}:preempt")

    def later(self) -> None:
        """Let creates be done, short lives end, and requests come to what they come to."""
        self.cloud.clock.sleep(200.0)
        self.cloud.tpu.list("-")

    def reap(self, found: Survey) -> Deleted:
        cleanup = Cleanup(
            self.cloud.tpu,
            self.cloud.firewall,
            PROJECT,
            self.cloud.journal,
            on_state=lambda name: self.cloud.states.append,
            on_warning=self.cloud.states.append,
        )
        return cleanup.reap(found.due, self.cloud.deadline(1200.0))

    def survey(self, **given: Any) -> Survey:
        return survey(self.cloud.tpu, "ada", **given)


@pytest.fixture
def world(cloud: Cloud) -> World:
    return World(cloud)


def kinds(world: World) -> dict[str, Callable[[str], tuple[str, bool]]]:
    """Return what can be there: each makes one in a zone, and tells whether it is ada's to reap."""

    def preempted(labels: dict[str, str]) -> Callable[[str], str]:
        def make(zone: str) -> str:
            name = world.slice(zone, labels)
            world.cloud.clock.sleep(31.0)
            world.preempt(name, zone)
            return name

        return make

    def hidden(zone: str) -> str:
        name = world.slice(zone, new(LIVING))
        world.cloud.clock.sleep(31.0)
        node = world.cloud.full_name(name, zone)
        world.cloud.control("POST", f"nodes/{node}:setState", {"state": "HIDDEN"})
        return name

    def suspended(labels: dict[str, str]) -> Callable[[str], str]:
        def make(zone: str) -> str:
            name = world.queued(zone, labels)
            world.cloud.clock.sleep(100.0)
            world.cloud.tpu.list("-")
            world.preempt(f"{name}-0", zone)
            return name

        return make

    failing = {"preset": "queued-stockout-internal"}
    waits = {"method": "queuedResources.create", "kind": "wait", "seconds": 100_000}
    new = world.labels
    return {
        "living": lambda zone: (world.slice(zone, new(LIVING)), False),
        "endless": lambda zone: (world.slice(zone, new(None)), False),
        "expired": lambda zone: (world.slice(zone, new(EXPIRED)), True),
        "hidden": lambda zone: (hidden(zone), False),
        "preempted": lambda zone: (preempted(new(None))(zone), True),
        "another's, expired": lambda zone: (world.slice(zone, new(EXPIRED, "bob")), False),
        "another's, preempted": lambda zone: (preempted(new(None, "bob"))(zone), False),
        "nobody's, preempted": lambda zone: (preempted(new(None, ""))(zone), False),
        "nobody's, expired": lambda zone: (world.slice(zone, new(EXPIRED, "")), False),
        "failed": lambda zone: (world.queued(zone, new(None), failing), True),
        "another's, failed": lambda zone: (world.queued(zone, new(None, "bob"), failing), False),
        "nobody's, failed": lambda zone: (world.queued(zone, new(None, ""), failing), False),
        "suspended": lambda zone: (suspended(new(None))(zone), True),
        "active": lambda zone: (world.queued(zone, new(LIVING)), False),
        "active, expired": lambda zone: (world.queued(zone, new(EXPIRED)), True),
        "waiting": lambda zone: (world.queued(zone, new(LIVING), waits), False),
        "waiting, expired": lambda zone: (world.queued(zone, new(EXPIRED), waits), True),
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_of_fifty_in_six_zones_all_that_is_left_over_and_nothing_else_is_reaped(
    world: World, seed: int
) -> None:
    choice, makers = random.Random(seed), kinds(world)
    names = [*makers, *choice.choices(list(makers), k=50 - len(makers))]
    made = []
    for name in names:
        zone = choice.choice(ZONES)
        thing, due = makers[name](zone)
        made.append((thing, zone, due, name))
    world.later()
    silent = choice.choice([zone for _, zone, due, _ in made if due])
    world.cloud.fault(kind="unreachable", method="*.list", zone=silent, times=1000)
    due = {(thing, zone): name for thing, zone, is_due, name in made if is_due and zone != silent}
    found = world.survey()
    assert {(slice_.name, slice_.zone): "" for slice_ in found.due} == dict.fromkeys(due, "")
    assert found.unreachable == (silent,)
    assert not found.whole
    done = world.reap(found)
    assert done.names == [worker.label for worker in found.due]
    assert (done.spared, done.failed) == ([], {})
    world.cloud.control("DELETE", "faults")
    left = {(slice_.name, slice_.zone) for slice_ in world.cloud.tpu.list("-").slices}
    left |= {(request.name, request.zone) for request in world.cloud.tpu.list_queued("-").requests}
    for thing, zone, is_due, name in made:
        assert ((thing, zone) in left) == (not is_due or zone == silent), (thing, zone, name)


def test_force_adds_what_is_another_s_and_foreign_what_tpukit_did_not_make(world: World) -> None:
    makers = kinds(world)
    for kind in ("another's, expired", "nobody's, preempted", "living"):
        makers[kind](ZONE)
    world.later()
    whose = {"": 0, "others": 1, "foreign": 1}
    for given, count in whose.items():
        found = world.survey(**({given: True} if given else {}))
        assert len(found.due) == count, given
        assert len(found.due) + len(found.spared) == 2
    reasons = [each.spared for each in world.survey().spared]
    assert reasons == ["it belongs to bob", "tpukit did not make it"]


def test_what_was_put_off_or_made_anew_since_it_was_shown_stays(world: World) -> None:
    cloud = world.cloud
    put_off, made_anew, request, asked_anew = (
        world.slice(ZONE, world.labels(EXPIRED)),
        world.slice(ZONE, world.labels(EXPIRED)),
        world.queued(ZONE, world.labels(EXPIRED)),
        world.queued(ZONE, world.labels(EXPIRED)),
    )
    world.later()
    found = world.survey()
    assert len(found.due) == 4
    (last,) = [each for each in found.due if each.name == asked_anew]
    stale = replace(last, thing=replace(last.thing, created="2020-01-01T00:00:00Z"))
    found = replace(found, due=(*(each for each in found.due if each is not last), stale))
    later = {**world.labels(LIVING)}
    cloud.change(put_off, labels=later)
    cloud.change(f"{request}-0", labels=later)
    cloud.vanish(made_anew)
    cloud.tpu.create(labelled(cloud, made_anew, labels=world.labels(EXPIRED)))
    cloud.clock.sleep(100.0)
    done = world.reap(found)
    assert (done.names, len(done.spared)) == ([], 4)
    assert len(cloud.nodes()) == 4


def test_a_slice_that_is_extended_while_its_delete_is_asked_for_again_stays(world: World) -> None:
    cloud = world.cloud
    name = world.slice(ZONE, world.labels(EXPIRED))
    world.later()
    found = world.survey()

    def extend() -> None:
        if cloud.calls("nodes.delete"):
            cloud.change(name, labels=world.labels(LIVING))
            cloud.control("DELETE", "faults")

    cloud.fault(method="nodes.delete", status="UNAVAILABLE", probability=1.0)
    cloud.clock.on_sleep = extend  # type: ignore[attr-defined]
    done = world.reap(found)
    assert (done.names, len(done.spared)) == ([], 1)
    assert len(cloud.nodes()) == 1


def test_what_is_being_deleted_is_no_leftover(world: World) -> None:
    name = world.slice(ZONE, world.labels(EXPIRED))
    world.later()
    assert len(world.survey().due) == 1
    world.cloud.change(name, state="DELETING")
    assert world.survey().due == ()


def test_one_slice_of_several_whose_time_is_up_stays_while_others_are_used(
    world: World,
) -> None:
    cloud = world.cloud
    parent = f"projects/{PROJECT}/locations/{ZONE}"
    node = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    node["labels"] = world.labels(None)  # type: ignore[assignment]
    several = {"nodeCount": 2, "nodeIdPrefix": "pod"}
    spec = {"parent": parent, "node": node, "multisliceParams": several}
    url = f"{cloud.url}/v2/{parent}/queuedResources?queuedResourceId=pod"
    cloud.session.rest("ask", "POST", url, body={"tpu": {"nodeSpec": [spec]}})
    world.later()
    cloud.change("pod-0", labels=world.labels(-1.0))
    found = world.survey()
    assert found.due == ()
    assert "has other slices" in found.spared[0].spared


def test_all_rules_of_what_is_reaped_go_with_it(prompt_cloud: Cloud) -> None:
    world = World(prompt_cloud)
    name = world.slice(ZONE, world.labels(-1.0))
    request = world.queued(ZONE, world.labels(-1.0))
    tags = [ssh_rule.tag(PROJECT, ZONE, each) for each in (name, f"{request}-0")]
    (found,) = [slice_ for slice_ in prompt_cloud.tpu.list(ZONE).slices if slice_.name == name]
    for name, tag in (
        (ssh_rule.purpose_name(found, "nfs"), tags[0]),
        *zip(tags, tags, strict=True),
    ):
        prompt_cloud.firewall.insert(FirewallRule(name, "default", ("192.0.2.7/32",), (tag,)))()
    assert len(world.reap(world.survey()).names) == 2
    assert not [each for each in prompt_cloud.firewall.list() if ssh_rule.is_ours(each)]


def test_a_delete_that_is_accepted_and_fails_is_asked_for_again(world: World) -> None:
    world.queued(ZONE, world.labels(EXPIRED))
    world.later()
    world.cloud.fault(preset="queued-delete-fails", times=2)
    assert len(world.reap(world.survey()).names) == 1
    assert world.cloud.served() == 2


def test_requests_that_cannot_be_listed_are_said_to_be_unseen(world: World) -> None:
    world.slice(ZONE, world.labels(EXPIRED))
    world.later()
    world.cloud.fault(preset="permission-denied", method="queuedResources.list")
    found = world.survey()
    assert len(found.due) == 1
    assert "list queued resources" in found.unseen[0]
    world.cloud.fault(preset="permission-denied", method="nodes.list")
    with pytest.raises(TpukitError):
        world.survey()
    for method in ("nodes.list", "queuedResources.list"):  # each of them alone
        world.cloud.fault(kind="unreachable", method=method, zone=ZONE)
        assert world.survey().unreachable == (ZONE,)


@pytest.mark.parametrize("preset", ["permission-denied", "unavailable"])
def test_a_leftover_that_cannot_be_read_again_is_named(world: World, preset: str) -> None:
    names = [world.slice(ZONE, world.labels(EXPIRED)), world.queued(ZONE, world.labels(EXPIRED))]
    world.later()
    found = world.survey()
    for method in ("nodes.get", "queuedResources.get"):
        world.cloud.fault(preset=preset, method=method, probability=1.0)
    failed = world.reap(found).failed
    lines = [line for label in sorted(failed, reverse=True) for line in failed[label].exists]
    assert [line.split(" in ")[0].split()[-1] for line in lines] == names


def test_an_interrupt_says_what_is_left(world: World) -> None:
    world.slice(ZONE, world.labels(EXPIRED))
    world.later()
    found = world.survey()
    world.cloud.fault(method="nodes.get", kind="stall", seconds=30.0)
    main = threading.main_thread().ident
    threading.Timer(0.5, signal.pthread_kill, [main, signal.SIGINT]).start()
    with pytest.raises(Interrupted) as caught:
        world.reap(found)
    assert "when last seen" in caught.value.exists[0]
    assert str(caught.value.fix) == "tpukit reap"

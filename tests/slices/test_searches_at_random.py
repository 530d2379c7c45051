"""Searches over both APIs in clouds that a seed decides, killed at each of their calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.local_cloud import Cloud, FakeClock, running_cloud
from support.mortal import Killed, Mortal
from support.searches import HOUR, Hunter
from support.slices import delete

from tpukit.errors import TpukitError
from tpukit.google.roads import Roads
from tpukit.models import Slice, SliceRequest
from tpukit.slices import naming

pytestmark = pytest.mark.slow

APIS = ("tpu", "compute")
ZONES = ("us-east5-a", "us-east5-b", "us-east1-d", "us-south1-a")
#: Nobody has room; a silent zone and somebody else's slice; two searches at once.
SEEDS = (0, 1, 4, 7)
#: Seconds of asking again: enough for several rounds, whose calls are alike.
_ASKING = 180.0
CREATES = {"tpu": "nodes.create", "compute": "instances.insert"}
#: What a place says to a create: without a fault it has room.
FAULTS: dict[str, dict[str, Any]] = {
    "room": {},
    "no room": {"preset": "stockout", "probability": 1.0},
    "no quota": {"preset": "quota", "probability": 1.0},
    "closed": {
        "status": "PERMISSION_DENIED",
        "message": "User does not have permission to submit requests into this queue for "
        "accelerator type v6e-4 in location us-east5-a",
        "probability": 1.0,
    },
}


@dataclass
class World:
    """The state of a cloud that a seed decides, for searches of one name."""

    cloud: Cloud
    seed: int
    name: str

    def __post_init__(self) -> None:
        chance = Random(self.seed)
        self.zones = chance.sample(ZONES, 3)
        silent, foreign, *_ = self.zones
        self.silent = silent if chance.random() < 0.4 else ""
        self.foreign = foreign if chance.random() < 0.5 else ""
        self.said = {(zone, api): chance.choice([*FAULTS]) for zone in self.zones for api in APIS}
        taken = (self.silent, self.foreign)
        self.open = [place for place, said in self.said.items() if said == "room"]
        self.open = [place for place in self.open if place[0] not in taken]
        self.lost_answers = chance.sample([*self.said], 2) if chance.random() < 0.5 else []
        self.rival = chance.choice(self.open) if self.open and chance.random() < 0.5 else None
        self.eves_api = chance.choice(APIS)

    def begin(self) -> None:
        """Make somebody else's slice, and let the places fail as the seed says."""
        self.cloud.control("DELETE", "faults")
        if self.foreign:
            self.cloud.tpu.create(self.request(self.foreign, self.eves_api, "eve"))
            self.cloud.clock.sleep(60.0)
        for zone, api in self.lost_answers:
            phase = "after" if self.said[zone, api] == "room" else "before"
            lost = {"kind": "reset", "phase": phase, "times": 1}
            self.cloud.fault(method=CREATES[api], zone=zone, **lost)
        for (zone, api), said in self.said.items():
            if said != "room":
                self.cloud.fault(method=CREATES[api], zone=zone, **FAULTS[said])
        if self.silent:
            there = {"zone": self.silent, "probability": 1.0}
            self.cloud.fault(method="nodes.list", kind="unreachable", **there)
            self.cloud.fault(method="nodes.get", status="UNAVAILABLE", **there)

    def request(self, zone: str, api: str, owner: str = "ada") -> SliceRequest:
        given = {"apis": (api,), "types": ("v6e-4",), "name": self.name, "nonce": "other"}
        return Hunter(self.cloud, owner, **given).requests(zone)[0]  # type: ignore[arg-type]

    def search(self, provider: Any = None, nonce: str = "n1") -> Slice:
        """Search, while another search may make a slice before our first create."""
        rivals = [self.rival] if self.rival and nonce == "n1" else []

        def rival(request: SliceRequest) -> None:
            while rivals:
                self.cloud.tpu.create(self.request(*rivals.pop()))
                self.cloud.clock.sleep(2.0)

        given = {"apis": APIS, "types": ("v6e-4",), "name": self.name}
        hunter = Hunter(self.cloud, nonce=nonce, provider=provider, **given)  # type: ignore[arg-type]
        return hunter.search(*self.zones, asking=_ASKING, before=rival)[0].slice

    def slices(self, owner: str) -> Sequence[Slice]:
        """Return the owner's slices of our name in all zones, when nothing is DELETING any more."""
        self.cloud.control("DELETE", "faults")
        self.cloud.clock.sleep(60.0)
        named = [one for one in self.cloud.tpu.list("-").slices if one.name == self.name]
        return [one for one in named if naming.is_owner(owner, one.labels)]


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud whose client asks both APIs."""
    with running_cloud(tmp_path, clock=clock) as cloud:
        cloud.tpu = Roads(cloud.tpu, cloud.instances)
        yield cloud


def check(world: World, number: int = 0, answered: bool = False) -> int:
    """Kill a search at a call, type it again and hold it to one winner; return its calls."""
    world.begin()
    eves = [one.id for one in world.cloud.tpu.list("-").slices if one.name == world.name]
    mortal = Mortal(world.cloud.tpu, number, answered)
    try:
        world.search(mortal)
    except Killed:
        search_again(world)
    except TpukitError:
        if world.open:
            raise
    mine = world.slices("ada")
    assert [one.ready for one in mine] == [True] * bool(world.open)
    assert [(one.zone, one.api) in world.open for one in mine] == [True] * len(mine)
    assert [one.id for one in world.slices("eve")] == eves
    for slice_ in mine:
        delete(world.cloud, slice_, seconds=HOUR)
    assert world.slices("ada") == []
    state = world.cloud.server.service.context.state
    disks = {path.replace("/disks/", "/instances/") for path in state.disks}
    assert disks == {*state.instances}
    return mortal.calls["all"]


def search_again(world: World) -> None:
    """Type it again; if nobody has room, it ends with the refusal of each place."""
    if world.open:
        world.search(nonce="n2")
        return
    with pytest.raises(TpukitError) as caught:
        world.search(nonce="n2")
    assert len(caught.value.details["refusals"]) == len(world.said)


def test_the_seeds_decide_clouds_with_room_and_without(cloud: Cloud) -> None:
    assert {bool(World(cloud, seed, "any").open) for seed in SEEDS} == {True, False}


@pytest.mark.parametrize(
    ("seed", "each"),
    [(seed, False) for seed in SEEDS]
    + [pytest.param(seed, True, marks=pytest.mark.long) for seed in range(12)],
)
def test_a_search_that_is_killed_at_a_call_leaves_one_winner_and_touches_nobody_else_s(
    cloud: Cloud, seed: int, each: bool
) -> None:
    calls = check(World(cloud, seed, f"s{seed}"))
    every = [(number, after) for number in range(1, calls + 1) for after in (False, True)]
    for number, after in every if each else Random(seed).sample(every, 3):
        check(World(cloud, seed, f"s{seed}-{number}-{int(after)}"), number, after)

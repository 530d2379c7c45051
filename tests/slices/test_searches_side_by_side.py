"""Searches beside which something happens at each of their calls: a search, or a use of a slice.

A slice that another search has ended with, or that somebody uses, is never deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.local_cloud import Cloud, FakeClock, running_cloud
from support.mortal import Mortal
from support.searches import HOUR, Hunter
from support.slices import delete

from tpukit.errors import BadInput, Interrupted
from tpukit.google.roads import Roads
from tpukit.models import Slice
from tpukit.slices import naming
from tpukit.slices.claim import claim

pytestmark = pytest.mark.slow

APIS = ("tpu", "compute")
ZONES = ("us-east5-b", "us-east5-a")
FEW = pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.long)])


@dataclass
class Beside:
    """The cloud's provider, beside which something happens once: at the call with a number.

    It happens before the call, or after the cloud has carried it out; 0 is never.
    """

    provider: Any
    number: int
    answered: bool
    act: Callable[[], object]
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.provider, name)
        if name in ("once", "within", "only"):
            return lambda *words, **given: replace(self, provider=value(*words, **given))
        return self._beside(name, value) if callable(value) and name != "now" else value

    def _beside(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*words: Any, **given: Any) -> Any:
            self.calls.append(name)
            now = len(self.calls) == self.number
            if now and not self.answered:
                self.act()
            try:
                return call(*words, **given)
            finally:
                if now and self.answered:
                    self.act()

        return act


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud whose client asks both APIs; the first place loses an answer, and has no room."""
    with running_cloud(tmp_path, clock=clock) as cloud:
        cloud.tpu = Roads(cloud.tpu, cloud.instances)
        yield cloud


def prepare(cloud: Cloud) -> None:
    cloud.control("DELETE", "faults")
    full = {"preset": "stockout", "method": "nodes.create", "probability": 1.0}
    cloud.fault(method="instances.insert", kind="reset", phase="after", times=1)
    cloud.fault(**full, zone=ZONES[0])


def hunter(cloud: Cloud, name: str, nonce: str, owner: str = "ada", provider: Any = None) -> Hunter:
    given = {"apis": APIS, "types": ("v6e-4",), "provider": provider}
    return Hunter(cloud, owner, nonce, name=name, **given)


def there(cloud: Cloud, name: str, owner: str = "ada") -> dict[str, Slice]:
    """Return the owner's slices of a name by their ids, when no delete is under way any more."""
    cloud.control("DELETE", "faults")
    cloud.clock.sleep(60.0)
    slices = [one for one in cloud.tpu.list("-").slices if one.name == name]
    return {one.id: one for one in slices if naming.is_owner(owner, one.labels)}


def moments(cloud: Cloud, step: int) -> Iterator[tuple[int, bool, str]]:
    """Yield the calls of a search, each before and after its answer, and a name for it."""
    prepare(cloud)
    alone = Beside(cloud.tpu, 0, False, lambda: None)
    hunter(cloud, "alone", "n1", provider=alone).search(*ZONES)
    for number in range(1, len(alone.calls) + 1, step):
        for answered in (False, True):
            prepare(cloud)
            yield number, answered, f"s{number}-{answered:d}"
            for slice_ in cloud.tpu.list("-").slices:
                delete(cloud, slice_, HOUR)


@FEW
@pytest.mark.parametrize("zones", [ZONES, ZONES[::-1]])
def test_two_searches_of_one_owner_end_with_the_slice_of_the_one_that_ends_first(
    cloud: Cloud, step: int, zones: tuple[str, ...]
) -> None:
    for number, answered, name in moments(cloud, step):
        first: list[Slice] = []

        def other(name: str = name, first: list[Slice] = first) -> None:
            first.append(hunter(cloud, name, "n2").search(*zones)[0].slice)

        beside = Beside(cloud.tpu, number, answered, other)
        found = hunter(cloud, name, "n1", provider=beside).search(*ZONES)[0].slice
        assert [one.id for one in first] == [found.id], (number, answered)
        assert [*there(cloud, name)] == [found.id], (number, answered)


@FEW
def test_two_owners_that_search_for_one_name_have_a_slice_each(cloud: Cloud, step: int) -> None:
    for number, answered, name in moments(cloud, step):
        eves: list[Slice] = []

        def eve(name: str = name, eves: list[Slice] = eves) -> None:
            eves.append(hunter(cloud, name, "n2", "eve").search(*ZONES[::-1])[0].slice)

        beside = Beside(cloud.tpu, number, answered, eve)
        mine = hunter(cloud, name, "n1", provider=beside).search(*ZONES)[0].slice
        assert [*there(cloud, name)] == [mine.id], (number, answered)
        assert [*there(cloud, name, "eve")] == [one.id for one in eves], (number, answered)


@FEW
def test_a_slice_that_somebody_uses_is_deleted_by_no_search(cloud: Cloud, step: int) -> None:
    used, tally = dict[str, Slice](), list[int]()

    def use(name: str) -> None:
        for slice_ in cloud.tpu.list("-").slices:
            if slice_.name == name and slice_.ready:
                claim(cloud.tpu, slice_, deadline=cloud.deadline(), on_state=cloud.states.append)
                used[slice_.id] = slice_

    for number, answered, name in moments(cloud, step):
        used.clear()
        cloud.control("DELETE", "faults")
        for zone, api in zip(ZONES, APIS, strict=True):  # of two searches that were killed
            (request,) = replace(hunter(cloud, name, api), apis=(api,)).requests(zone)
            cloud.tpu.create(request)
            cloud.clock.sleep(60.0)
        beside = Beside(cloud.tpu, number, answered, lambda name=name: use(name))
        for provider in (beside, None):
            with suppress(BadInput):  # both are used
                found = hunter(cloud, name, "n1", provider=provider).search(*ZONES)[0].slice
                assert found.id in used or not used, (number, answered)
        left = there(cloud, name)
        following = beside.calls[number - (not answered) :][:1]
        if following == ["delete"]:  # it has no precondition, but takes less time than a claim
            continue
        assert used.keys() <= left.keys(), (number, answered)
        assert len(left) == max(1, len(used)), (number, answered)
        tally.append(len(used))
    assert {1, 2} <= {*tally}


@FEW
def test_an_interrupt_names_the_slice_that_it_leaves_and_how_to_delete_it(
    cloud: Cloud, step: int
) -> None:
    left = 0
    for number, answered, name in moments(cloud, step):
        mortal = Mortal(cloud.tpu, number, answered, KeyboardInterrupt)
        with pytest.raises(Interrupted) as caught:
            hunter(cloud, name, "n1", provider=mortal).search(*ZONES)
        told = "\n".join(caught.value.lines())
        for slice_ in there(cloud, name).values():
            left += 1
            assert f"tpukit delete {name} --zone {slice_.zone}" in told, (number, answered, told)
    assert left

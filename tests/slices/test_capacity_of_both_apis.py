"""Searches over both of Google's APIs, in each of which a zone may have a slice of our name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.local_cloud import Cloud, FakeClock, running_cloud
from support.searches import HOUR, Hunter
from support.slices import create, delete

from tpukit.errors import BadInput, Interrupted, NameTaken
from tpukit.google.roads import Roads
from tpukit.models import SliceRequest
from tpukit.slices import naming
from tpukit.slices.find import find, matching
from tpukit.slices.refusals import documents, removals

pytestmark = pytest.mark.process

ZONE = "us-east5-b"
APIS = ("tpu", "compute")
ORDERS = pytest.mark.parametrize(("older", "newer"), [APIS, APIS[::-1]])


@pytest.fixture
def cloud(tmp_path: Path, clock: FakeClock) -> Iterator[Cloud]:
    """A cloud whose client asks both APIs."""
    with running_cloud(tmp_path, clock=clock) as cloud:
        cloud.tpu = Roads(cloud.tpu, cloud.instances)
        yield cloud


def hunter(cloud: Cloud, *apis: str, **given: str) -> Hunter:
    return Hunter(cloud, apis=apis or APIS, types=("v6e-4",), **given)


def there(cloud: Cloud) -> list[str]:
    """Return the API and the owner of each slice."""
    return sorted(f"{one.api} {naming.owner(one)}" for one in cloud.tpu.list("-").slices)


def made_both(cloud: Cloud, clock: FakeClock, older: str, newer: str, owner: str = "ada") -> None:
    """Let two searches have made a slice of the same name in the same zone."""
    for number, api in enumerate((older, newer)):
        (request,) = hunter(cloud, api, nonce=f"other{number}", owner=owner).requests(ZONE)
        cloud.tpu.create(request)
        clock.sleep(60.0)


@ORDERS
def test_of_two_slices_in_one_zone_the_older_stays_and_the_newer_is_deleted_in_its_api(
    cloud: Cloud, clock: FakeClock, older: str, newer: str
) -> None:
    made_both(cloud, clock, older, newer)
    found, _ = hunter(cloud).search(ZONE)
    assert (found.slice.api, found.created) == (older, False)
    assert there(cloud) == [f"{older} ada"]


@pytest.mark.parametrize(("api", "method"), [("compute", "nodes.get"), ("tpu", "instances.get")])
@pytest.mark.parametrize("preset", ["permission-denied", "api-disabled"])
def test_an_api_that_may_not_be_read_hides_no_slice_of_the_other(
    cloud: Cloud, api: str, method: str, preset: str
) -> None:
    hunter(cloud, api).search(ZONE)
    preset = "compute-api-disabled" if (api, preset) == ("tpu", "api-disabled") else preset
    cloud.fault(preset=preset, method=method, probability=1.0)
    assert cloud.tpu.get(ZONE, "demo").api == api


def test_without_compute_engine_its_slices_count_as_silent(cloud: Cloud) -> None:
    hunter(cloud, "tpu").search(ZONE)
    cloud.fault(preset="compute-api-disabled", probability=1.0)
    listed = cloud.tpu.list("-")
    assert ([one.name for one in listed.slices], listed.unreachable) == (
        ["demo"],
        ("Compute Engine",),
    )


@ORDERS
def test_of_two_searches_at_once_both_end_with_the_older_slice(
    cloud: Cloud, clock: FakeClock, older: str, newer: str
) -> None:
    """The other search creates after our search has looked, and before it asks."""
    other = hunter(cloud, nonce="n2")

    def rival(request: SliceRequest) -> None:
        if not there(cloud):
            ((first,),) = [[one for one in other.requests(ZONE) if one.api == older]]
            cloud.tpu.create(first)
            clock.sleep(2.0)

    ours = Hunter(cloud, apis=(newer, older), types=("v6e-4",))
    found, _ = ours.search(ZONE, before=rival)
    assert (found.slice.api, found.created) == (older, False)
    assert any("another search has an older slice" in state for state in ours.states)
    assert other.search(ZONE)[0].slice.api == older
    assert there(cloud) == [f"{older} ada"]


@pytest.mark.parametrize("api", APIS)
def test_a_slice_in_an_api_that_was_not_asked_is_told_and_stays(cloud: Cloud, api: str) -> None:
    hunter(cloud, api).search(ZONE)
    other = next(one for one in APIS if one != api)
    with pytest.raises(NameTaken, match="exists already") as caught:
        hunter(cloud, other, nonce="n2").search(ZONE, "us-east5-a")
    assert str(caught.value.otherwise) == f"env TPUKIT_APIS={api} tpukit delete demo --zone {ZONE}"
    assert there(cloud) == [f"{api} ada"]


@ORDERS
def test_a_younger_slice_in_an_api_that_is_not_asked_ends_a_search_before_it_begins(
    cloud: Cloud, clock: FakeClock, older: str, newer: str
) -> None:
    made_both(cloud, clock, older, newer)
    with pytest.raises(NameTaken, match="exists already"):
        hunter(cloud, older).search(ZONE)
    assert there(cloud) == sorted(f"{api} ada" for api in APIS)


@ORDERS
def test_a_search_that_loses_against_an_api_that_it_did_not_ask_leaves_nothing(
    cloud: Cloud, clock: FakeClock, older: str, newer: str
) -> None:
    def rival(request: SliceRequest) -> None:
        (first,) = hunter(cloud, older, nonce="n2").requests(ZONE)
        cloud.tpu.create(first)
        clock.sleep(2.0)

    with pytest.raises(NameTaken, match="exists already"):
        hunter(cloud, newer).search(ZONE, before=rival)
    assert there(cloud) == [f"{older} ada"]


@ORDERS
def test_a_younger_slice_in_an_api_that_was_not_asked_stays(
    cloud: Cloud, clock: FakeClock, older: str, newer: str
) -> None:
    ours = hunter(cloud, older)
    begun: list[str] = []

    def rival() -> None:
        if there(cloud) and not begun:
            begun.append(newer)
            cloud.tpu.create(hunter(cloud, newer, nonce="n2").requests(ZONE)[0])

    clock.on_sleep = rival
    assert ours.search(ZONE)[0].slice.api == older
    assert there(cloud) == sorted(f"{api} ada" for api in APIS)
    assert any("another slice of that name stays" in state for state in ours.states)


@pytest.mark.parametrize("api", APIS)
def test_a_place_in_which_somebody_else_has_the_name_is_not_asked_in_the_other_api(
    cloud: Cloud, clock: FakeClock, api: str
) -> None:
    (request,) = hunter(cloud, api, owner="eve").requests(ZONE)
    cloud.tpu.create(request)
    clock.sleep(60.0)
    found, refusals = hunter(cloud).search(ZONE, "us-east5-a")
    assert found.slice.zone == "us-east5-a"
    assert [(one.zone, one.again) for one in refusals] == [(ZONE, "elsewhere")] * 2
    assert there(cloud) == sorted([f"{api} eve", "tpu ada"])


@pytest.mark.parametrize(("late", "other"), [APIS, APIS[::-1]])
def test_a_command_for_what_may_still_appear_spares_our_slice(
    cloud: Cloud, clock: FakeClock, late: str, other: str
) -> None:
    """One API loses its answer to the create, and then refuses; the other has room."""
    method = {"tpu": "nodes.create", "compute": "instances.insert"}[late]
    cloud.fault(method=method, kind="reset", times=3)
    cloud.fault(preset="stockout", method=method, probability=1.0)
    made, refusals = Hunter(cloud, apis=(late, other), types=("v6e-4",)).search(ZONE)
    assert made.slice.api == other
    (fix,) = removals(made.slice, refusals)
    assert str(fix) == f"env TPUKIT_APIS={late} tpukit delete demo --missing-ok --zone {ZONE}"
    assert "may still appear" in documents(refusals, made.slice)["exists"][0]
    # It appears, and the same command deletes it.
    cloud.control("DELETE", "faults")
    clock.sleep(60.0)
    cloud.tpu.create(hunter(cloud, late).requests(ZONE)[0])
    assert hunter(cloud, nonce="n2").search(ZONE)[0].slice.api == other
    assert there(cloud) == [f"{other} ada"]


def test_no_command_deletes_our_slice_that_another_way_to_buy_has_given(cloud: Cloud) -> None:
    ours = hunter(cloud, "tpu")
    (request,) = ours.requests(ZONE)
    both = [replace(request, provisioning="spot"), request]
    ours.requests = lambda *zones, **_: both  # type: ignore[method-assign]
    cloud.fault(method="nodes.create", kind="reset", times=1)
    cloud.fault(preset="stockout", method="nodes.create", times=1)
    made, refusals = ours.search(ZONE)
    assert made.slice.provisioning == "on-demand"
    assert [one.request.provisioning for one in refusals if one.doubt] == ["spot"]
    assert (removals(made.slice, refusals), "exists" in documents(refusals, made.slice)) == (
        (),
        False,
    )
    assert not any("deletes it then" in state for state in ours.states)


@pytest.mark.parametrize("api", APIS)
def test_an_interrupt_after_the_attempt_names_the_slice_that_bills(
    cloud: Cloud, clock: FakeClock, api: str
) -> None:
    lists = len(cloud.calls("nodes.list"))

    def interrupt() -> None:
        if cloud.tpu.only(api).list("-").slices:  # the next list does not answer
            cloud.fault(method="nodes.list", status="UNAVAILABLE", http=503, times=100)
        if len(cloud.calls("nodes.list")) > lists + 20:
            raise KeyboardInterrupt

    clock.on_sleep = interrupt
    with pytest.raises(Interrupted) as caught:
        hunter(cloud, api).search(ZONE)
    assert "slice demo in us-east5-b" in caught.value.exists[0]
    assert str(caught.value.fix) == f"tpukit delete demo --zone {ZONE}"


def test_a_name_in_both_apis_is_refused_with_a_command_for_each_api(
    cloud: Cloud, clock: FakeClock
) -> None:
    made_both(cloud, clock, *APIS)
    slices = cloud.tpu.list("-").slices
    for refused in (
        lambda: find(cloud.tpu, "demo"),
        lambda: find(cloud.tpu, "demo", ZONE),
        lambda: matching(slices, ["de*"]),
    ):
        with pytest.raises(BadInput, match=f"exists in {ZONE} in both APIs") as caught:
            refused()
        error = caught.value
        assert [str(error.fix), str(error.otherwise)] == [
            f"env TPUKIT_APIS={api} tpukit delete demo --zone {ZONE}" for api in APIS
        ]


@ORDERS
def test_a_delete_ends_the_slice_that_it_looked_at_and_not_its_namesake(
    cloud: Cloud, clock: FakeClock, older: str, newer: str
) -> None:
    made_both(cloud, clock, older, newer)
    (first,) = [one for one in cloud.tpu.list("-").slices if one.api == older]
    delete(cloud, first, seconds=HOUR)
    assert there(cloud) == [f"{newer} ada"]


def test_slices_of_one_name_that_no_search_made_end_a_search(
    cloud: Cloud, clock: FakeClock
) -> None:
    for api in APIS:
        (request,) = hunter(cloud, api).requests(ZONE)
        labels = {key: value for key, value in request.labels.items() if key != naming.SEARCH}
        create(cloud, replace(request, labels=labels))
    with pytest.raises(BadInput, match="in both APIs") as caught:
        hunter(cloud).search(ZONE)
    assert "env TPUKIT_APIS=tpu tpukit delete demo" in str(caught.value.fix)
    assert len(there(cloud)) == 2

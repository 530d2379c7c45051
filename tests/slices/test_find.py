"""A slice found by its name, and whether its workers can answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud, json_reply, scripted
from support.slices import create, labelled

from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.google.tpu import CloudTpu
from tpukit.models import Slice
from tpukit.slices import find
from tpukit.slices.queue_requests import find_queued


def test_a_slice_is_found_in_whichever_zone_it_is(cloud: Cloud) -> None:
    create(cloud, labelled(cloud, zone=OTHER_ZONE))
    assert find.find(cloud.tpu, "demo").zone == OTHER_ZONE
    with pytest.raises(NotFound, match=f"no slice demo in {ZONE}") as caught:
        find.find(cloud.tpu, "demo", ZONE)
    assert str(caught.value.fix) == "tpukit list --zone -"


def test_one_not_found_beside_a_list_with_the_slice_is_not_believed(cloud: Cloud) -> None:
    made = create(cloud).slice
    cloud.fault(method="nodes.get", status="NOT_FOUND", message="not found", times=1)
    assert find.find(cloud.tpu, "demo", ZONE) == made


def test_one_list_without_the_slice_is_not_believed(cloud: Cloud) -> None:
    """`wait --for gone` and `delete --missing-ok` would call a slice gone that bills."""
    path = f"projects/{PROJECT}/locations/{ZONE}"
    node, queued = {"name": f"{path}/nodes/demo"}, {"name": f"{path}/queuedResources/demo"}
    there = json_reply(200, {"nodes": [node], "queuedResources": [queued]})
    for look in (find.find, find_queued):
        with scripted(json_reply(200, {}), there) as server:
            assert look(CloudTpu(cloud.session, PROJECT, server.url), "demo").zone == ZONE
            assert len(server.seen) == 2


def test_a_name_in_two_zones_needs_the_zone(cloud: Cloud) -> None:
    for zone in (ZONE, OTHER_ZONE):
        create(cloud, labelled(cloud, zone=zone))
    with pytest.raises(BadInput, match="in several zones") as caught:
        find.find(cloud.tpu, "demo")
    assert ZONE in caught.value.what
    assert OTHER_ZONE in caught.value.what
    assert str(caught.value.fix).startswith("add --zone ")


def test_a_name_close_to_one_that_exists_is_suggested(cloud: Cloud) -> None:
    create(cloud)
    with pytest.raises(NotFound) as caught:
        find.find(cloud.tpu, "demmo")
    assert caught.value.fix == Fix.command(
        "tpukit", "describe", "demo", note="did you mean that slice?"
    )


def test_not_found_is_not_said_while_a_zone_is_silent(cloud: Cloud) -> None:
    answer = json_reply(200, {"unreachable": [f"projects/p/locations/{ZONE}"]})
    with scripted(answer) as server, pytest.raises(TpukitError) as caught:
        find.find(CloudTpu(cloud.session, PROJECT, server.url), "demo")
    assert not isinstance(caught.value, NotFound)
    assert ZONE in caught.value.why


def test_slices_are_chosen_by_labels_and_states_and_sorted() -> None:
    def made(name: str, state: str, **labels: str) -> Slice:
        return Slice(name, "p", "z", "v3-8", "image", state, labels=labels)

    all_of_them = [
        made("c", "READY", team="a"),
        made("b", "READY", team="b"),
        made("a", "CREATING", team="a"),
    ]

    def names(labels: Sequence[str] = (), states: Sequence[str] = (), by: str = "name") -> str:
        return "".join(each.name for each in find.chosen(all_of_them, labels, states, by))

    assert names() == "abc"
    assert names(["team=a"]) == "ac"
    assert names(["team"], ["ready"]) == "bc"
    assert names(["team=a", "gone"]) == ""
    assert names(by="state") == "abc"
    assert names(states=["creating", "READY"], by="created") == "abc"

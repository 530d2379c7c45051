"""What labels say of a slice's life, and how another end is set beside who changes labels too."""

from __future__ import annotations

import pytest
from support.local_cloud import Cloud, FakeClock
from support.slices import create, labelled

from tpukit.models import Slice
from tpukit.slices import lifetime
from tpukit.slices.lifetime import EXPIRES, PURPOSE, Lifetime

NOW = 1_700_000_000.0


def some(labels: dict[str, str], **given: str) -> Slice:
    words = {"accelerator_type": "v6e-8", "runtime_version": "image", "state": "READY", **given}
    created = "2023-11-14T20:13:20.5Z"  # two hours before NOW
    return Slice("demo", "project", "zone", created=created, labels=labels, **words)


def test_labels_say_when_it_was_asked_for_what_for_and_until_when() -> None:
    made = lifetime.labels(NOW, 5400.0, "Sweep #3 of ResNet")
    assert made == {
        "tpukit-created": "2023-11-14t22-13-20z",
        "tpukit-expires": "2023-11-14t23-43-20z",
        "tpukit-purpose": "sweep--3-of-resnet",
    }
    seen = lifetime.lifetime(some(dict(made)), NOW)
    expires = "2023-11-14T23:43:20Z"
    assert seen == Lifetime("sweep--3-of-resnet", expires, seconds_left=5400.0, hours=2.0)
    assert lifetime.lifetime(some(dict(made)), NOW + 5400.0).seconds_left == 0.0


def test_who_sets_no_end_has_none_and_one_that_nobody_can_read_is_none_and_is_shown() -> None:
    assert EXPIRES not in lifetime.labels(NOW, None, "")
    seen = lifetime.lifetime(some({EXPIRES: "tomorrow"}), NOW)
    assert (seen.expires, seen.seconds_left, seen.unreadable) == ("", None, "tomorrow")


def test_a_cost_is_the_user_s_own_rate_for_the_chips_and_the_hours_or_none() -> None:
    rates = lifetime.rates_of("v6e=2.5, v6e:spot=1,v2=1,v5e=1,v5e:spot=0.5")
    for given, cost in (
        ({}, 40.0),
        ({"provisioning": "spot"}, 16.0),
        ({"provisioning": "reserved"}, None),
        ({"accelerator_type": "v2-8"}, 8.0),  # of 8 cores, which are 4 chips
        ({"accelerator_type": "v5litepod-4"}, 8.0),  # which people call v5e
        ({"accelerator_type": "v5litepod-4", "provisioning": "spot"}, 4.0),
        ({"accelerator_type": "v3-8"}, None),
        ({"accelerator_type": "v6e-7"}, None),
    ):
        assert lifetime.lifetime(some({}, **given), NOW, rates).cost == cost, given


def test_a_slice_that_is_there_gets_an_end_and_a_purpose_where_it_has_none(
    cloud: Cloud, clock: FakeClock
) -> None:
    create(cloud)
    for ttl, purpose, wait, wanted, kept in (
        (3600.0, "first", 0.0, 3600.0, "first"),
        (7200.0, "second", 0.0, 3600.0, "first"),  # an end that lies ahead stays
        (600.0, "", 4000.0, 600.0, "first"),  # one that has passed does not
    ):
        clock.now += wait
        began = clock.time()
        labels = lifetime.labels(began, ttl, purpose)
        slice_ = create(cloud, labelled(cloud, labels=labels)).slice
        end = lifetime.seconds_of(slice_.labels[EXPIRES])
        assert end == pytest.approx(began + wanted, abs=90.0), ttl
        assert slice_.labels[PURPOSE] == kept
    assert any("still lives until" in state for state in cloud.states)

"""The stages of the main job, as far as they go without a worker that answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from local_cloud import ZONE, Cloud

from tpukit import bootstrap, firewall
from tpukit.clock import Deadline
from tpukit.errors import SecurityRefusal, TpukitError, TransportFailed
from tpukit.means import Means
from tpukit.remote.keys import ensure_key_pair
from tpukit.remote.ssh import Connector


@pytest.fixture
def means(prompt_cloud: Cloud, tmp_path: Path) -> Means:
    key = ensure_key_pair(tmp_path / "private", "tester")
    return Means(
        provider=prompt_cloud.tpu,
        firewall=prompt_cloud.firewall,
        connector=Connector(key, prompt_cloud.clock),
        key=key,
        user="ada",
        source_ranges=("192.0.2.7/32",),
        source_address=lambda address: "198.51.100.9",
        clock=prompt_cloud.clock,
        journal=prompt_cloud.journal,
    )


def test_our_key_and_tag_are_in_the_slice_from_the_start(prompt_cloud: Cloud, means: Means) -> None:
    given = prompt_cloud.request(metadata={"ssh-keys": "bob:key", "a": "1"}, tags=("mine",))
    wanted = bootstrap.with_access(given, means)
    assert wanted.metadata["a"] == "1"
    assert wanted.metadata["ssh-keys"].splitlines()[0] == "bob:key"
    assert wanted.metadata["ssh-keys"].splitlines()[1].startswith("ada:ssh-ed25519 ")
    assert wanted.tags == ("mine", firewall.tag(given.project, given.zone, given.name))


def test_opening_ties_a_slice_that_has_no_tag_to_its_rule(
    prompt_cloud: Cloud, means: Means
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(tags=("mine",)))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    tied, rule, changed = bootstrap.open_firewall(means, found)
    assert changed
    assert tied.tags == ("mine", rule.name)
    assert prompt_cloud.tpu.get(ZONE, "demo").tags == tied.tags
    assert not bootstrap.open_firewall(means, tied)[2]


def test_without_ranges_the_caller_s_own_address_is_admitted(
    prompt_cloud: Cloud, means: Means
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    found = prompt_cloud.tpu.get(ZONE, "demo")
    _, rule, _ = bootstrap.open_firewall(replace(means, source_ranges=()), found)
    assert rule.source_ranges == ("198.51.100.9/32",)


def test_a_world_wide_range_of_the_settings_is_refused_before_anything_is_made(
    prompt_cloud: Cloud, means: Means
) -> None:
    prompt_cloud.tpu.create(bootstrap.with_access(prompt_cloud.request(), means))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    with pytest.raises(SecurityRefusal):
        bootstrap.open_firewall(replace(means, source_ranges=("0.0.0.0/0",)), found)
    assert prompt_cloud.firewall.list() == ()


def test_a_slice_without_workers_has_no_address_to_find_out(
    prompt_cloud: Cloud, means: Means
) -> None:
    prompt_cloud.tpu.create(bootstrap.with_access(prompt_cloud.request(), means))
    found = replace(prompt_cloud.tpu.get(ZONE, "demo"), workers=())
    with pytest.raises(TpukitError, match="no workers yet"):
        bootstrap.open_firewall(replace(means, source_ranges=()), found)


def test_a_connection_is_tried_for_as_long_as_was_asked(prompt_cloud: Cloud, means: Means) -> None:
    """Paper workers are nowhere: the rule is there, so only the patience ends it."""
    prompt_cloud.tpu.create(bootstrap.with_access(prompt_cloud.request(), means))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    found = replace(
        found, workers=tuple(replace(each, external_address="127.0.0.1") for each in found.workers)
    )
    bootstrap.open_firewall(replace(means, source_ranges=("198.51.100.9/32",)), found)
    clock = prompt_cloud.clock
    workers = bootstrap.remote_workers(means, found, Deadline.after(clock, 600.0), patience=1.0)
    started = clock.monotonic()
    with pytest.raises(TransportFailed):
        workers[0].connect()
    assert clock.monotonic() - started < 60.0

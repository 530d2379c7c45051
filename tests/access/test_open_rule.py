"""A slice tied to its rule, and the rule opened to us."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.local_cloud import ZONE, Cloud

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.access.key import with_access
from tpukit.errors import (
    SecurityRefusal,
    TpukitError,
)


def test_opening_ties_a_slice_that_has_no_tag_to_its_rule(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request(tags=("mine",)))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    tied, rule, changed = ssh_rule.open_for(context, found)
    assert changed
    assert tied.tags == ("mine", rule.name)
    assert prompt_cloud.tpu.get(ZONE, "demo").tags == tied.tags
    assert not ssh_rule.open_for(context, tied)[2]


def test_without_ranges_the_caller_s_own_address_is_admitted(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(prompt_cloud.request())
    found = prompt_cloud.tpu.get(ZONE, "demo")
    _, rule, _ = ssh_rule.open_for(replace(context, source_ranges=()), found)
    assert rule.source_ranges == ("198.51.100.9/32",)


def test_a_world_wide_range_of_the_settings_is_refused_before_anything_is_made(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = prompt_cloud.tpu.get(ZONE, "demo")
    with pytest.raises(SecurityRefusal):
        ssh_rule.open_for(replace(context, source_ranges=("0.0.0.0/0",)), found)
    assert prompt_cloud.firewall.list() == ()


def test_a_slice_without_workers_has_no_address_to_find_out(
    prompt_cloud: Cloud, context: Context
) -> None:
    prompt_cloud.tpu.create(with_access(prompt_cloud.request(), context))
    found = replace(prompt_cloud.tpu.get(ZONE, "demo"), workers=())
    with pytest.raises(TpukitError, match="no workers yet"):
        ssh_rule.open_for(replace(context, source_ranges=()), found)

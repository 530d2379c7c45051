"""The cost of a slice so far, in the words of a progress line."""

from __future__ import annotations

from datetime import UTC, datetime

from support.local_cloud import Cloud, FakeClock

from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.models import Slice


def toolkit(cloud: Cloud, clock: FakeClock, **variables: str) -> Toolkit:
    return Toolkit(GlobalFlags(), environ={**cloud.environment(), **variables}, clock=clock)


def test_the_cost_so_far_grows_and_is_unknown_without_a_rate(
    cloud: Cloud, clock: FakeClock
) -> None:
    made = datetime.fromtimestamp(clock.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    slice_ = Slice("demo", "project", "zone", "v3-8", "image", "READY", created=made)
    cost = toolkit(cloud, clock, TPUKIT_RATES="v3=2").cloud.cost_so_far(slice_)
    assert cost() == "cost so far 0.00"
    clock.now += 1800.0
    assert cost() == "cost so far 4.00"  # four chips
    assert toolkit(cloud, clock).cloud.cost_so_far(slice_)() == ""

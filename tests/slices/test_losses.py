"""The states in which workers cannot answer, and the command that helps."""

from __future__ import annotations

import pytest

from tpukit.errors import SliceLost, TpukitError
from tpukit.models import Slice, Worker
from tpukit.slices import losses


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_lost_slice_cannot_be_reached(state: str) -> None:
    with pytest.raises(SliceLost) as caught:
        losses.check_reachable(Slice("demo", "p", "z", "v3-8", "tpu-ubuntu2204-base", state))
    assert str(caught.value.fix) == "tpukit up v3-8 demo --zone z --internal-ips --recreate"


@pytest.mark.parametrize(
    ("state", "fix"),
    [("STOPPED", "tpukit start demo --zone z"), ("STOPPING", "None")],
)
def test_a_slice_at_rest_cannot_be_reached(state: str, fix: str) -> None:
    with pytest.raises(TpukitError, match=f"is {state}") as caught:
        losses.check_reachable(Slice("demo", "p", "z", "v3-8", "i", state))
    assert str(caught.value.fix) == fix


def test_a_slice_that_somebody_deletes_is_lost() -> None:
    with pytest.raises(SliceLost, match="demo is being deleted"):
        losses.check_reachable(Slice("demo", "p", "z", "v3-8", "i", "DELETING"))


@pytest.mark.parametrize("state", ["READY", "REPAIRING", "CREATING", "99"])
def test_any_other_state_may_answer(state: str) -> None:
    workers = (Worker(0, "10.0.0.2"),)
    losses.check_reachable(Slice("demo", "p", "z", "v3-8", "i", state, workers=workers))

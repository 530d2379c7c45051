"""Claim a slice that is deleted if nobody uses it in time."""

from __future__ import annotations

from tpukit.clock import Deadline
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice
from tpukit.slices.last_seen import OnState
from tpukit.slices.lifetime import CLAIM
from tpukit.slices.update import Edits, update

#: The edits that claim a slice.
CLAIMED = Edits(labels={CLAIM: None}, ours=True)


def claim(
    provider: SliceProvider, slice_: Slice, *, deadline: Deadline, on_state: OnState
) -> Slice:
    """Return the slice without its label for a claim; make no call if it has none.

    Raises the errors of `update`, for example if the slice is already being deleted.
    """
    if CLAIM not in slice_.labels:
        return slice_
    claimed = update(provider, slice_, CLAIMED, deadline=deadline).slice
    on_state(f"slice {slice_.name}: claimed, so it stays until its end or your delete")
    return claimed

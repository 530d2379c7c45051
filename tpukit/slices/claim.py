"""Claim a slice that somebody uses: no claim time, search or gang deletes it then."""

from __future__ import annotations

from collections.abc import Mapping

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice
from tpukit.slices.last_seen import OnState
from tpukit.slices.lifetime import CLAIM
from tpukit.slices.naming import FOUND, GANG, SEARCH, is_unfinished
from tpukit.slices.update import Edits, update


def in_use(slice_: Slice) -> Mapping[str, str | None]:
    """Return the changes of labels for a slice that somebody uses from now on, if any."""
    claimed = {key: None for key in (CLAIM, GANG) if key in slice_.labels}
    return {**claimed, **({SEARCH: FOUND} if is_unfinished(slice_) else {})}


def claim(
    provider: SliceProvider, slice_: Slice, *, deadline: Deadline, on_state: OnState
) -> Slice:
    """Return the slice with the labels of one in use; make no call if it has them.

    Raises the errors of `update`, for example if the slice is already being deleted.
    """
    labels = in_use(slice_)
    if not labels:
        return slice_
    claimed = update(provider, slice_, Edits(labels=labels, ours=True), deadline=deadline).slice
    if GANG in labels:
        on_state(f"slice {slice_.name}: it is of a gang no more, which cannot delete it now")
    if CLAIM in labels:
        on_state(f"slice {slice_.name}: claimed, so it stays until its end or your delete")
    return claimed


def found(provider: SliceProvider, slice_: Slice, *, deadline: Deadline) -> Slice:
    """Return a slice whose search has ended, so that no other search deletes it.

    It may still wait for its claim. Raises the errors of `update`.
    """
    if not is_unfinished(slice_):
        return slice_
    edits = Edits(labels={SEARCH: FOUND}, ours=True)
    return update(provider, slice_, edits, deadline=deadline).slice


def unlabelled(error: TpukitError) -> str:
    """Return the message that a slice could not be marked as found, for this reason."""
    return f"its label {SEARCH} stays, so another search may delete it: {error}"

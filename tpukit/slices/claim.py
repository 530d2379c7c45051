"""Claim a slice that somebody uses: no claim time, search or gang deletes it then."""

from __future__ import annotations

from collections.abc import Mapping

from tpukit.clock import Deadline
from tpukit.errors import NotAllowed, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice
from tpukit.slices.last_seen import OnState
from tpukit.slices.lifetime import CLAIM
from tpukit.slices.naming import FOUND, GANG, SEARCH, is_unfinished


def in_use(slice_: Slice) -> Mapping[str, str | None]:
    """Return the changes of labels for a slice that somebody uses from now on, if any."""
    claimed = {key: None for key in (CLAIM, GANG) if key in slice_.labels}
    return {**claimed, **({SEARCH: FOUND} if is_unfinished(slice_) else {})}


def claim(
    provider: SliceProvider, slice_: Slice, *, deadline: Deadline, on_state: OnState
) -> Slice:
    """Return the slice with the labels of one in use; make no call if it has them.

    If our account may not change labels, `on_state` gets a warning; a slice with a claim time
    raises `NotAllowed`. Raises the errors of `update`, for example if it is already being deleted.
    """
    labels = in_use(slice_)
    if not labels:
        return slice_
    try:
        claimed = _relabelled(provider, slice_, labels, deadline)
    except NotAllowed as error:
        if CLAIM in labels:  # its time is short
            raise
        on_state(f"slice {slice_.name}: {unlabelled(error, *labels)}")
        return slice_
    if GANG in labels:
        on_state(f"slice {slice_.name}: it has left its gang, which does not delete it now")
    if CLAIM in labels:
        on_state(f"slice {slice_.name}: claimed, so it stays until its end or your delete")
    return claimed


def found(provider: SliceProvider, slice_: Slice, *, deadline: Deadline) -> Slice:
    """Return a slice whose search has ended, so that no other search deletes it.

    It may still wait for its claim. Raises the errors of `update`.
    """
    if not is_unfinished(slice_):
        return slice_
    return _relabelled(provider, slice_, {SEARCH: FOUND}, deadline)


def unlabelled(error: TpukitError, *labels: str) -> str:
    """Return the message that labels of a slice could not be changed; without names, `SEARCH`."""
    named, other = ", ".join(labels) or SEARCH, "its gang" if GANG in labels else "another search"
    return f"its label {named} stays, so {other} may delete it: {error}"


def _relabelled(
    provider: SliceProvider, slice_: Slice, labels: Mapping[str, str | None], deadline: Deadline
) -> Slice:
    from tpukit.slices.update import Edits, update  # most slices need no change

    return update(provider, slice_, Edits(labels=labels, ours=True), deadline=deadline).slice

"""Claim a slice that somebody uses: neither its claim time nor a later search deletes it then."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tpukit.clock import Deadline
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice
from tpukit.slices.last_seen import OnState
from tpukit.slices.lifetime import CLAIM
from tpukit.slices.naming import FOUND, SEARCH, is_unfinished
from tpukit.slices.update import Edits, update


def claim(
    provider: SliceProvider, slice_: Slice, *, deadline: Deadline, on_state: OnState
) -> Slice:
    """Return the slice without its label for a claim, and as found if it is of a search.

    It makes no call if both are done. Raises the errors of `update`, for example if the slice is
    already being deleted.
    """
    waits = CLAIM in slice_.labels
    slice_ = found(provider, slice_, deadline=deadline, labels={CLAIM: None} if waits else {})
    if waits:
        on_state(f"slice {slice_.name}: claimed, so it stays until its end or your delete")
    return slice_


def found(
    provider: SliceProvider,
    slice_: Slice,
    *,
    deadline: Deadline,
    labels: Mapping[str, str | None] = MappingProxyType({}),
) -> Slice:
    """Return a slice of a search that has ended: from now on, no other search deletes it.

    Other `labels` change with the same call. Raises the errors of `update`.
    """
    labels = {**labels, **({SEARCH: FOUND} if is_unfinished(slice_) else {})}
    if not labels:
        return slice_
    return update(provider, slice_, Edits(labels=labels, ours=True), deadline=deadline).slice

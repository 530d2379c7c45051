"""What asks for the next slice, in place of one that was lost."""

from __future__ import annotations

from dataclasses import replace

from tpukit.access import ssh_rule
from tpukit.cloud.node_json import CAPACITY
from tpukit.models import Slice, SliceChange, SliceRequest
from tpukit.slices import lifetime, naming


def request_of(slice_: Slice) -> SliceRequest:
    """Return the request that makes such a slice again.

    It lacks the labels of one create and the tag of the slice's rule. It keeps the slice's end: the
    next one has no more time.
    """
    once = (naming.NONCE, naming.SEARCH, lifetime.CREATED, CAPACITY)
    labels = {key: value for key, value in slice_.labels.items() if key not in once}
    tags = tuple(each for each in slice_.tags if each != ssh_rule.rule_name(slice_))
    return replace(slice_.request, labels=labels, tags=tags)


def refreshed(request: SliceRequest, slice_: Slice) -> SliceRequest:
    """Return the request with the labels, tags, metadata and data disks that the slice has now."""
    if slice_.unreadable:
        return request
    now = request_of(slice_)
    parts = SliceChange(now.labels, now.tags, now.metadata, now.data_disks).parts
    return replace(request, **parts)

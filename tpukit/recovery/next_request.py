"""What asks for the next slice, in place of one that was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tpukit.access import ssh_rule
from tpukit.cloud.node_json import CAPACITY
from tpukit.errors import BadInput, Fix
from tpukit.models import Slice, SliceChange, SliceRequest
from tpukit.slices import lifetime, naming


def request_of(slice_: Slice) -> SliceRequest:
    """Return the request that makes such a slice again.

    It lacks the labels of one create and the tag of the slice's rule. It keeps the slice's end, but
    not the moment of its create: the next slice has no more time than this one.
    """
    once = (naming.NONCE, naming.SEARCH, lifetime.CREATED, CAPACITY)
    host, region = slice_.network_project, slice_.zone.rpartition("-")[0]
    place: dict[str, Any] = {"network": slice_.network or "default"}
    place["subnetwork"] = slice_.subnetwork
    if host not in ("", slice_.project):
        place["network"] = f"projects/{host}/global/networks/{slice_.network}"
        path = f"projects/{host}/regions/{region}/subnetworks/{slice_.subnetwork}"
        place["subnetwork"] = path if slice_.subnetwork else ""
    return SliceRequest(
        name=slice_.name,
        project=slice_.project,
        zone=slice_.zone,
        accelerator_type=slice_.accelerator_type,
        runtime_version=slice_.runtime_version,
        provisioning=slice_.provisioning,
        **place,
        external_addresses=slice_.external_addresses,
        labels={key: value for key, value in slice_.labels.items() if key not in once},
        tags=tuple(each for each in slice_.tags if each != ssh_rule.rule_name(slice_)),
        metadata=slice_.metadata,
        data_disks=slice_.data_disks,
        service_account=slice_.service_account,
    )


def refreshed(request: SliceRequest, slice_: Slice) -> SliceRequest:
    """Return the request with the labels, tags, metadata and data disks that the slice has now."""
    if slice_.unreadable:
        return request
    now = request_of(slice_)
    parts = SliceChange(now.labels, now.tags, now.metadata, now.data_disks).parts
    return replace(request, **parts)


def check_places(request: SliceRequest, zones: Sequence[str]) -> None:
    """Raise `BadInput` if the slice cannot be made in one of the zones."""
    if zones and request.data_disks:
        raise BadInput(
            "a slice with data disks is made again in its own zone alone",
            why="a disk is in one zone",
            fix=Fix(note="leave out --zones"),
        )

"""Data disks whose slices are gone: they stay, and bill, and no list of slices shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tpukit.cloud.provider import DiskProvider
from tpukit.models import Slice, UnusedDisk

#: Disks that are looked for, those that slices had last.
_MOST = 100
_SOURCE = re.compile(r"projects/[\w.:-]+/((zones|regions)/[\w-]+/disks/[\w-]+)")


def left_over(
    disks: DiskProvider, had: Mapping[str, str], slices: Iterable[Slice]
) -> list[UnusedDisk]:
    """Return the disks that are there and nothing uses, of those that slices `had`.

    `slices` are all there are. tpukit makes no disks, and no label of a disk says whose slice it
    was for: which ones slices had is the journal's to know. Raises `TpukitError`.
    """
    used = {_place(disk.source) for each in slices for disk in each.data_disks}
    sought = [source for source in had if _place(source) not in {"", *used}][-_MOST:]
    found = ((source, disks.unused(source)) for source in sought)
    return [UnusedDisk(source, size, had[source]) for source, size in found if size is not None]


def _place(source: str) -> str:
    """Return where a disk is and its name, "" for what is none: its project may be a number."""
    match = _SOURCE.fullmatch(source)
    return match[1] if match else ""

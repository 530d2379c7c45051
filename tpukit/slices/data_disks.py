"""Data disks of deleted slices, which stay and bill, although no list of slices shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tpukit.google.provider import DiskProvider
from tpukit.models import Slice, UnusedDisk

#: The most disks to check, latest first.
_MOST = 100
_SOURCE = re.compile(r"projects/[\w.:-]+/((zones|regions)/[\w-]+/disks/[\w-]+)")


def left_over(
    disks: DiskProvider, had: Mapping[str, str], slices: Iterable[Slice]
) -> list[UnusedDisk]:
    """Return the disks in `had`, the journal's disks, that exist and are unused.

    `slices` are all existing slices. Disks carry no label of tpukit's, so only the journal knows
    which slices they belonged to. Raises `TpukitError` if the API refuses.
    """
    used = {_place(disk.source) for slice_ in slices for disk in slice_.data_disks}
    sought = [source for source in had if _place(source) not in {"", *used}][-_MOST:]
    sizes = ((source, disks.unused(source)) for source in sought)
    return [UnusedDisk(source, size, had[source]) for source, size in sizes if size is not None]


def _place(source: str) -> str:
    """Return a disk's path without its project, which may be a name or a number; "" if no disk."""
    match = _SOURCE.fullmatch(source)
    return match[1] if match else ""

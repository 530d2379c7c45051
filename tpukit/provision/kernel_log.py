"""The kernel's log of a worker: Google's healthAgent can fill the disk with it.

healthagent.service of tpu-ubuntu2204-base, 2026: it ran out of memory repeatedly, and the kernel
logged 16 GB about it, until no login was possible (docs/reference/real-workers.md).
"""

from __future__ import annotations

_MUCH = 1 << 30  #: bytes; a worker at work writes a few MB a week


def kernel_log_advice(size: int) -> str:
    """Return a diagnosis and a remedy for a log of so many bytes; "" for an ordinary size."""
    if size < _MUCH:
        return ""
    return (
        f"/var/log/kern.log has {size / 1e9:.0f} GB, because healthAgent fills it:"
        " sudo systemctl restart healthagent.service ends that, and"
        " sudo truncate --size 0 /var/log/kern.log makes room"
    )

"""The kernel's log of a worker, which Google's healthAgent can fill the disk with.

healthagent.service of tpu-ubuntu2204-base, 2026: out of memory again and again, it had the kernel
write 16 GB, until nobody could log in (docs/reference/real-workers.md).
"""

from __future__ import annotations

_MUCH = 1 << 30  #: bytes; a worker at work writes a few MB a week


def kernel_log_advice(size: int) -> str:
    """Return what a log of so many bytes says, and what helps; nothing for an ordinary one."""
    if size < _MUCH:
        return ""
    return (
        f"/var/log/kern.log has {size / 1e9:.0f} GB, as healthAgent fills it:"
        " sudo systemctl restart healthagent.service ends that, and"
        " sudo truncate --size 0 /var/log/kern.log makes room"
    )

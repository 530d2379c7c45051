"""The control groups of machines: each machine has its own below the emulator's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def make_groups(name: str) -> list[Path]:
    """Make a group of this name in each hierarchy that systemd uses, and return them."""
    groups = [hierarchy / name for hierarchy in _hierarchies()]
    for group in groups:
        group.mkdir(exist_ok=True)
    return groups


def remove_groups(prefix: str) -> None:
    """Remove the groups with names that begin with `prefix`, except groups with processes."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob(f"{prefix}*"):
            inner = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
            for folder in (*inner, group):
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _hierarchies() -> Iterator[Path]:
    """Yield this process's groups: cgroups(7), "/proc files", and systemd's hybrid layout."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers == "name=systemd":
            yield _ROOT / "systemd" / place.lstrip("/")
        elif not controllers:
            unified = _ROOT / "unified"
            yield (unified if unified.is_dir() else _ROOT) / place.lstrip("/")

"""Processes that tests look at, and waits for what other processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def eventually(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something holds; fail if it does not in time."""
    give_up_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come about"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def sleepers(seconds: str) -> list[psutil.Process]:
    """Return the sleeps of so many seconds that live, in whatever namespaces."""
    listed = psutil.process_iter(["cmdline", "status"])
    return [
        each
        for each in listed
        if each.info["cmdline"] == ["sleep", seconds]
        and each.info["status"] != psutil.STATUS_ZOMBIE
    ]

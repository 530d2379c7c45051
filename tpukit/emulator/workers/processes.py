"""Finds and ends the processes of emulated workers.

Every command of a worker carries a marker in its environment; what it starts inherits the marker or
is its child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

MARKER = "TPUKIT_EMULATOR_WORKER"

#: The word of an emulator's command line that no other program has.
_EMULATOR = "tpukit.emulator"
_GRACE = 0.5  #: seconds between TERM and KILL
_LIMIT = 30.0  #: seconds after which ending is given up: only a process stuck in the kernel resists


def marked(prefix: str) -> list[psutil.Process]:
    """Return the live processes whose marker begins with `prefix`, and all their children."""
    roots = [process for process in psutil.process_iter() if marker(process).startswith(prefix)]
    return _with_children(roots)


def marked_by_any() -> list[psutil.Process]:
    """Return the live processes of every emulator's workers, and all their children."""
    return _with_children([process for process in psutil.process_iter() if marker(process)])


def emulator_directories(mine: Callable[[psutil.Process], bool]) -> set[Path]:
    """Return the directories of the emulators among the processes that `mine` accepts."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if _EMULATOR in words and "--directory" in words[:-1] and mine(process):
                place = Path(process.cwd(), words[words.index("--directory") + 1])
                found.add(place)
    return found


def of_this_user(process: psutil.Process) -> bool:
    try:
        return bool(process.uids().real == os.getuid())
    except psutil.Error:
        return False


def descendants(pid: int) -> list[psutil.Process]:
    """Return the live processes below `pid`."""
    try:
        return [child for child in psutil.Process(pid).children(recursive=True) if _alive(child)]
    except psutil.NoSuchProcess:
        return []


def dead_children() -> set[int]:
    """Return this process's children that ended and were not reaped."""
    return {child.pid for child in psutil.Process().children() if not _alive(child)}


def end(find: Callable[[], list[psutil.Process]], grace: float = _GRACE) -> None:
    """End what `find` finds, politely for `grace` seconds, until it finds nothing."""
    polite_until = time.monotonic() + grace
    give_up_at = polite_until + _LIMIT
    asked: set[psutil.Process] = set()
    while (found := find()) and time.monotonic() < give_up_at:
        late = time.monotonic() >= polite_until
        _send(found if late else set(found) - asked, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(found)
        time.sleep(0.02)


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)


def _with_children(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = set()
    for root in roots:
        with contextlib.suppress(psutil.Error):
            found.update([root, *root.children(recursive=True)])
    return [process for process in found if _alive(process)]


def marker(process: psutil.Process) -> str:
    """Return the marker of a process; empty where there is none or it cannot be read."""
    try:
        return str(process.environ().get(MARKER, ""))
    except (psutil.Error, OSError):
        return ""


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False

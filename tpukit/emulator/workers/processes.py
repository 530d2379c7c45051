"""Find and end the processes of emulated workers.

Every command of a worker has a marker in its environment. The processes that it starts inherit the
marker, or are its children.
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

#: Only an emulator's command line contains this word.
_EMULATOR = "tpukit.emulator"
_GRACE = 0.5  #: seconds between TERM and KILL
_LIMIT = 30.0  #: seconds until `end` gives up: only a process stuck in the kernel survives KILL
#: Looks without a process, one after the other, after which none is left.
_EMPTY_LOOKS = 2


def marked(prefix: str) -> list[psutil.Process]:
    """Return the live processes with a marker that begins with `prefix`, and their descendants."""
    roots = [process for process in psutil.process_iter() if marker(process).startswith(prefix)]
    return _with_children(roots)


def marked_by_any() -> list[psutil.Process]:
    """Return the live processes of every emulator's workers, and their descendants."""
    return _with_children([process for process in psutil.process_iter() if marker(process)])


def emulator_directories(mine: Callable[[psutil.Process], bool]) -> set[Path]:
    """Return the directories of the emulators among the processes that `mine` accepts."""
    directories = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if _EMULATOR in words and "--directory" in words[:-1] and mine(process):
                place = Path(process.cwd(), words[words.index("--directory") + 1])
                directories.add(place)
    return directories


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
    """Return this process's children that have ended and are not reaped yet."""
    return {child.pid for child in psutil.Process().children() if not _alive(child)}


def end(find: Callable[[], list[psutil.Process]], grace: float = _GRACE) -> None:
    """Send TERM to the processes that `find` returns, KILL after `grace` s, until none is left.

    A process that begins another program has no environment for a moment, so the first look
    without a process may have missed one.
    """
    polite_until = time.monotonic() + grace
    give_up_at = polite_until + _LIMIT
    asked: set[psutil.Process] = set()
    empty_looks = 0
    while empty_looks < _EMPTY_LOOKS and time.monotonic() < give_up_at:
        living = find()
        empty_looks = 0 if living else empty_looks + 1
        late = time.monotonic() >= polite_until
        _send(living if late else set(living) - asked, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(living)
        time.sleep(0.02)


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)


def _with_children(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    family = set()
    for root in roots:
        with contextlib.suppress(psutil.Error):
            family.update([root, *root.children(recursive=True)])
    return [process for process in family if _alive(process)]


def marker(process: psutil.Process) -> str:
    """Return the marker of a process, or "" if it has none or it cannot be read."""
    try:
        return str(process.environ().get(MARKER, ""))
    except (psutil.Error, OSError):
        return ""


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False

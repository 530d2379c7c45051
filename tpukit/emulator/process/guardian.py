"""The process above the emulator, so that workers' processes outlive neither.

The guardian is the emulator's parent and does nothing but wait; the emulator watches a pipe that
ends with the guardian. Where the system allows it (Linux) each adopts every orphan below it, so
that whichever survives the other has all that the workers had started among its own descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_REAP_SECONDS = 0.5
_PR_SET_CHILD_SUBREAPER = 36  #: include/uapi/linux/prctl.h


def guarded(run: Callable[[int], int], clean_up: Callable[[], None]) -> int:
    """Fork, and return in both processes with an exit status.

    The child returns from `run`, called with a descriptor that ends when the guardian does. The
    parent calls `clean_up` after the child is gone, however it went.
    """
    watched, held = os.pipe()
    emulator = os.fork()
    _adopt_orphans()
    if emulator == 0:
        os.close(held)
        return run(watched)
    os.close(watched)
    _forward_signals(emulator)
    status = _wait(emulator)
    clean_up()
    return status


def reap_orphans(ending: threading.Event) -> None:
    """Reap adopted orphans until `ending` is set.

    Whoever started a child reaps it at once; one that is a zombie at two looks is an orphan.
    """
    dead: set[int] = set()
    while not ending.wait(_REAP_SECONDS):
        before, dead = dead, _dead_children()
        for pid in dead & before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _dead_children() -> set[int]:
    """Return the children that ended and still wait to be reaped; one system call if none does."""
    from tpukit.emulator.workers import processes

    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return processes.dead_children() if found else set()


def _wait(emulator: int) -> int:
    """Reap every orphan until the emulator itself ends, and return its exit status."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == emulator:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _forward_signals(emulator: int) -> None:
    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(emulator, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

"""The process above the emulator, so that neither can die and leave workers' processes behind.

The guardian is the emulator's parent and does nothing but wait. Where the system allows it (Linux)
it adopts every orphan below it, so that after the emulator's death all that workers had started are
its own children. The emulator in its turn watches a pipe that ends with the guardian.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

_PR_SET_CHILD_SUBREAPER = 36  #: include/uapi/linux/prctl.h


def guarded(run: Callable[[int], int], sweep: Callable[[], None]) -> int:
    """Fork, and return in both processes with an exit status.

    The child returns from `run`, called with a descriptor that ends when the guardian does. The
    parent calls `sweep` after the child is gone, however it went.
    """
    _adopt_orphans()
    watched, held = os.pipe()
    emulator = os.fork()
    if emulator == 0:
        os.close(held)
        return run(watched)
    os.close(watched)
    _hand_on_signals(emulator)
    status = _wait(emulator)
    sweep()
    return status


def _wait(emulator: int) -> int:
    """Reap every orphan until the emulator itself ends, and return its exit status."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == emulator:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _hand_on_signals(emulator: int) -> None:
    def hand_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(emulator, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, hand_on)


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

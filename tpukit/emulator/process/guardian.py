"""The emulator's parent process, which ends the workers' processes if the emulator dies.

The guardian only waits. The emulator watches a pipe that ends with the guardian, so it also notices
the guardian's death. On Linux both adopt the orphans below them: the survivor then finds all
processes of the workers among its descendants.
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
    """Fork, and return an exit status in both processes.

    The child calls `run` with a descriptor that ends when the guardian ends. The parent waits for
    the child to end, in whatever way, and then calls `clean_up`.
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

    The emulator's own code reaps its children at once, so a child that is a zombie twice in a row
    is an orphan.
    """
    dead: set[int] = set()
    while not ending.wait(_REAP_SECONDS):
        before, dead = dead, _dead_children()
        for pid in dead & before:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _dead_children() -> set[int]:
    """Return the children to reap; this takes a single system call if there are none."""
    from tpukit.emulator.workers import processes

    try:
        zombie = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return processes.dead_children() if zombie else set()


def _wait(emulator: int) -> int:
    """Reap orphans until the emulator itself ends, and return its exit status."""
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

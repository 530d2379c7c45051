"""Handlers that let SIGINT, SIGTERM and SIGHUP end a command at any moment."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import CodeType

from tpukit.errors import TerminationSignal

#: Added to the number of a signal that must be sent again.
_AGAIN = 128

#: Seconds between checks of whether the hook still runs, which takes microseconds.
_LOOK_AGAIN_SECONDS = 0.001

#: Seconds until the main thread is sent a signal again. A signal that arrives just before the
#: thread falls asleep does not wake it.
_WAKE_AGAIN_SECONDS = 0.01


def end_at_signals() -> None:
    """Let SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP `TerminationSignal`.

    Those that are ignored stay so (nohup).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if interrupt else _terminate)


def ignore_interrupts() -> None:
    """Ignore further Ctrl-C, because the command is already ending.

    Otherwise it would cut off the last lines, or kill the process during Python's shutdown.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def lose_none() -> None:
    """Let a signal interrupt the main thread at any moment.

    Python runs handlers in the main thread. It stays asleep if the signal arrives just before it
    begins to wait, or if the system delivers the signal to another thread. So a helper thread
    sends signals to the main thread itself, until a handler has run there.

    Python discards an exception that a handler raises during a finaliser, and calls
    `sys.unraisablehook`. The helper thread then sends the signal again. It first waits until the
    hook has returned, because an exception in the hook would be discarded too.
    """
    asked, told = os.pipe()
    os.set_blocking(told, False)
    main_thread = threading.get_ident()
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    awakenings = 0

    def awake(number: int, frame: object) -> None:
        nonlocal awakenings
        awakenings += 1

    signal.signal(signal.SIGURG, awake)

    def wake() -> None:
        while numbers := os.read(asked, 64):
            lost = [number - _AGAIN for number in numbers if number > _AGAIN]
            if lost:
                while _runs(main_thread, send_again.__code__):
                    time.sleep(_LOOK_AGAIN_SECONDS)
                signal.pthread_kill(main_thread, lost[0])
            elif set(numbers) != {signal.SIGURG}:
                before = awakenings
                while awakenings == before:
                    signal.pthread_kill(main_thread, signal.SIGURG)
                    time.sleep(_WAKE_AGAIN_SECONDS)

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(lost)
        elif isinstance(lost.exc_value, TerminationSignal):
            os.write(told, bytes([_AGAIN + signal.SIGTERM]))
        else:
            os.write(told, bytes([_AGAIN + signal.SIGINT]))

    sys.unraisablehook = send_again
    threading.Thread(target=wake, name="tpukit-signals", daemon=True).start()


def _runs(thread: int, code: CodeType) -> bool:
    """Return True if a thread is inside a function."""
    frame = sys._current_frames().get(thread)  # documented, despite its name
    while frame and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _terminate(number: int, frame: object) -> None:
    raise TerminationSignal

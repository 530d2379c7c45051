"""What SIGINT, SIGTERM and SIGHUP do to a command: they end it, whatever it is about."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import CodeType

from tpukit.errors import TerminationSignal

#: Added to the number of a signal that is to be sent again.
_AGAIN = 128

#: How often the hook is looked at, which runs for microseconds.
_LOOK_AGAIN_SECONDS = 0.001


def end_at_termination() -> None:
    """Let SIGTERM and SIGHUP raise `TerminationSignal`; what is ignored, as by nohup, stays so."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _terminate)


def lose_none() -> None:
    """Let a signal end what the main thread does, whichever moment it comes at.

    Python's handlers run when the main thread next does, and a signal that comes as that begins to
    wait, or that the system gave to another thread, does not wake it. One sent to it alone does.
    What a handler raises while something is finalised is lost, and the hook for what cannot be
    raised is told: the signal is sent again, by another thread, once the hook has returned, as
    what a handler raises in the hook is lost too.
    """
    asked, told = os.pipe()
    os.set_blocking(told, False)
    main_thread = threading.get_ident()
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGURG, lambda *_: None)

    def wake() -> None:
        while numbers := os.read(asked, 64):
            lost = [each - _AGAIN for each in numbers if each > _AGAIN]
            while lost and _runs(main_thread, send_again.__code__):
                time.sleep(_LOOK_AGAIN_SECONDS)
            if lost or set(numbers) != {signal.SIGURG}:
                signal.pthread_kill(main_thread, lost[0] if lost else signal.SIGURG)

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
    """Whether a thread is inside a function."""
    frame = sys._current_frames().get(thread)  # documented, in spite of its name
    while frame and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _terminate(number: int, frame: object) -> None:
    raise TerminationSignal

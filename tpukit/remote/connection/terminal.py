"""An interactive session between this terminal and a worker's shell."""

from __future__ import annotations

import contextlib
import os
import selectors
import termios
import tty
from collections.abc import Iterator
from typing import Any

_CHUNK = 1 << 15
#: Seconds between looks at the terminal's size. A handler of SIGWINCH would take the channel's lock
#: inside the very thread that may hold it.
_POLL_SECONDS = 0.25


def interact(channel: Any, keyboard: int, screen: int) -> int:
    """Join two file descriptors and an open channel until the channel ends; return its status.

    What the worker writes reaches the screen raw: the one place where it does.
    """
    size = terminal_size(screen)
    with _raw(keyboard), selectors.DefaultSelector() as selector:
        selector.register(keyboard, selectors.EVENT_READ)
        selector.register(channel, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select(_POLL_SECONDS)}
            if channel in ready and not _show(channel, screen):
                return int(channel.recv_exit_status())
            if keyboard in ready and not _type(channel, keyboard):
                selector.unregister(keyboard)
            if size != terminal_size(screen):
                size = terminal_size(screen)
                channel.resize_pty(*size)


def terminal_size(screen: int) -> tuple[int, int]:
    """Return columns and rows; 80 and 24 where the descriptor is no terminal."""
    try:
        columns, rows = os.get_terminal_size(screen)
    except OSError:
        return 80, 24
    return columns, rows


def _show(channel: Any, screen: int) -> bool:
    left = memoryview(channel.recv(_CHUNK))
    more = bool(left)
    while left:
        left = left[os.write(screen, left) :]
    return more


def _type(channel: Any, keyboard: int) -> bool:
    typed = os.read(keyboard, _CHUNK)
    with contextlib.suppress(OSError):  # closed: the next read of the channel says so
        if typed:
            channel.sendall(typed)
        else:
            channel.shutdown_write()
    return bool(typed)


@contextlib.contextmanager
def _raw(keyboard: int) -> Iterator[None]:
    if not os.isatty(keyboard):
        yield
        return
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

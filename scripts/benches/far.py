"""A far network on this machine: connections to a place that answers late."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Place = tuple[str, int]  #: host and port


@contextmanager
def delayed(
    far: Place,
    seconds: float,
    near: Place = ("127.0.0.1", 0),
    on_connection: Callable[[Place], object] = lambda client: None,
) -> Iterator[Place]:
    """Serve a place at another one, later; yield where.

    A connection takes `seconds` to be made, and so does each answer, as by a far network.
    `on_connection` gets the client's place.
    """
    with socket.create_server(near, backlog=64) as listener:

        def accept() -> None:
            with suppress(OSError):  # it was closed
                while True:
                    accepted, client = listener.accept()
                    on_connection(client)
                    threading.Thread(target=serve, args=(accepted,), daemon=True).start()

        def serve(accepted: socket.socket) -> None:
            time.sleep(seconds)
            connected = socket.create_connection(far)
            for each in (accepted, connected):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = queue.SimpleQueue[tuple[float, bytes]]()
            threading.Thread(target=_read, args=(connected, answers), daemon=True).start()
            hand_on = threading.Thread(
                target=_hand_on, args=(accepted, answers, seconds), daemon=True
            )
            hand_on.start()
            with suppress(OSError):
                while data := accepted.recv(1 << 16):
                    connected.sendall(data)
            with suppress(OSError):
                connected.shutdown(socket.SHUT_WR)

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()


def _read(connected: socket.socket, answers: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    data = b"-"
    while data:
        try:
            data = connected.recv(1 << 16)
        except OSError:
            data = b""
        answers.put((time.monotonic(), data))


def _hand_on(
    accepted: socket.socket, answers: queue.SimpleQueue[tuple[float, bytes]], seconds: float
) -> None:
    with accepted, suppress(OSError):
        while True:
            came, data = answers.get()
            time.sleep(max(0.0, came + seconds - time.monotonic()))
            if not data:
                return
            accepted.sendall(data)

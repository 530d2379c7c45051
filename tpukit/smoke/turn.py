"""One smoke test of a slice at a time: two at once would fail each other.

A process has a TPU to itself, and `jax.distributed` has one coordinator port a slice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.remote.worker import RemoteWorker
from tpukit.text import quote

_HERE = b"TPUKIT-TURN"
_LEAVE_SECONDS = 5.0


@contextmanager
def turn(worker: RemoteWorker, python: str, deadline: Deadline) -> Iterator[None]:
    """Run the block while no other client of this user has its turn at the slice of `worker`.

    `worker` is the slice's first; its lock is that of all, so that two clients cannot each hold up
    the other. The lock goes with the connection that holds it. Where it cannot be had, the block
    runs all the same: the smoke test tells better what is wrong with a worker.
    """
    program = files("tpukit.smoke").joinpath("programs", "turn.py").read_text(encoding="utf-8")
    command = quote([python.removeprefix("~/"), "-I", "-c", program])
    come, over = threading.Event(), threading.Event()

    def hear(stream: str, chunk: bytes) -> None:
        if _HERE in chunk:
            come.set()

    def hold() -> None:
        with suppress(TpukitError), worker.connect() as connection:
            connection.run(command, stdin=_nothing_until(over), on_output=hear, deadline=deadline)
        come.set()

    holder = threading.Thread(target=hold, name="tpukit-turn", daemon=True)
    holder.start()
    try:
        come.wait(deadline.remaining())
        yield
    finally:
        over.set()
        holder.join(_LEAVE_SECONDS)


def _nothing_until(over: threading.Event) -> Iterator[bytes]:
    over.wait()
    yield b""

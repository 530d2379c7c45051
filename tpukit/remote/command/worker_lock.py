"""A lock on a worker that is held as long as a connection: one client at a time does a thing."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import program_text
from tpukit.text import one_line, quote

_LOCKED = b"TPUKIT-LOCKED"
_WAITING = re.compile(rb"^TPUKIT-WAITING (.*)$", re.MULTILINE)
_RELEASE_SECONDS = 5.0


@contextmanager
def worker_lock(
    worker: RemoteWorker,
    python: str,
    file: str,
    deadline: Deadline,
    *,
    ahead: str,
    late: str,
    on_wait: Callable[[str], None] = lambda line: None,
) -> Iterator[bool]:
    """Run the block while no other client of this user has the lock; yield whether one had it.

    The lock goes with the connection that holds it. `on_wait` gets one line where another client
    has it: `ahead`, and whose it is. The block runs without a lock that nobody has and that cannot
    be had: it shows better what is wrong with a worker.

    Raises `DeadlinePassed`, which says `late`, where another client has the lock until then.
    """
    program = program_text("remote/command/lock_program.py")
    command = quote([python, "-I", "-c", program, file])
    settled, over = threading.Event(), threading.Event()
    told, waits = bytearray(), list[str]()  # waits: for whom

    def read(stream: str, chunk: bytes) -> None:
        told.extend(chunk)
        if _LOCKED in told:
            settled.set()
        elif not waits and (found := _WAITING.search(told)):
            waits.append(f"{ahead}: {one_line(found[1])}")
            on_wait(waits[0])

    def hold() -> None:
        try:
            with suppress(TpukitError), worker.connect() as connection:
                stdin = _nothing_until(over)
                connection.run(command, stdin=stdin, on_output=read, deadline=deadline)
        finally:
            settled.set()

    holder = threading.Thread(target=hold, name="tpukit-worker-lock", daemon=True)
    holder.start()
    try:
        settled.wait(deadline.remaining())
        if waits and _LOCKED not in told and deadline.passed():
            raise DeadlinePassed(late, why=waits[0])
        yield bool(waits)
    finally:
        over.set()
        holder.join(_RELEASE_SECONDS)


def _nothing_until(over: threading.Event) -> Iterator[bytes]:
    over.wait()
    yield b""

"""A lock on a worker that is held as long as a connection: one client at a time does a thing."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import python_line
from tpukit.text import one_line

_LOCKED = b"TPUKIT-LOCKED"
_WAITING = re.compile(rb"^TPUKIT-WAITING (.*)$", re.MULTILINE)
_RELEASE_SECONDS = 5.0


@contextmanager
def worker_lock(
    worker: RemoteWorker,
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
    said, release = queue.SimpleQueue[bytes](), queue.SimpleQueue[bytes]()

    def hold() -> None:
        try:
            with suppress(TpukitError), worker.connect() as connection:
                connection.run(
                    python_line("remote/command/lock_program.py", file),
                    stdin=iter(release.get, b""),
                    on_output=lambda stream, chunk: said.put(chunk),
                    deadline=deadline,
                )
        finally:
            said.put(b"")

    holder = threading.Thread(target=hold, name="tpukit-worker-lock", daemon=True)
    holder.start()
    heard, waits = b"", ""
    try:
        with suppress(queue.Empty):
            while _LOCKED not in heard and (chunk := said.get(timeout=deadline.remaining())):
                heard += chunk
                if not waits and (found := _WAITING.search(heard)):
                    waits = f"{ahead}: {one_line(found[1])}"
                    on_wait(waits)
        if waits and _LOCKED not in heard and deadline.passed():
            raise DeadlinePassed(late, why=waits)
        yield bool(waits)
    finally:
        release.put(b"")
        holder.join(_RELEASE_SECONDS)

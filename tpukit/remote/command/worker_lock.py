"""A lock on a worker that is held as long as a connection: one client at a time does a thing."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.remote import agent_client
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.text import one_line

_RELEASE_SECONDS = 5.0
_LONGEST_LINE = 4096


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
    said, release = queue.SimpleQueue[bytes](), threading.Event()

    def until_released() -> Iterator[bytes]:
        release.wait()
        yield b""

    def hold() -> None:
        try:
            with suppress(TpukitError), worker.connect() as connection:
                agent_client.run(
                    connection,
                    "hold_lock",
                    {"path": file},
                    stdin=until_released,
                    on_output=lambda stream, chunk: said.put(chunk),
                    deadline=deadline,
                )
        finally:
            said.put(b"")

    holder = threading.Thread(target=hold, name="tpukit-worker-lock", daemon=True)
    holder.start()
    rest, waits, locked = b"", "", False
    try:
        with suppress(queue.Empty):
            while not locked and (chunk := said.get(timeout=deadline.remaining())):
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-_LONGEST_LINE:]
                for answer in agent_client.answers_in(worker.label, b"\n".join(lines)):
                    locked = answer.has("locked")
                    if not (waits or locked):
                        waits = f"{ahead}: {one_line(answer.text('waiting'))}"
                        on_wait(waits)
        if waits and not locked and deadline.passed():
            raise DeadlinePassed(late, why=waits)
        yield bool(waits)
    finally:
        release.set()
        holder.join(_RELEASE_SECONDS)

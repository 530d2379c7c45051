"""A lock on a worker, for one client at a time, that lasts as long as a connection."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tpukit.clock import Deadline
from tpukit.errors import DeadlinePassed, Fix, TpukitError
from tpukit.ssh import agent_client
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line

_RELEASE_SECONDS = 5.0
_LONGEST_LINE = 4096


def holder_fix(worker: RemoteWorker, text: str) -> Fix | None:
    """Return the command that ends the holder of a lock, if the text names one, else None."""
    pid = re.search(r": PID (\d+)", text)
    ssh = ("tpukit", "ssh", worker.slice, "--worker", str(worker.index), "--", "kill")
    note = "takes the lock from that client, in case it hangs"
    return Fix.command(*ssh, pid[1], note=note) if pid else None


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
    """Run the block while holding the lock; yield True if another client of this user had it.

    The lock ends with its connection. If another client has it, `on_wait` gets one line: `ahead`
    and a description of that client. If the lock cannot be taken for another reason, the block runs
    without it: its own error shows better what is wrong with the worker.

    Raises `DeadlinePassed` with the message `late` if another client has the lock until the
    deadline; the fix ends that client's process on the worker.
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
            raise DeadlinePassed(late, why=waits, fix=holder_fix(worker, waits))
        yield bool(waits)
    finally:
        release.set()
        holder.join(_RELEASE_SECONDS)

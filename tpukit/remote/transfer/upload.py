"""Bytes to workers: named by their digest, resumed where they stopped, verified.

A payload lies in a worker's folder of transfers until it is put in place; an interrupted one stays
for a week, and whoever sends the same bytes goes on where it ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tpukit.clock import Deadline, Patience
from tpukit.errors import TpukitError, TransportFailed
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.target import Completed
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.programs import answer, program_line
from tpukit.remote.transfer.payload import Payload, compressed

_ANSWER = re.compile(rb"^tpukit-transfer ([a-z]+) ([0-9]{1,18})( into)?$", re.MULTILINE)
#: Times that all is sent before what arrived has to be right: the first may go on after a broken
#: beginning.
_SENDINGS = 2
_PLACINGS = 3
#: Seconds without a byte after which a worker is given up, and bytes a second of a slow disk.
_PATIENCE_SECONDS, _SLOW_DISK = 600.0, 20e6


class ByteCounter(Protocol):
    """Learns how many bytes a transfer is going to move, and how many it moved."""

    def expect(self, size: int) -> None:
        """Add bytes to those that will be moved."""

    def advance(self, size: int) -> None:
        """Add bytes to those that were moved."""


@dataclass(frozen=True)
class TransferContext:
    """What all transfers of one command have in common."""

    deadline: Deadline
    counter: ByteCounter
    relay: bool = True  #: whether workers may fetch from each other
    cancel: Callable[[], None] | None = None  #: ends what still runs after an interrupt
    on_loss: Callable[[TransportFailed], None] = lambda error: None  #: before another connection
    #: Told the folder here and the names of the links that did not come with it.
    on_left_out: Callable[[Path, Sequence[str]], None] = lambda folder, names: None

    def connection(self, worker: RemoteWorker, size: int) -> RetryingConnection:
        """Return a connection for a transfer of so many bytes, given up where nothing comes of it.

        A worker is silent while it reads and hashes what it has.
        """
        patience = Patience(self.deadline, _PATIENCE_SECONDS + size / _SLOW_DISK)
        return RetryingConnection(worker.connect, patience, self.on_loss)


@dataclass(frozen=True)
class Placement:
    """Where a payload goes: `into` a folder, under `name`, or to `target` itself.

    A target that is a folder already takes it too: the first look tells, once for all.
    """

    target: str
    name: str
    into: bool
    mode: int = 0o644  #: of a file; what is in a tree brings its own
    kind: Literal["file", "tree"] = "file"

    @property
    def words(self) -> tuple[str, ...]:
        return "yes" if self.into else "no", self.kind, self.target, self.name, f"{self.mode:o}"


@dataclass(eq=False)
class Delivery:
    """One payload on its way to one worker: what the worker has of it, or why it has not.

    Its `state` there is complete, corrupt, or partial with `size` bytes; or it is where it goes:
    sent, or unchanged. `where` are the words of its placement.
    """

    payload: Payload
    worker: RemoteWorker
    context: TransferContext
    where: tuple[str, ...] = ()
    state: str = "partial"
    size: int = 0
    error: TpukitError | None = None

    def __post_init__(self) -> None:
        self.connection = self.context.connection(self.worker, self.payload.size)

    @property
    def whole(self) -> bool:
        """Whether the worker has verified all of it, and it only has to be put in place."""
        return self.state == "complete"

    def look(self) -> None:
        """Find out what of the payload the worker has, and whether that is in place already."""
        if self._heed(self.connection.run(self.command("look", *self.where))):
            self.where = ("yes", *self.where[1:])

    def send(self) -> None:
        """Send what is missing until the worker has verified the whole.

        Raises:
            TpukitError: what arrived is not what was sent, twice: the files change meanwhile; or
                one became shorter; or the worker cannot write.
            TransportFailed: the worker is out of reach.
        """
        for _ in range(_SENDINGS):
            self.connection.retry(self._send)
            if self.whole:
                return
        changed = self.payload.changed or "something on the way"
        why = f"{changed} changed while it was sent"
        raise TpukitError("what arrived is not what was sent", why=why)

    def receive(
        self,
        connection: Connection,
        command: Sequence[str],
        stdin: bytes | Iterator[bytes],
        deadline: Deadline,
    ) -> None:
        """Let the worker add what one of its own commands makes of the standard input."""
        line = self.command("receive", str(self.size), *command)
        self._heed(connection.run(line, stdin=stdin, deadline=deadline))

    def put(self, attempt: Callable[[Delivery], bool]) -> None:
        """Have `attempt` put the payload where it goes, and send it again where it is gone.

        As it is where an answer was lost after it was put there. Raises `TpukitError` where it is
        gone each time, and as `send` does.
        """
        for _ in range(_PLACINGS):
            if attempt(self):
                self.state = "sent"
                return
            self.send()
        raise TpukitError(f"what was sent is gone before it is in place, {_PLACINGS} times")

    def place(self) -> bool:
        """Put the payload in place; tell whether it was still there.

        Where an answer was lost it is put there twice, which is the same as once.
        """
        self._heed(self.connection.run(self.command("place", *self.where)))
        return self.state == "sent"

    def command(self, verb: str, *words: str) -> str:
        """Return the shell line that does something with what the worker has of the payload."""
        which = (self.payload.digest, str(self.payload.size))
        return program_line("remote/transfer/upload.sh", words=(verb, *which, *words))

    def _send(self, connection: Connection) -> None:
        # Each attempt looks first: the last one may have brought more than we know of.
        deadline = self.connection.deadline
        self._heed(connection.run(self.command("look"), deadline=deadline))
        if self.whole:
            return
        chunks = self._counted(self.payload.chunks(self.size))
        if self.payload.compressible:
            self.receive(connection, ("gzip", "-dc"), compressed(chunks), deadline)
        else:
            self.receive(connection, ("cat",), chunks, deadline)

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self.connection.progressed()
            self.context.counter.advance(len(chunk))

    def _heed(self, done: Completed) -> bool:
        """Note what the worker answered; tell whether the target is a folder.

        Raises `TpukitError` where the program failed.
        """
        found = answer(done, _ANSWER, "a worker could not keep what was sent")
        self.state, self.size = found[1].decode(), int(found[2])
        return found[3] is not None

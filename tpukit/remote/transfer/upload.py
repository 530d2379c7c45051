"""Bytes to workers: named by their digest, resumed where they stopped, verified.

A payload lies in a worker's folder of transfers until it is put in place; an interrupted one stays
for a week, and whoever sends the same bytes goes on where it ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tpukit.clock import Deadline, Patience
from tpukit.errors import TpukitError, TransportFailed
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.target import Completed
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.programs import answer, program_line
from tpukit.remote.transfer.payload import Payload, compressed

_STATE = re.compile(rb"^tpukit-transfer ([a-z]+) ?([0-9]*)( into)?$", re.MULTILINE)
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
class Recipient:
    """A worker that a payload goes to, and where the others find it."""

    worker: RemoteWorker
    address: str  #: internal, for the other workers of its slice


@dataclass(frozen=True)
class Placement:
    """Where a payload goes: `into` a folder, under `name`, or to `target` itself.

    A target that is a folder already takes it too: the first look tells, once for all.
    """

    target: str
    name: str
    into: bool
    mode: int = 0o644

    @property
    def words(self) -> tuple[str, ...]:
        return self.target, "yes" if self.into else "no", self.name, f"{self.mode:o}"


@dataclass(frozen=True)
class TransferState:
    """How a payload stands on a worker: complete, corrupt, or partial with `size` bytes.

    Or placed: it is where it goes; or mode: it was, and has its mode only now. `into` tells that
    the target is a folder.
    """

    word: str
    size: int = 0
    into: bool = False

    @property
    def arrived(self) -> bool:
        return self.word in ("complete", "placed", "mode")

    @classmethod
    def of(cls, done: Completed) -> TransferState:
        """Return what a program answered; raise `TpukitError` where it failed."""
        found = answer(done, _STATE, "a worker could not keep what was sent")
        return cls(found[1].decode(), int(found[2] or 0), found[3] is not None)


class Delivery:
    """One payload on its way to one worker: what the worker has of it, or why it has not."""

    def __init__(self, payload: Payload, recipient: Recipient, context: TransferContext) -> None:
        self.payload = payload
        self.recipient = recipient
        self.context = context
        self.connection = context.connection(recipient.worker, payload.size)
        self.known = TransferState("partial")
        self.error: TpukitError | None = None
        self._into = False

    @property
    def left(self) -> int:
        """The bytes that the worker does not have yet."""
        return self.payload.size - self.known.size

    def look(self, placement: Placement | None = None) -> TransferState:
        """Return what of the payload the worker has; `placed` where it needs nothing more."""
        words = (self._kind, *placement.words) if placement else ()
        found = TransferState.of(self.connection.run(self._command("look", *words)))
        self._into = found.into
        return found

    def send(self, known: TransferState) -> TransferState:
        """Send what is missing until the worker has verified the whole; return how it stands.

        Raises:
            TpukitError: what arrived is not what was sent, twice: the files change meanwhile; or
                one became shorter; or the worker cannot write.
            TransportFailed: the worker is out of reach.
        """
        for _ in range(_SENDINGS):
            known = known if known.arrived else self.connection.retry(self._send)
        if not known.arrived:
            changed = self.payload.changed or "something on the way"
            why = f"{changed} changed while it was sent"
            raise TpukitError("what arrived is not what was sent", why=why)
        return known

    def put(self, attempt: Callable[[], bool]) -> None:
        """Have `attempt` put the payload where it goes, and send it again where it is gone.

        As it is where an answer was lost after it was put there. Raises `TpukitError` where it is
        gone each time, and as `send` does.
        """
        for _ in range(_PLACINGS):
            if attempt():
                return
            self.send(TransferState("partial"))
        raise TpukitError(f"what was sent is gone before it is in place, {_PLACINGS} times")

    def place(self, placement: Placement) -> TransferState:
        """Put the payload in place; another answer than `placed` asks to send it again.

        Where an answer was lost it is put there twice, which is the same as once.
        """
        words = replace(placement, into=placement.into or self._into).words
        return TransferState.of(self.connection.run(self._command("place", self._kind, *words)))

    @property
    def _kind(self) -> str:
        return "tree" if self.payload.archive else "file"

    def _send(self, connection: Connection) -> TransferState:
        # Each attempt looks first: the last one may have brought more than we know of.
        deadline = self.connection.deadline
        known = TransferState.of(connection.run(self._command("look"), deadline=deadline))
        if known.arrived:
            return known
        chunks = self._counted(self.payload.chunks(known.size))
        coding = "gzip" if self.payload.compressible else "plain"
        done = connection.run(
            self._command("receive", str(known.size), coding),
            stdin=compressed(chunks) if coding == "gzip" else chunks,
            deadline=deadline,
        )
        return TransferState.of(done)

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self.connection.progressed()
            self.context.counter.advance(len(chunk))

    def _command(self, verb: str, *words: str) -> str:
        payload = self.payload
        return program_line(
            "remote/transfer/upload.sh", words=[verb, payload.digest, str(payload.size), *words]
        )

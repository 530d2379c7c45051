"""Bytes to and from workers: named by their digest, resumed where they stopped, verified.

A payload lies on a worker under `~/.tpukit/transfers/` until it is put in place; an interrupted
one stays for a week, and whoever sends the same bytes goes on where it ends. The programs that do
the worker's part are in `programs/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import TpukitError, TransportFailed
from tpukit.remote.payload import Payload, compressed
from tpukit.remote.program import program_line
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection
    from tpukit.remote.values import Completed
    from tpukit.remote.worker import RemoteWorker

#: Attempts one after the other that bring nothing before a worker is given up.
_FRUITLESS = 5
# A login script may write before us.
_STATE = re.compile(rb"^tpukit-transfer ([a-z]+) ?([0-9]*)$", re.MULTILINE)

Answer = TypeVar("Answer")


class Gauge(Protocol):
    """Hears how many bytes a transfer is going to move, and how many it moved."""

    def expect(self, size: int) -> None: ...

    def advance(self, size: int) -> None: ...


@dataclass(frozen=True)
class Recipient:
    """A worker that takes part in a distribution, and where the others find it."""

    worker: RemoteWorker
    address: str  #: internal, for the other workers of its slice


@dataclass(frozen=True)
class Placement:
    """Where a payload goes: `into` a folder, under `name`, or to `target` itself."""

    target: str
    name: str
    into: bool
    mode: int = 0o644

    @property
    def words(self) -> tuple[str, str, str]:
        return self.target, "yes" if self.into else "no", self.name


@dataclass(frozen=True)
class State:
    """How a payload stands on a worker: complete, placed, corrupt, or partial with `size` bytes."""

    word: str
    size: int = 0

    @property
    def arrived(self) -> bool:
        return self.word in ("complete", "placed")


class Line:
    """Asks one worker what may be asked again, over as many connections as it takes."""

    def __init__(self, connect: Callable[[], Connection], deadline: Deadline) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._deadline = deadline
        self._fruitful = False

    @property
    def connection(self) -> Connection:
        if self._connection is None or not self._connection.alive:
            self.close()
            self._connection = self._connect()
        return self._connection

    def ask(self, question: Callable[[Connection], Answer]) -> Answer:
        """Return the answer; raise what the fifth attempt in a row that brought nothing raised.

        A connection that cannot be made is not tried for again: that had its patience already.
        """
        fruitless = 0
        while True:
            self._fruitful = False
            connection = self.connection
            try:
                return question(connection)
            except TransportFailed:
                self.close()
                fruitless = 0 if self._fruitful else fruitless + 1
                if fruitless == _FRUITLESS:
                    raise

    def run(self, command: str) -> Completed:
        """Run a command that does no harm when it runs twice."""
        return self.ask(lambda each: each.run(command, deadline=self._deadline, keep=1 << 20))

    def progressed(self) -> None:
        """Note that the question at hand brought something, whatever becomes of it."""
        self._fruitful = True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Delivery:
    """One payload on its way to one worker."""

    def __init__(self, payload: Payload, line: Line, deadline: Deadline, gauge: Gauge) -> None:
        self.payload = payload
        self.line = line
        self.deadline = deadline
        self._gauge = gauge

    def look(self, placement: Placement | None = None) -> State:
        """Return what of the payload the worker has; `placed` where it needs nothing more."""
        words = placement.words if placement else ()
        return state(self.line.run(self._command("look", *words)))

    def send(self, known: State) -> State:
        """Send what is missing until the worker has verified the whole; return how it stands.

        Raises:
            TpukitError: what arrived is not what was sent, twice: the files change meanwhile.
            TransportFailed: the worker is out of reach.
        """
        corrupt = 0
        while not known.arrived:
            known = self.line.ask(self._take)
            corrupt += known.word == "corrupt"
            if corrupt == 2:
                raise TpukitError(
                    "what arrived is not what was sent",
                    why="the files changed while they were sent, or something on the way is broken",
                )
        return known

    def place(self, placement: Placement) -> State:
        """Put the payload in place; another answer than `placed` asks to send it again."""
        kind = "tree" if self.payload.archive else "file"
        mode = f"{placement.mode:o}"
        return state(self.line.run(self._command("place", kind, *placement.words, mode)))

    def _take(self, connection: Connection) -> State:
        # Each attempt looks first: the last one may have brought more than we heard of.
        known = state(connection.run(self._command("look"), deadline=self.deadline))
        if known.arrived:
            return known
        chunks = self._counted(self.payload.chunks(known.size))
        coding = "gzip" if self.payload.compressible else "plain"
        done = connection.run(
            self._command("take", str(known.size), coding),
            stdin=compressed(chunks) if coding == "gzip" else chunks,
            deadline=self.deadline,
        )
        return state(done)

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self.line.progressed()
            self._gauge.advance(len(chunk))

    def _command(self, verb: str, *words: str) -> str:
        payload = self.payload
        return program_line("transfer.sh", words=[verb, payload.digest, str(payload.size), *words])


def state(done: Completed) -> State:
    """Return the state that one of the programs answered."""
    found = _STATE.search(done.stdout)
    if not done.ok or found is None:
        reason = one_line(done.stderr[-400:]) or f"status {done.status}"
        raise TpukitError("a worker could not keep what was sent", reason=reason)
    return State(found[1].decode(), int(found[2] or 0))

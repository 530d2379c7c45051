"""Bytes to workers: staged beside the place where they go, resumed where they stopped, verified.

An upload that was interrupted stays for a week, and the same command goes on where it ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from tpukit.agent.contents import compressed
from tpukit.clock import Deadline, Patience
from tpukit.console import amount
from tpukit.errors import Fix, TpukitError, TransportFailed
from tpukit.remote import agent_client
from tpukit.remote.agent_client import AgentAnswer
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.transfer.payload import Payload
from tpukit.text import one_line

#: Times that all is sent before what arrived has to be right: the first may go on after a broken
#: beginning.
_SENDINGS = 2
#: Times that another copy of the same to the same place may take what was sent to put it in place.
_ROUNDS = 10
#: A worker may handle all bytes so often (it receives, verifies, unpacks and compares them), and
#: so many more.
_TIMES, _MARGIN = 4, 64 << 20
_STATES = ("partial", "corrupt", "sent", "unchanged")


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
    on_notice: Callable[[str], None] = lambda text: None  #: told what did not arrive as it was
    silence: float = 60.0  #: seconds without progress after which a worker is given up

    def connection(self, worker: RemoteWorker) -> RetryingConnection:
        """Return a connection for a transfer, given up when nothing comes of it."""
        patience = Patience(self.deadline, self.silence)
        return RetryingConnection(worker.connect, patience, self.on_loss)


class SignsOfLife:
    """Puts off a connection's deadline as long as a worker says that it is getting on."""

    def __init__(self, connection: RetryingConnection, label: str, most: int) -> None:
        self._connection, self._label, self.most = connection, label, most
        self._done, self._tail = 0, b""

    def take(self, chunk: bytes) -> None:
        """Read what a worker wrote; more progress than is possible puts off nothing."""
        lines = self._tail + chunk
        self._tail = lines[lines.rfind(b"\n") + 1 :][-1000:]
        for answer in agent_client.answers_in(self._label, lines[: lines.rfind(b"\n") + 1]):
            if answer.has("progress") and self._done < answer.number("progress") < self.most:
                self._done = answer.number("progress")
                self._connection.progressed()


def ask_with_signs(
    waiting: RetryingConnection,
    connection: Connection,
    verb: str,
    request: Mapping[str, Any],
    failure: str,
    *,
    size: int,
    stdin: Callable[[], Iterable[bytes]] | None = None,
    keep: int = 1 << 16,
) -> AgentAnswer:
    """Have the agent do something with `size` bytes, and return its answer.

    `waiting` gives the worker up if it no longer gets on. Raises as `agent_client.ask` does.
    """
    signs = SignsOfLife(waiting, connection.label, _TIMES * size + _MARGIN)
    done = agent_client.run(
        connection,
        verb,
        request,
        deadline=waiting.deadline,
        stdin=stdin,
        on_output=lambda name, chunk: signs.take(chunk) if name == "stdout" else None,
        keep=keep,
    )
    return agent_client.answer(connection.label, done, failure)


def check_room(what: str, *, needed: int, free: int, folder: str, **hints: Any) -> None:
    """Raise `TpukitError`, with hints, if a folder has not the bytes that something needs."""
    if needed > free:
        reason = f"it needs {amount(needed)}, and {amount(free)} are free in {folder}"
        raise TpukitError(f"there is no room for {what}", reason=reason, **hints)


@dataclass(frozen=True)
class Placement:
    """Where a payload goes: `into` a folder, under `name`, or to `target` itself.

    A target that is a folder already takes it too: the first look tells, once for all. A push makes
    the target the tree with this digest of its `manifest`.
    """

    target: str
    name: str
    into: bool = False
    mode: int = 0o644  #: of a file; what is in a tree brings its own
    kind: Literal["file", "tree", "push"] = "file"
    manifest: str = ""
    overwrite: bool = False  #: files that no push has brought
    compared: int = 0  #: bytes of the tree, which a push compares before and after


@dataclass(eq=False)
class Delivery:
    """One payload on its way to one worker: how much the worker has of it, or why it has not.

    Its `state` there is partial with `size` bytes, or corrupt; or it is in its place: sent, or
    unchanged. The worker stages it at `path`.
    """

    payload: Payload
    worker: RemoteWorker
    context: TransferContext
    placement: Placement
    state: str = "partial"
    size: int = 0
    path: str = ""
    into: bool = False
    error: TpukitError | None = None
    _stale: bool = True  #: the worker may have more than we know of

    def __post_init__(self) -> None:
        self.connection = self.context.connection(self.worker)
        self.into = self.placement.into

    @property
    def pending(self) -> bool:
        """Whether it is not in its place, and may still come there."""
        return not self.error and self.state not in ("sent", "unchanged")

    def look(self) -> None:
        """Find out how much the worker has, and if that is in place already.

        Raises `TpukitError` if there is no room for the rest.
        """
        self.connection.retry(self._look)

    def send(self) -> None:
        """Send the missing bytes until the worker has verified the whole and put it in place.

        If an answer is lost it is put there twice, which is the same as once.

        Raises:
            TpukitError: what arrived is not what was sent, twice: the files change meanwhile; or
                one became shorter; or the worker cannot write; or others take it each time.
            TransportFailed: the worker is out of reach.
        """
        corrupt = 0
        for _ in range(_ROUNDS):
            self.connection.retry(self._send)
            if not self.pending:
                return
            corrupt += self.state == "corrupt"
            if corrupt == _SENDINGS:
                changed = self.payload.changed or "something on the way"
                why = f"{changed} changed while it was sent"
                raise TpukitError("what arrived is not what was sent", why=why)
        raise TpukitError(f"the upload is gone before it is in place, {_ROUNDS} times")

    def fetch(self, served: Mapping[str, Any]) -> None:
        """Let the worker fetch from another one; what it could not get it is sent later."""
        self.connection.retry(lambda one: self._receive(one, "fetch_upload", served))

    def request(self) -> dict[str, Any]:
        """Return what every request about this payload says."""
        words = (self.payload.digest, self.placement.target, self.placement.name, self.worker.label)
        key = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()
        return {
            **asdict(self.placement),
            "into": self.into,
            "digest": self.payload.digest,
            "size": self.payload.size,
            "sparse": self.payload.sparse,
            # Workers that share a folder do not write to each other's files.
            "staged": f".tpukit-upload-{key[:32]}.part",
            "path": self.path,
        }

    def _look(self, connection: Connection) -> None:
        answer = self._ask(connection, "look_at_upload", {})
        self._heed(answer)
        self.path, self.into = answer.text("path"), answer.flag("into")
        if self.pending:
            self._check_room(answer.number("free"))
        self._stale = False

    def _send(self, connection: Connection) -> None:
        if self._stale:
            self._look(connection)
        if not self.pending:
            return
        self._stale, gzip, offset = True, self.payload.compressible, self.size

        def stdin() -> Iterator[bytes]:
            chunks = self._counted(self.payload.chunks(offset))
            return compressed(chunks) if gzip else iter(chunks)

        self._receive(connection, "receive_upload", {"gzip": gzip}, stdin)

    def _receive(
        self,
        connection: Connection,
        verb: str,
        request: Mapping[str, Any],
        stdin: Callable[[], Iterable[bytes]] | None = None,
    ) -> None:
        answer = self._ask(connection, verb, {"offset": self.size, **request}, stdin)
        self._heed(answer)
        if answer.has("copied_links"):
            text = f"{answer.number('copied_links')} hard links became files of their own"
            self.context.on_notice(f"{self.worker.name}: {text}")

    def _check_room(self, free: int) -> None:
        is_archive = self.placement.kind != "file"
        check_room(
            f"{one_line(self.placement.name)} on {self.worker.name}",
            needed=max(0, self.payload.stored - self.size) + is_archive * self.payload.stored,
            free=free,
            folder=one_line(self.path.rpartition("/")[0] or "/"),
            why="a folder needs twice its size: as an archive first" if is_archive else "",
            fix=Fix(note="free some room there, or copy to another disk"),
        )

    def _counted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            yield chunk
            self.connection.progressed()
            self.context.counter.advance(len(chunk))

    def _ask(
        self,
        connection: Connection,
        verb: str,
        request: Mapping[str, Any],
        stdin: Callable[[], Iterable[bytes]] | None = None,
    ) -> AgentAnswer:
        return ask_with_signs(
            self.connection,
            connection,
            verb,
            {**self.request(), **request},
            f"{self.worker.name} cannot keep the upload",
            size=self.payload.size + self.placement.compared,
            stdin=stdin,
        )

    def _heed(self, answer: AgentAnswer) -> None:
        """Note what the worker answered; raise `TpukitError` if that makes no sense."""
        state, size = answer.text("state"), answer.number("size")
        if state == "differs":
            raise TpukitError(
                "the files on the worker would not be those that were sent",
                why="they changed on either side meanwhile; the worker's are as they were",
                fix=Fix(note="push again"),
            )
        if state not in _STATES or not 0 <= size <= self.payload.size:
            what = f"{self.worker.name} cannot have {size} of {self.payload.size} bytes"
            raise TpukitError(what, reason=one_line(state)[:50])
        self.state, self.size = state, size

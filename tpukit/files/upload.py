"""Uploads to workers: staged beside their target, resumed after a loss, and verified.

An interrupted upload is kept for a week; the same command resumes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tpukit.agent.contents import compressed
from tpukit.clock import Deadline, Patience
from tpukit.console import TransferProgress, amount
from tpukit.errors import Fix, TpukitError, TransportFailed
from tpukit.files.payload import Payload
from tpukit.ssh import agent_client
from tpukit.ssh.agent_client import AgentAnswer
from tpukit.ssh.client import Connection
from tpukit.ssh.worker import RemoteWorker, RetryingConnection
from tpukit.ssh.worker_lock import holder_fix
from tpukit.text import one_line

#: The most corrupt results: the first may come from a broken beginning that was resumed.
_SENDINGS = 2
#: The most attempts if another copy to the same place takes the staged file each time.
_ROUNDS = 10
#: A worker may report progress for this many times the bytes (it receives, verifies, unpacks and
#: compares them), and for this many bytes more.
_TIMES, _MARGIN = 4, 64 << 20
_STATES = ("partial", "corrupt", "sent", "unchanged")


@dataclass(frozen=True)
class TransferContext:
    """The settings and callbacks that all transfers of one command share."""

    deadline: Deadline
    counter: TransferProgress
    relay: bool = True  #: True if workers may fetch from each other
    cancel: Callable[[], None] | None = None  #: ends running transfers after an interrupt
    on_loss: Callable[[TransportFailed], None] = lambda error: None  #: called before a reconnect
    on_notice: Callable[[str], None] = lambda text: None  #: gets notices of inexact copies
    silence: float = 60.0  #: seconds without progress after which a worker is given up

    def connection(self, worker: RemoteWorker) -> RetryingConnection:
        """Return a connection that gives up after `silence` seconds without progress."""
        patience = Patience(self.deadline, self.silence)
        return RetryingConnection(worker.connect, patience, self.on_loss)


class SignsOfLife:
    """Renews a connection's deadline when a worker reports progress."""

    def __init__(self, connection: RetryingConnection, label: str, most: int) -> None:
        self._connection, self._label, self.most = connection, label, most
        self._done, self._tail = 0, b""

    def take(self, chunk: bytes) -> None:
        """Read a worker's output; ignore reports of more progress than is possible."""
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
    """Send the agent a request about `size` bytes, and return its answer.

    `waiting` fails if the worker makes no progress. Raises the errors of `agent_client.ask`.
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
    """Raise `TpukitError`, with hints, if a folder lacks the free bytes for something."""
    if needed > free:
        reason = f"it needs {amount(needed)}, and {amount(free)} are free in {folder}"
        raise TpukitError(f"there is no room for {what}", reason=reason, **hints)


@dataclass(frozen=True)
class Placement:
    """The place of a payload on a worker: `name` in the folder `target`, or `target` itself.

    It goes into the folder if `into` is True, or if the target is a folder at the first look. A
    push turns the target into the tree with this digest of its `manifest`.
    """

    target: str
    name: str
    into: bool = False
    mode: int = 0o644  #: the mode of a single file; files in a tree keep their own
    kind: Literal["file", "tree", "push"] = "file"
    manifest: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)  #: the fields of a push's `Origin`
    overwrite: bool = False  #: True if a push may replace files that it has not brought
    compared: int = 0  #: the bytes of the tree that a push compares before and after


@dataclass(eq=False)
class Delivery:
    """The delivery of one payload to one worker, with its state or its error.

    The `state` is "partial" (the worker has `size` bytes), "corrupt", or, when the payload is in
    place, "sent" or "unchanged". The worker stages the payload at `path`.
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
    _stale: bool = True  #: True if `size` may be out of date

    def __post_init__(self) -> None:
        self.connection = self.context.connection(self.worker)
        self.into = self.placement.into

    @property
    def pending(self) -> bool:
        """True if the payload is not in place yet, and the delivery has not failed."""
        return not self.error and self.state not in ("sent", "unchanged")

    def look(self) -> None:
        """Ask the worker how many bytes it has, and if the payload is already in place.

        Raises `TpukitError` if the worker has no room for the rest.
        """
        self.connection.retry(self._look)

    def send(self) -> None:
        """Send the missing bytes until the worker has verified all of them and put them in place.

        After a lost answer they may be put in place twice, which does no harm.

        Raises:
            TpukitError: the upload was corrupt twice, because the files change; or a file became
                shorter; or the worker cannot write; or another upload always takes the staged file.
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
                raise TpukitError("the worker received other bytes than were sent", why=why)
        raise TpukitError(f"the staged upload disappeared {_ROUNDS} times")

    def fetch(self, served: Mapping[str, Any]) -> None:
        """Let the worker fetch the payload from another one; `send` sends the rest later."""
        self.connection.retry(lambda connection: self._receive(connection, "fetch_upload", served))

    def request(self) -> dict[str, Any]:
        """Return the fields of every request about this payload."""
        words = (self.payload.digest, self.placement.target, self.placement.name, self.worker.label)
        key = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()
        return {
            **asdict(self.placement),
            "into": self.into,
            "digest": self.payload.digest,
            "size": self.payload.size,
            "sparse": self.payload.sparse,
            # The label is part of the name: workers that share a folder must not share this file.
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
        try:
            return ask_with_signs(
                self.connection,
                connection,
                verb,
                {**self.request(), **request},
                f"{self.worker.name} cannot keep the upload",
                size=self.payload.size + self.placement.compared,
                stdin=stdin,
            )
        except TpukitError as error:
            reason = error.reason
            error.fix = error.fix or self.worker.disk_fix(reason) or holder_fix(self.worker, reason)
            raise

    def _heed(self, answer: AgentAnswer) -> None:
        """Note the worker's answer; raise `TpukitError` if it is invalid."""
        state, size = answer.text("state"), answer.number("size")
        if state == "differs":
            raise TpukitError(
                "the push does not fit the files on the worker any more",
                why="files changed on either side meanwhile; the worker's are as they were",
                fix=Fix(note="push again"),
            )
        if state not in _STATES or not 0 <= size <= self.payload.size:
            what = f"{self.worker.name} cannot have {size} of {self.payload.size} bytes"
            raise TpukitError(what, reason=one_line(state)[:50])
        self.state, self.size = state, size

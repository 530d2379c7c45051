"""Commands over connections that another process keeps: what their client sees of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from tpukit import __version__
from tpukit.clock import Clock
from tpukit.errors import Fix, TpukitError, TransportFailed, from_document
from tpukit.remote.command.attached import (
    AttachedRun,
    CommandCancelled,
    CommandOutcome,
    CommandRequest,
    OnWorkerOutput,
    shield,
)
from tpukit.remote.command.fan_out import Outcome, fan_out, values
from tpukit.remote.connection.channel import Tail
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.target import Completed, Target
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.persistent.pool_socket import Disconnected, MessageSocket, PoolSocket

#: What the pool has to know of a command; the rest stays here.
_SENT = ("command", "environment", "limit", "at_once")

Find = Callable[[], list[RemoteWorker]]


@dataclass(frozen=True)
class PoolRequest:
    """Whose workers are asked for: everything that decides which they are, and our key to them.

    The same `place` has to mean the same workers, as far as anybody but the cloud can tell.
    """

    place: str
    key: KeyPair


def known_workers(pool: PoolSocket, request: PoolRequest) -> list[tuple[str, Target]] | None:
    """Return each worker's slice and target as the last command found them.

    None where no pool runs, or it has no live connection to any of them: nothing would show then
    that they still exist. Raises `TpukitError` where the pool does not answer, or is of another
    version.
    """
    answer = _asked(pool, request="workers", place=request.place)
    workers = answer["workers"] if answer else None
    if workers is None:
        return None
    return [(each["slice"], Target.of(each["target"])) for each in workers]


def overview(pool: PoolSocket) -> dict[str, Any] | None:
    """Return the pool and its connections, None where none runs; raises `TpukitError`."""
    return _asked(pool, request="list")


def stop(pool: PoolSocket) -> bool:
    """End the pool and all of its connections; tell whether one ran.

    Raises `TpukitError` where it does not end; the next command starts another one.
    """
    connected = pool.connect_if_running()
    if not connected:
        return False
    with closing(connected):
        try:
            connected.send(request="end")
            connected.receive_document(pool.answer_seconds)
        except Disconnected:  # its process has ended
            return True
        except TimeoutError as error:
            pool.unlink()
            raise TpukitError(
                "the connection pool does not end",
                why="it was given up: the next run --keep starts another",
            ) from error
    return False


class PooledRun:
    """One command on its way over the workers, by connections of the pool.

    Where the pool could not start it, the worker is connected to directly, which says what is
    wrong: a worker that has moved is found again, a missing firewall rule named. A command is
    started at most once on each worker. `found` are all workers of the request where the cloud
    was asked for them: they are what `known_workers` returns from now on.
    """

    def __init__(
        self,
        command: CommandRequest,
        clock: Clock,
        on_output: OnWorkerOutput,
        pool: PoolSocket,
        request: PoolRequest,
        found: Sequence[RemoteWorker] = (),
    ) -> None:
        self._command = command
        self._clock = clock
        self._on_output = on_output
        self._pool = pool
        self._request = request
        self._found = found
        self._direct = AttachedRun(command, clock, on_output)
        self._connected: MessageSocket | None = None
        self._over = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()
        self._unreached: list[RemoteWorker] = []

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[CommandOutcome]:
        """Return each worker's outcome, in their order.

        An interrupt ends the command on every worker and is raised again. Raises `BadInput` or
        `TpukitError` where the pool cannot be started, or is of another version.
        """
        [done] = values(
            fan_out([workers], self._over_the_pool, cancel=lambda: shield(self._stop, self._clock))
        )
        rest = [place for place in range(len(workers)) if place not in done]
        direct = self._direct.on_all([workers[place] for place in rest])
        done.update(zip(rest, direct, strict=True))
        return [done[place] for place in range(len(workers))]

    @property
    def unreached(self) -> list[RemoteWorker]:
        """The workers on which the command was started, and its end was not seen."""
        return [*self._unreached, *self._direct.unreached]

    def _over_the_pool(self, workers: Sequence[RemoteWorker]) -> dict[int, CommandOutcome]:
        """Return the outcomes of those workers on which the pool started the command."""
        self._connected = connected = self._pool.connect()
        tails = [{name: Tail(self._command.keep) for name in ("stdout", "stderr")} for _ in workers]
        try:
            if not self._begun(connected, workers):
                return {}
            self._unreached = list(workers)
            while not isinstance(message := connected.receive(), dict):
                place, stream, chunk = message
                tails[place][stream].append(chunk)
                self._on_output(workers[place], stream, chunk)
            _raise_error(message)
            self._unreached = [workers[place] for place in message["unreached"]]
        except Disconnected:
            return {place: Outcome(each, error=_lost(each)) for place, each in enumerate(workers)}
        finally:
            connected.close()
            self._over.set()
        results = enumerate(zip(workers, message["results"], tails, strict=True))
        return {
            place: _outcome(worker, result, tail)
            for place, (worker, result, tail) in results
            if result.get("started", True)
        }

    def _begun(self, connected: MessageSocket, workers: Sequence[RemoteWorker]) -> bool:
        """Ask for the command and tell whether it is started; unless so, nothing has run."""
        with suppress(Disconnected):
            with self._lock:
                if self._stopped:
                    return False
                connected.send(**self._document(workers))
            _raise_error(connected.receive_document())
            return True
        return False

    def _document(self, workers: Sequence[RemoteWorker]) -> dict[str, Any]:
        command, key = self._command, self._request.key
        return {
            "request": "run",
            "version": __version__,
            "place": self._request.place,
            "private_path": str(key.private_path),
            "public": key.public,
            "workers": [_worker_document(each) for each in workers],
            "found": [_worker_document(each) for each in self._found],
            "command": {name: getattr(command, name) for name in _SENT},
        }

    def _stop(self) -> None:
        """Have the command ended wherever it runs, and learn on which workers it was not."""
        with self._lock:
            self._stopped = True
            connected = self._connected
        if connected:
            with suppress(Disconnected):
                connected.send(request="stop")
                self._over.wait()


class PooledWorkers:
    """All workers of a request; `find` asks the cloud for them, where that is needed."""

    def __init__(self, pool: PoolSocket, request: PoolRequest, find: Find) -> None:
        self._pool = pool
        self._request = request
        self._find = find
        self._lock = threading.Lock()
        known = known_workers(pool, request)
        self._found = [] if known else find()
        self.workers: Sequence[RemoteWorker] = self._found
        if known:
            self.workers = [
                RemoteWorker(
                    target.worker, partial(self._connect, name, target.worker), name, target
                )
                for name, target in known
            ]

    def run(self, command: CommandRequest, clock: Clock, on_output: OnWorkerOutput) -> PooledRun:
        """Return one command for any of these workers."""
        return PooledRun(command, clock, on_output, self._pool, self._request, self._found)

    def _connect(self, name: str, index: int) -> Connection:
        """Reach a worker that the pool does not: what it knew may be out of date."""
        with self._lock:
            self._found = self._found or self._find()
        for each in self._found:
            if (each.slice, each.index) == (name, index):
                return each.connect()
        raise TransportFailed(f"slice {name} has no worker {index} now")


def _asked(pool: PoolSocket, **request: Any) -> dict[str, Any] | None:
    """Return the answer of the pool, None where none runs or it has just ended."""
    connected = pool.connect_if_running()
    if not connected:
        return None
    with closing(connected):
        try:
            connected.send(version=__version__, **request)
            answer = connected.receive_document(pool.answer_seconds)
        except Disconnected:
            return None
        except TimeoutError as error:
            raise TpukitError(
                "the connection pool does not answer",
                fix=Fix.command("tpukit", "connections", "stop"),
            ) from error
    _raise_error(answer)
    return answer


def _worker_document(worker: RemoteWorker) -> dict[str, Any]:
    assert worker.target
    return {"slice": worker.slice, "target": asdict(worker.target)}


def _outcome(
    worker: RemoteWorker, result: Mapping[str, Any], tails: Mapping[str, Tail]
) -> CommandOutcome:
    if error := _error(result):
        return Outcome(worker, error=error)
    streams = bytes(tails["stdout"]), bytes(tails["stderr"])
    return Outcome(worker, Completed(result["status"], *streams))


def _lost(worker: RemoteWorker) -> TransportFailed:
    return TransportFailed(
        f"lost {worker.label} while a command ran",
        reason="the connection pool has ended",
        why="the command may have run, and may still be running",
    )


def _raise_error(answer: Mapping[str, Any]) -> None:
    if error := _error(answer):
        raise error


def _error(answer: Mapping[str, Any]) -> TpukitError | None:
    document = answer.get("error")
    return from_document(document, CommandCancelled, default=TransportFailed) if document else None

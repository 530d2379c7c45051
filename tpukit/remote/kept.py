"""Commands over connections that another process keeps: what their client sees of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from typing import Any

from tpukit import __version__
from tpukit.clock import Clock
from tpukit.errors import TpukitError, TransportFailed, from_document
from tpukit.remote.exchange import Tail
from tpukit.remote.fanout import Outcome, fan_out
from tpukit.remote.frames import Gone, Line
from tpukit.remote.keeper_home import KeeperHome
from tpukit.remote.keys import KeyPair
from tpukit.remote.runs import FleetRun, Hear, Order, Result, Stopped, insist
from tpukit.remote.values import Completed, Target
from tpukit.remote.worker import RemoteWorker

_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Request:
    """Whose workers are asked for: everything that decides which they are, and our key to them.

    The same `place` has to mean the same workers, as far as anybody but the cloud can tell.
    """

    place: str
    key: KeyPair


def known_workers(home: KeeperHome, request: Request) -> list[tuple[str, Target]] | None:
    """Return each worker's slice and target as the last command found them.

    None where no keeper runs, or it has no live connection to any of them: nothing would show then
    that they still exist.
    """
    line = home.found()
    if not line:
        return None
    with closing(line):
        try:
            told = _asked(line, ask="workers", place=request.place)["workers"]
        except Gone:  # it ended at that moment
            return None
    return None if told is None else [(each["slice"], Target.of(each["target"])) for each in told]


class KeptRun:
    """One command on its way over the workers, by connections that are kept.

    Where the keeper could not start it, the worker is reached the ordinary way, which says what is
    wrong: a worker that has moved is found again, a missing firewall rule named. A command is
    started at most once on each worker. `found` are all workers of the request where the cloud
    was asked for them: they are what `known_workers` returns from now on.
    """

    def __init__(
        self,
        order: Order,
        clock: Clock,
        hear: Hear,
        home: KeeperHome,
        request: Request,
        found: Sequence[RemoteWorker] = (),
    ) -> None:
        self._order = order
        self._clock = clock
        self._hear = hear
        self._home = home
        self._request = request
        self._found = found
        self._ordinary = FleetRun(order, clock, hear)
        self._line: Line | None = None
        self._over = threading.Event()
        self._stopped = False
        self._lock = threading.Lock()
        self._missed: list[RemoteWorker] = []

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[Result]:
        """Return each worker's outcome, in their order.

        An interrupt ends the command on every worker and is raised again.
        """
        [kept] = fan_out([workers], self._converse, cancel=lambda: insist(self._stop, self._clock))
        if kept.error:
            raise kept.error
        done = kept.value or {}
        rest = [place for place in range(len(workers)) if place not in done]
        ordinary = self._ordinary.on_all([workers[place] for place in rest])
        done.update(zip(rest, ordinary, strict=True))
        return [done[place] for place in range(len(workers))]

    @property
    def unreached(self) -> list[RemoteWorker]:
        """The workers on which the command was started, and its end was not seen."""
        return [*self._missed, *self._ordinary.unreached]

    def _converse(self, workers: Sequence[RemoteWorker]) -> dict[int, Result]:
        """Return the outcomes of those workers on which the keeper started the command."""
        self._line = line = self._home.line()
        tails = [{name: Tail(self._order.keep) for name in ("stdout", "stderr")} for _ in workers]
        try:
            if not self._begun(line, workers):
                return {}
            self._missed = list(workers)
            while not isinstance(message := line.receive(), dict):
                place, stream, chunk = message
                tails[place][stream].append(chunk)
                self._hear(workers[place], stream, chunk)
            _raise_error(message)
            self._missed = [workers[place] for place in message["unreached"]]
        except Gone:
            return {place: Outcome(each, error=_lost(each)) for place, each in enumerate(workers)}
        finally:
            line.close()
            self._over.set()
        results = enumerate(zip(workers, message["results"], tails, strict=True))
        return {
            place: _outcome(worker, told, tail)
            for place, (worker, told, tail) in results
            if told.get("started", True)
        }

    def _begun(self, line: Line, workers: Sequence[RemoteWorker]) -> bool:
        """Ask for the command and tell whether it is started; unless so, nothing has run."""
        with suppress(Gone):
            with self._lock:
                if self._stopped:
                    return False
                line.tell(**self._question(workers))
            _raise_error(line.hear())
            return True
        return False

    def _question(self, workers: Sequence[RemoteWorker]) -> dict[str, Any]:
        order = self._order
        return {
            "ask": "run",
            "version": __version__,
            "place": self._request.place,
            "private_path": str(self._request.key.private_path),
            "public": self._request.key.public,
            "workers": [_told(each) for each in workers],
            "found": [_told(each) for each in self._found],
            "order": {
                "command": order.command,
                "environment": order.environment,
                "limit": order.limit,
                "at_once": order.at_once,
            },
        }

    def _stop(self) -> None:
        """Have the command ended wherever it runs, and hear on which workers it was not."""
        with self._lock:
            self._stopped = True
            line = self._line
        if line:
            with suppress(Gone):
                line.tell(ask="stop")
                self._over.wait()


def overview(home: KeeperHome) -> dict[str, Any] | None:
    """Return what the keeper says of itself and its connections, None where none runs."""
    line = home.found()
    if not line:
        return None
    with closing(line), suppress(Gone):
        return _asked(line, ask="list")
    return None


def stop(home: KeeperHome) -> bool:
    """End the keeper and all of its connections; tell whether one ran."""
    line = home.found()
    if not line:
        return False
    with closing(line):
        try:
            line.tell(ask="end")
            line.hear(_ANSWER_SECONDS)
        except Gone:  # with its process
            return True
        except TimeoutError as error:
            home.give_up()
            raise TpukitError(
                "the keeper of connections does not end",
                why="it was given up: the next run --keep starts another",
            ) from error
    return False


def _asked(line: Line, **question: Any) -> dict[str, Any]:
    try:
        line.tell(version=__version__, **question)
        answer = line.hear(_ANSWER_SECONDS)
    except TimeoutError as error:
        raise TpukitError(
            "the keeper of connections does not answer", fix="tpukit connections stop"
        ) from error
    _raise_error(answer)
    return answer


def _told(worker: RemoteWorker) -> dict[str, Any]:
    assert worker.target
    return {"slice": worker.slice, "target": asdict(worker.target)}


def _outcome(worker: RemoteWorker, told: Mapping[str, Any], tails: Mapping[str, Tail]) -> Result:
    if error := _error(told):
        return Outcome(worker, error=error)
    streams = bytes(tails["stdout"]), bytes(tails["stderr"])
    return Outcome(worker, Completed(told["status"], *streams))


def _lost(worker: RemoteWorker) -> TransportFailed:
    return TransportFailed(
        f"lost {worker.label} while a command ran",
        reason="the keeper of connections has gone",
        why="the command may have run, and may still be running",
    )


def _raise_error(answer: Mapping[str, Any]) -> None:
    if error := _error(answer):
        raise error


def _error(answer: Mapping[str, Any]) -> TpukitError | None:
    told = answer.get("error")
    return from_document(told, Stopped, default=TransportFailed) if told else None

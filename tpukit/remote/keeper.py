"""`python -m tpukit.remote.keeper SOCKET IDLE_SECONDS`: keeps connections for later commands.

One process a user, started by the first command that asks for it. Whoever may open its socket may
run commands on the workers: the socket is its owner's alone, in a folder that is too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tpukit import __version__
from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.errors import BadInput, TpukitError
from tpukit.remote.frames import Gone, Line
from tpukit.remote.keys import KeyPair
from tpukit.remote.pool import Pool
from tpukit.remote.runs import FleetRun, Order, Result
from tpukit.remote.ssh import Connection, NotStarted
from tpukit.remote.values import Target
from tpukit.remote.worker import RemoteWorker

_GLANCE_SECONDS = 1.0
#: Seconds for a new connection; what takes longer is for the command itself to find out.
_CONNECT_SECONDS = 10.0


class Keeper:
    """Runs a command for one client a line, over connections of the pool."""

    def __init__(self, clock: Clock, idle_seconds: float) -> None:
        self._clock = clock
        self._pool = Pool(clock, idle_seconds)
        self._known: dict[str, list[tuple[str, Target]]] = {}
        self._ended = threading.Event()

    def serve(self, listener: socket.socket) -> None:
        """Work until somebody says stop, or nobody has come for the idle time."""
        listener.settimeout(_GLANCE_SECONDS)
        while not self._ended.is_set() and not self._pool.idle:
            self._pool.close_idle()
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                continue
            accepted.setblocking(True)
            self._pool.touch()
            threading.Thread(target=self._converse, args=(Line(accepted),), daemon=True).start()
        listener.close()
        self._pool.close()

    def _converse(self, line: Line) -> None:
        with contextlib.suppress(Gone), contextlib.closing(line):
            while True:
                try:
                    self._answer(line, line.hear())
                except TpukitError as error:
                    line.tell(error=error.document())

    def _answer(self, line: Line, asked: dict[str, Any]) -> None:
        if asked.get("ask") == "workers":
            line.tell(workers=self._workers(asked))
        elif asked.get("ask") == "run":
            self._run(line, asked)
        elif asked.get("ask") == "list":
            connections = self._pool.overview()
            line.tell(process=os.getpid(), version=__version__, connections=connections)
        elif asked.get("ask") == "end":
            self._ended.set()
            threading.Event().wait()  # the line breaks when this process has ended
        else:
            raise Gone

    def _workers(self, asked: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the workers that were found last time, while one of them is still connected."""
        _check_version(asked)
        known = self._known.get(asked["place"], [])
        if not self._pool.has(target for _, target in known):
            return None
        return [{"slice": name, "target": asdict(target)} for name, target in known]

    def _run(self, line: Line, asked: dict[str, Any]) -> None:
        _check_version(asked)
        if asked["found"]:
            self._known[asked["place"]] = [_worker(each) for each in asked["found"]]
        key = KeyPair(Path(asked["private_path"]), asked["public"])
        workers = [
            RemoteWorker(target.worker, partial(self._connect, target, key), name)
            for name, target in map(_worker, asked["workers"])
        ]
        places = {id(each): place for place, each in enumerate(workers)}

        def hear(worker: RemoteWorker, stream: str, chunk: bytes) -> None:
            with contextlib.suppress(Gone):  # the listener hears of it
                line.pass_on(places[id(worker)], stream, chunk)

        going = FleetRun(Order(**asked["order"], keep=1), self._clock, hear)
        line.tell(starting=len(workers))
        listener = threading.Thread(target=_listen, args=(line, going), daemon=True)
        listener.start()
        results = [_document(each) for each in going.on_all(workers)]
        if not all(each.get("started", True) for each in results):
            self._known.pop(asked["place"], None)  # one of them has moved: the cloud is asked again
        line.tell(results=results, unreached=[places[id(each)] for each in going.unreached])
        listener.join()

    def _connect(self, target: Target, key: KeyPair) -> Connection:
        try:
            return self._pool.lend(target, key, Deadline.after(self._clock, _CONNECT_SECONDS))
        except TpukitError as error:
            raise NotStarted(error.what, reason=error.reason, why="nothing has run") from error


def _listen(line: Line, going: FleetRun) -> None:
    """Stop the command when its client says so, and give it up when the client has gone."""
    with contextlib.suppress(Gone):
        if line.hear().get("ask") == "stop":
            going.stop()
    going.abandon()


def _document(result: Result) -> dict[str, Any]:
    if result.value:
        return {"status": result.value.status}
    assert result.error
    return {"error": result.error.document(), "started": not isinstance(result.error, NotStarted)}


def _worker(told: dict[str, Any]) -> tuple[str, Target]:
    return told["slice"], Target.of(told["target"])


def _check_version(asked: dict[str, Any]) -> None:
    if asked["version"] != __version__:
        raise BadInput(
            f"tpukit {__version__} keeps the connections, and this is another version",
            fix="tpukit connections stop",
        )


def main(arguments: Sequence[str]) -> None:
    """Listen on a socket, say so by closing standard output, and keep connections."""
    place, idle_seconds = Path(arguments[0]), float(arguments[1])
    os.umask(0o177)
    place.unlink(missing_ok=True)  # a predecessor's: whoever starts a keeper found it silent
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen(1024)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    Keeper(SystemClock(), idle_seconds).serve(listener)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The process that keeps connections for later commands.

`python -m tpukit.remote.persistent.pool_server SOCKET IDLE_SECONDS` starts it.
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
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.remote.command.attached import AttachedRun, CommandOutcome, CommandRequest
from tpukit.remote.connection.client import Connection, NotStarted
from tpukit.remote.connection.keys import KeyPair
from tpukit.remote.connection.target import Target
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.persistent.pool import Pool
from tpukit.remote.persistent.pool_socket import Disconnected, MessageSocket

_POLL_SECONDS = 1.0
#: Seconds for a new connection; what takes longer is for the command itself to find out.
_CONNECT_SECONDS = 10.0


class PoolServer:
    """Runs commands over connections of the pool, one at a time for each client."""

    def __init__(self, clock: Clock, idle_seconds: float) -> None:
        self._clock = clock
        self._pool = Pool(clock, idle_seconds)
        self._known: dict[str, list[tuple[str, Target]]] = {}
        self._ended = threading.Event()

    def serve(self, listener: socket.socket) -> None:
        """Work until a client says stop, or none has come for the idle time."""
        listener.settimeout(_POLL_SECONDS)
        address = listener.getsockname()
        while not self._ended.is_set() and not self._pool.idle:
            self._pool.close_idle()
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                continue
            accepted.setblocking(True)
            self._pool.touch()
            client = MessageSocket(accepted)
            threading.Thread(target=self._serve, args=(client, address), daemon=True).start()
        listener.close()
        self._pool.close()

    def _serve(self, client: MessageSocket, address: str) -> None:
        with contextlib.suppress(Disconnected), contextlib.closing(client):
            while True:
                try:
                    request = client.receive_document()
                    if request.get("request") == "end":
                        self._end(address)
                    self._answer(client, request)
                except TpukitError as error:
                    client.send(error=error.document())

    def _end(self, address: str) -> None:
        self._ended.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as waker:
            waker.connect(address)  # `accept` has to return
        threading.Event().wait()  # the socket breaks when this process has ended

    def _answer(self, client: MessageSocket, request: dict[str, Any]) -> None:
        kind = request.get("request")
        if kind == "workers":
            client.send(workers=self._workers(request))
        elif kind == "run":
            self._run(client, request)
        elif kind == "list":
            connections = self._pool.overview()
            client.send(process=os.getpid(), version=__version__, connections=connections)
        else:
            raise Disconnected

    def _workers(self, request: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the workers that were found last time, while one of them is still connected."""
        _check_version(request)
        known = self._known.get(request["place"], [])
        if not self._pool.has(target for _, target in known):
            return None
        return [{"slice": name, "target": asdict(target)} for name, target in known]

    def _run(self, client: MessageSocket, request: dict[str, Any]) -> None:
        _check_version(request)
        if request["found"]:
            self._known[request["place"]] = [_worker(each) for each in request["found"]]
        key = KeyPair(Path(request["private_path"]), request["public"])
        workers = [
            RemoteWorker(target.worker, partial(self._connect, target, key), name)
            for name, target in map(_worker, request["workers"])
        ]
        places = {id(each): place for place, each in enumerate(workers)}

        def pass_on(worker: RemoteWorker, stream: str, chunk: bytes) -> None:
            with contextlib.suppress(Disconnected):  # the listener notices it
                client.send_output(places[id(worker)], stream, chunk)

        running = AttachedRun(CommandRequest(**request["command"], keep=1), self._clock, pass_on)
        client.send(starting=len(workers))
        listener = threading.Thread(target=_listen, args=(client, running), daemon=True)
        listener.start()
        results = [_document(each) for each in running.on_all(workers)]
        if not all(each.get("started", True) for each in results):
            self._known.pop(request["place"], None)  # one has moved: the cloud is asked again
        unreached = [places[id(each)] for each in running.unreached]
        client.send(results=results, unreached=unreached)
        listener.join()

    def _connect(self, target: Target, key: KeyPair) -> Connection:
        try:
            return self._pool.acquire(target, key, Deadline.after(self._clock, _CONNECT_SECONDS))
        except TpukitError as error:
            raise NotStarted(error.what, reason=error.reason, why="nothing has run") from error


def _listen(client: MessageSocket, running: AttachedRun) -> None:
    """Stop the command when its client says so, and abandon it when the client has gone."""
    with contextlib.suppress(Disconnected):
        if client.receive_document().get("request") == "stop":
            running.stop()
    running.abandon()


def _document(outcome: CommandOutcome) -> dict[str, Any]:
    if outcome.value:
        return {"status": outcome.value.status}
    error = outcome.error
    assert error
    return {"error": error.document(), "started": not isinstance(error, NotStarted)}


def _worker(document: dict[str, Any]) -> tuple[str, Target]:
    return document["slice"], Target.of(document["target"])


def _check_version(request: dict[str, Any]) -> None:
    if request["version"] != __version__:
        raise BadInput(
            f"tpukit {__version__} keeps the connections, and this is another version",
            fix=Fix.command("tpukit", "connections", "stop"),
        )


def main(arguments: Sequence[str]) -> None:
    """Listen on a socket, say so by closing standard output, and keep connections."""
    path, idle_seconds = Path(arguments[0]), float(arguments[1])
    os.umask(0o177)
    path.unlink(missing_ok=True)  # a predecessor's: whoever starts another found it silent
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1024)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    PoolServer(SystemClock(), idle_seconds).serve(listener)


if __name__ == "__main__":
    main(sys.argv[1:])

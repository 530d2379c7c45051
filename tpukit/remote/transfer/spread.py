"""One payload for many workers: uploaded once, and passed on inside the zone."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tpukit.errors import TpukitError
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import program_text
from tpukit.remote.transfer.payload import Payload
from tpukit.remote.transfer.upload import Delivery, TransferContext

#: From this many workers on, one upload and the zone's own network are quicker than uploads.
ENOUGH_WORKERS = 3
#: Uploads that share the uplink at one time, workers that fetch, and that put it where it goes.
_UPLOADS, _FETCHES, _PLACINGS = 8, 64, 32
#: Seconds for the first worker to start serving.
_SERVE_SECONDS = 15.0
_PROGRAM = "remote/transfer/relay_program.py"
_PORT = re.compile(rb"^tpukit-relay ([0-9]{1,5})$", re.MULTILINE)
#: What it cannot fetch, also without Python, is sent later; status 3: all is there and right.
_FETCH = 'python3 -I -c "$0" fetch; [ $? -ne 3 ] || exit 3'


def distribute(
    payload: Payload,
    workers: Sequence[RemoteWorker],
    put: Callable[[Delivery], bool],
    context: TransferContext,
    where: tuple[str, ...] = (),
) -> list[Outcome[RemoteWorker, str]]:
    """Bring the payload to every worker, and have `put` put it where it goes.

    Each was `sent` something, or is `unchanged`: a file is in its place (`where`) already. `put`
    tells whether the payload was still there. One failed worker stops no other.
    """
    with ExitStack() as stack:
        deliveries = [Delivery(payload, each, context, where) for each in workers]
        for each in deliveries:
            stack.enter_context(each.connection)
        _each(deliveries, Delivery.look, _FETCHES)
        pending = [each for each in deliveries if each.state not in ("sent", "unchanged")]
        # The second time resumes what an interrupted upload or a lost worker left.
        for _ in range(2):
            if context.relay and len(_missing(pending)) >= ENOUGH_WORKERS:
                _relay(pending)
        missing = _missing(pending)
        context.counter.expect(sum(payload.size - each.size for each in missing))
        _each(missing, Delivery.send, _UPLOADS)
        _each([each for each in pending if each.whole], lambda each: each.put(put), _PLACINGS)
    return [
        Outcome(each.worker, None if each.error else each.state, each.error) for each in deliveries
    ]


def _missing(deliveries: Sequence[Delivery]) -> list[Delivery]:
    return [each for each in deliveries if not (each.error or each.whole)]


def _each(deliveries: Sequence[Delivery], work: Callable[[Delivery], object], window: int) -> None:
    """Do the same for several workers, and note which of them have failed."""
    cancel = deliveries[0].context.cancel if deliveries else None
    for outcome in fan_out(deliveries, work, window=window, cancel=cancel):
        outcome.item.error = outcome.error


def _relay(deliveries: Sequence[Delivery]) -> None:
    """Let the worker that has most of it serve the others while it is still receiving."""
    missing = _missing(deliveries)
    # One that has all of it serves at once, and receives nothing.
    source = max([each for each in deliveries if not each.error], key=lambda each: each.size)
    stop = threading.Event()
    with suppress(TpukitError), _serving(source, stop) as served:
        source.context.counter.expect(source.payload.size - source.size)

        def work(each: Delivery) -> None:
            if each is not source:
                _fetch(each, served)
                return
            try:
                each.send()
            except TpukitError:
                stop.set()
                raise

        _each(missing, work, len(missing))


@contextmanager
def _serving(source: Delivery, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Serve the payload from a worker; yield where, and the secret that it is served for."""
    output, answered = bytearray(), threading.Event()
    connection, target = source.connection.connection, source.worker.target
    address = target.internal_address if target else ""
    place = {"address": address, "token": secrets.token_urlsafe(32)}

    def stdin() -> Iterator[bytes]:
        yield _line({**place, "size": source.payload.size})
        stop.wait()  # the server ends with its standard input

    def on_output(stream: str, chunk: bytes) -> None:
        if stream == "stdout" and not answered.is_set():
            output.extend(chunk)
            if _PORT.search(output):
                answered.set()

    def serve() -> None:
        python = ("python3", "-I", "-c", program_text(_PROGRAM))
        line, deadline = source.command("serve", *python, "serve"), source.context.deadline
        # Its end is noticed by those who fetch from it.
        with suppress(TpukitError):
            connection.run(line, stdin=stdin(), on_output=on_output, deadline=deadline)
        answered.set()

    threading.Thread(target=serve, name="tpukit-relay", daemon=True).start()
    try:
        answered.wait(_SERVE_SECONDS)
        port = _PORT.search(output)
        if port is None:  # no Python, or an address that is not its own
            raise TpukitError("a worker does not serve the others")
        yield {**place, "port": int(port[1])}
    finally:
        stop.set()
        answered.set()  # what else it says is not kept


def _fetch(delivery: Delivery, served: Mapping[str, Any]) -> None:
    """Let a worker fetch the payload; what it could not get it is sent later."""
    command = ("sh", "-c", _FETCH, program_text(_PROGRAM))
    stdin = _line({**served, "offset": delivery.size, "digest": delivery.payload.digest})
    deadline = delivery.context.deadline  # the program itself gives up after a minute's silence
    delivery.connection.retry(lambda each: delivery.receive(each, command, stdin, deadline))


def _line(request: Mapping[str, Any]) -> bytes:
    # The token stays off the command line, which every user of a worker can read.
    return json.dumps(request).encode() + b"\n"

"""One payload for many workers: uploaded once, and passed on inside the zone."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from tpukit.errors import TpukitError
from tpukit.remote import worker_files
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.client import Connection
from tpukit.remote.programs import python_line
from tpukit.remote.transfer.payload import Payload
from tpukit.remote.transfer.upload import (
    Delivery,
    Placement,
    Recipient,
    TransferContext,
    TransferState,
)

#: From this many workers on, one upload and the zone's own network are quicker than uploads.
ENOUGH_WORKERS = 3
#: Uploads that share the uplink at one time, and workers that fetch at one time.
_UPLOADS, _FETCHES = 8, 64
#: Seconds for the first worker to start serving.
_SERVE_SECONDS = 15.0
_PROGRAM = "remote/transfer/relay_program.py"
_PORT = re.compile(rb"^tpukit-relay ([0-9]+)$", re.MULTILINE)

Value = TypeVar("Value")


def distribute(
    payload: Payload,
    recipients: Sequence[Recipient],
    finish: Callable[[Delivery, TransferState], Value],
    context: TransferContext,
    *,
    placement: Placement | None = None,
) -> list[Outcome[Recipient, Value]]:
    """Bring the payload to every worker, call `finish` for each that has it, and return the values.

    `finish` gets whether the payload has arrived (`complete`) or is in its `placement` already,
    in which case nothing was sent. One failed worker stops no other.
    """
    with ExitStack() as stack:
        deliveries = [Delivery(payload, each, context) for each in recipients]
        for each in deliveries:
            stack.enter_context(each.connection)
        _bring(deliveries, placement, context)
        arrived = [each for each in deliveries if not each.error]
        done = fan_out(arrived, lambda each: finish(each, each.known), cancel=context.cancel)
    values = {each.item: each.value for each in done}
    errors = {each: each.error for each in deliveries} | {each.item: each.error for each in done}
    return [Outcome(each.recipient, values.get(each), errors[each]) for each in deliveries]


def _bring(
    deliveries: Sequence[Delivery], placement: Placement | None, context: TransferContext
) -> None:
    """Find out what each worker has of the payload, and bring the rest."""
    _each(deliveries, lambda each: each.look(placement), _FETCHES)
    # The second time resumes what an interrupted upload or a lost worker left.
    for _ in range(2):
        if context.relay and len(_missing(deliveries)) >= ENOUGH_WORKERS:
            _relay(deliveries, context)
    missing = _missing(deliveries)
    context.counter.expect(sum(each.left for each in missing))
    _each(missing, lambda each: each.send(each.known), _UPLOADS)


def _missing(deliveries: Sequence[Delivery]) -> list[Delivery]:
    return [each for each in deliveries if not (each.error or each.known.arrived)]


def _relay(deliveries: Sequence[Delivery], context: TransferContext) -> None:
    """Let the worker that has most of it serve the others while it is still receiving."""
    missing = _missing(deliveries)
    # One that has all of it serves at once, and receives nothing.
    whole = [each for each in deliveries if not each.error and each.known.word == "complete"]
    source = whole[0] if whole else max(missing, key=lambda each: each.known.size)
    stop = threading.Event()
    with suppress(TpukitError), _serving(source, stop) as served:
        if not whole:
            context.counter.expect(source.left)

        def work(each: Delivery) -> TransferState:
            if each is not source:
                return _fetch(each, served)
            try:
                return each.send(each.known)
            except TpukitError:
                stop.set()
                raise

        _each(missing, work, len(missing))


def _each(
    deliveries: Sequence[Delivery], work: Callable[[Delivery], TransferState], window: int
) -> None:
    """Do the same for several workers, and note what each has after it."""
    cancel = deliveries[0].context.cancel if deliveries else None
    for outcome in fan_out(deliveries, work, window=window, cancel=cancel):
        outcome.item.known, outcome.item.error = outcome.value or outcome.item.known, outcome.error


@contextmanager
def _serving(source: Delivery, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Serve the payload from a worker; yield the request with the port that it is served at."""
    output, answered = bytearray(), threading.Event()
    request = {
        "address": source.recipient.address,
        "folder": worker_files.TRANSFERS,
        "digest": source.payload.digest,
        "size": source.payload.size,
        "token": secrets.token_urlsafe(32),
    }

    def stdin() -> Iterator[bytes]:
        yield _encoded(request)
        stop.wait()  # the server ends with its standard input

    def on_output(stream: str, chunk: bytes) -> None:
        output.extend(chunk if stream == "stdout" else b"")
        if _PORT.search(output):
            answered.set()

    def serve(connection: Connection) -> None:
        # Its end is noticed by those who fetch from it.
        with suppress(TpukitError):
            command, deadline = python_line(_PROGRAM, "serve"), source.context.deadline
            connection.run(command, stdin=stdin(), on_output=on_output, deadline=deadline)
        answered.set()

    arguments = (source.connection.connection,)
    threading.Thread(target=serve, args=arguments, name="tpukit-relay", daemon=True).start()
    try:
        answered.wait(_SERVE_SECONDS)
        port = _PORT.search(output)
        if port is None:  # no Python, or an address that is not its own
            raise TpukitError("a worker does not serve the others")
        yield {**request, "port": int(port[1])}
    finally:
        stop.set()


def _fetch(delivery: Delivery, request: Mapping[str, Any]) -> TransferState:
    """Let a worker fetch the payload; what it could not get it is sent later."""
    command, stdin = python_line(_PROGRAM, "fetch"), _encoded(request)
    deadline = delivery.context.deadline  # the program itself gives up after a minute's silence
    done = delivery.connection.retry(lambda each: each.run(command, stdin=stdin, deadline=deadline))
    # Without Python the worker answers nothing.
    return TransferState.of(done) if done.ok else TransferState("partial")


def _encoded(request: Mapping[str, Any]) -> bytes:
    # The token stays off the command line, which every user of a worker can read.
    return json.dumps(dict(request)).encode() + b"\n"

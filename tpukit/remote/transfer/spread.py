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
        deliveries = [
            Delivery(
                payload,
                stack.enter_context(context.connection(each.worker, payload.size)),
                context,
            )
            for each in recipients
        ]
        distribution = _Distribution(payload, dict(zip(deliveries, recipients, strict=True)))
        known, failed = distribution.run(placement, context)
        done = fan_out(list(known), lambda each: finish(each, known[each]), cancel=context.cancel)
    values = {each.item: each for each in done}
    return [
        Outcome(recipient, values[each].value, values[each].error)
        if each in values
        else Outcome(recipient, error=failed[each])
        for each, recipient in zip(deliveries, recipients, strict=True)
    ]


class _Distribution:
    """Knows what each worker has of the payload, and brings the rest."""

    def __init__(self, payload: Payload, recipients: Mapping[Delivery, Recipient]) -> None:
        self._payload = payload
        self._recipients = recipients
        self._known: dict[Delivery, TransferState] = {}
        self._failed: dict[Delivery, TpukitError] = {}

    def run(
        self, placement: Placement | None, context: TransferContext
    ) -> tuple[Mapping[Delivery, TransferState], Mapping[Delivery, TpukitError]]:
        """Return how the payload stands on each worker that has it, and the others' errors."""
        self._each(list(self._recipients), lambda each: each.look(placement), _FETCHES)
        # The second time resumes what an interrupted upload or a lost worker left.
        for _ in range(2):
            if context.relay and len(self._missing) >= ENOUGH_WORKERS:
                self._relay()
        missing = self._missing
        context.counter.expect(sum(map(self._left, missing)))
        self._each(missing, lambda each: each.send(self._known[each]), _UPLOADS)
        return self._known, self._failed

    @property
    def _missing(self) -> list[Delivery]:
        return [each for each, known in self._known.items() if not known.arrived]

    def _left(self, delivery: Delivery) -> int:
        return self._payload.size - self._known[delivery].size

    def _relay(self) -> None:
        """Let the worker that has most of it serve the others while it is still receiving."""
        whole = [each for each, known in self._known.items() if known.word == "complete"]
        source = whole[0] if whole else max(self._missing, key=lambda each: self._known[each].size)
        others = [each for each in self._missing if each is not source]
        stop = threading.Event()
        request = _request(self._payload, self._recipients[source].address)
        with suppress(TpukitError), _serving(source, request, stop) as served:
            if not whole:
                source.context.counter.expect(self._left(source))

            def work(each: Delivery) -> TransferState:
                if each is not source:
                    return _fetch(each, served)
                try:
                    return each.send(self._known[each])
                except TpukitError:
                    stop.set()
                    raise

            self._each([*others, *([] if whole else [source])], work, len(others) + 1)

    def _each(
        self, deliveries: Sequence[Delivery], work: Callable[[Delivery], TransferState], window: int
    ) -> None:
        """Do the same for several workers, and note what each has after it."""
        cancel = deliveries[0].context.cancel if deliveries else None
        for outcome in fan_out(deliveries, work, window=window, cancel=cancel):
            if outcome.value:
                self._known[outcome.item] = outcome.value
            elif outcome.error:
                self._failed[outcome.item] = outcome.error
                self._known.pop(outcome.item, None)


@contextmanager
def _serving(
    source: Delivery, request: Mapping[str, Any], stop: threading.Event
) -> Iterator[dict[str, Any]]:
    """Serve the payload from a worker; yield the request with the port that it is served at."""
    output, answered = bytearray(), threading.Event()

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


def _request(payload: Payload, address: str) -> dict[str, Any]:
    return {
        "address": address,
        "folder": worker_files.TRANSFERS,
        "digest": payload.digest,
        "size": payload.size,
        "token": secrets.token_urlsafe(32),
    }


def _encoded(request: Mapping[str, Any]) -> bytes:
    # The token stays off the command line, which every user of a worker can read.
    return json.dumps(dict(request)).encode() + b"\n"

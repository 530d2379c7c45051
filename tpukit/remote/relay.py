"""One payload for many workers: uploaded once, and passed on inside the zone."""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.remote.fanout import Outcome, fan_out
from tpukit.remote.payload import Payload
from tpukit.remote.program import program_text
from tpukit.remote.ssh import Connection
from tpukit.remote.transfer import (
    Delivery,
    Gauge,
    Line,
    Placement,
    Recipient,
    State,
    state,
)
from tpukit.text import quote

#: From this many workers on, one upload and the zone's own network are quicker than uploads.
ENOUGH_WORKERS = 3
#: Uploads that share the uplink at one time, and workers that fetch at one time.
_UPLOADS, _FETCHES = 8, 64
#: Seconds for the first worker to start serving.
_SERVE_SECONDS = 15.0
_PORT = re.compile(rb"^tpukit-relay ([0-9]+)$", re.MULTILINE)

Value = TypeVar("Value")


@dataclass(frozen=True)
class Errand:
    """What is the same for every worker of one distribution."""

    payload: Payload
    deadline: Deadline
    gauge: Gauge
    relay: bool = True  #: whether workers may fetch from each other
    cancel: Callable[[], None] | None = None  #: ends what still runs after an interrupt


def distribute(
    errand: Errand,
    recipients: Sequence[Recipient],
    finish: Callable[[Delivery, State], Value],
    *,
    placement: Placement | None = None,
) -> list[Outcome[Recipient, Value]]:
    """Bring the payload to every worker, call `finish` for each that has it, and say what came.

    `finish` hears whether the payload has arrived (`complete`) or is in its `placement` already,
    in which case nothing was sent. One failed worker stops no other.
    """
    with ExitStack() as open_lines:
        deliveries = [
            Delivery(
                errand.payload,
                open_lines.enter_context(Line(each.worker.connect, errand.deadline)),
                errand.deadline,
                errand.gauge,
            )
            for each in recipients
        ]
        distribution = _Distribution(errand, dict(zip(deliveries, recipients, strict=True)))
        known, failed = distribution.run(placement)
        done = fan_out(list(known), lambda each: finish(each, known[each]), cancel=errand.cancel)
    values = {each.item: each for each in done}
    return [
        Outcome(recipient, values[each].value, values[each].error)
        if each in values
        else Outcome(recipient, error=failed[each])
        for each, recipient in zip(deliveries, recipients, strict=True)
    ]


class _Distribution:
    """Knows what each worker has of the payload, and brings the rest."""

    def __init__(self, errand: Errand, recipients: Mapping[Delivery, Recipient]) -> None:
        self._errand = errand
        self._recipients = recipients
        self._known: dict[Delivery, State] = {}
        self._failed: dict[Delivery, TpukitError] = {}

    def run(
        self, placement: Placement | None
    ) -> tuple[Mapping[Delivery, State], Mapping[Delivery, TpukitError]]:
        """Return how the payload stands on each worker that has it, and the others' errors."""
        self._each(list(self._recipients), lambda each: each.look(placement), _FETCHES)
        # The second time resumes what an interrupted upload or a lost worker left.
        for _ in range(2):
            if self._errand.relay and len(self._missing) >= ENOUGH_WORKERS:
                self._relay()
        missing = self._missing
        self._errand.gauge.expect(sum(map(self._left, missing)))
        self._each(missing, lambda each: each.send(self._known[each]), _UPLOADS)
        return self._known, self._failed

    @property
    def _missing(self) -> list[Delivery]:
        return [each for each, known in self._known.items() if not known.arrived]

    def _left(self, delivery: Delivery) -> int:
        return self._errand.payload.size - self._known[delivery].size

    def _relay(self) -> None:
        """Let the worker that has most of it serve the others while it is still receiving."""
        whole = [each for each, known in self._known.items() if known.word == "complete"]
        source = whole[0] if whole else max(self._missing, key=lambda each: self._known[each].size)
        others = [each for each in self._missing if each is not source]
        stop = threading.Event()
        with suppress(TpukitError), _serving(source, self._order(source), stop) as order:
            if not whole:
                self._errand.gauge.expect(self._left(source))

            def work(each: Delivery) -> State:
                if each is not source:
                    return _fetch(each, order)
                try:
                    return each.send(self._known[each])
                except TpukitError:
                    stop.set()
                    raise

            self._each([*others, *([] if whole else [source])], work, len(others) + 1)

    def _order(self, source: Delivery) -> dict[str, Any]:
        payload = self._errand.payload
        return {
            "address": self._recipients[source].address,
            "digest": payload.digest,
            "size": payload.size,
            "token": secrets.token_urlsafe(32),
        }

    def _each(
        self, deliveries: Sequence[Delivery], work: Callable[[Delivery], State], window: int
    ) -> None:
        """Do the same for several workers, and note what each has after it."""
        for outcome in fan_out(deliveries, work, window=window, cancel=self._errand.cancel):
            if outcome.value:
                self._known[outcome.item] = outcome.value
            elif outcome.error:
                self._failed[outcome.item] = outcome.error
                self._known.pop(outcome.item, None)


@contextmanager
def _serving(
    source: Delivery, order: Mapping[str, Any], stop: threading.Event
) -> Iterator[dict[str, Any]]:
    """Serve the payload from a worker; yield the order with the port that it is served at."""
    heard, answered = bytearray(), threading.Event()

    def instruct() -> Iterator[bytes]:
        yield _line(order)
        stop.wait()  # the server ends with its standard input

    def hear(stream: str, chunk: bytes) -> None:
        heard.extend(chunk if stream == "stdout" else b"")
        if _PORT.search(heard):
            answered.set()

    def serve(connection: Connection) -> None:
        # Its end is noticed by those who fetch from it.
        with suppress(TpukitError):
            connection.run(
                _program("serve"), stdin=instruct(), on_output=hear, deadline=source.deadline
            )
        answered.set()

    arguments = (source.line.connection,)
    threading.Thread(target=serve, args=arguments, name="tpukit-relay", daemon=True).start()
    try:
        answered.wait(_SERVE_SECONDS)
        port = _PORT.search(heard)
        if port is None:  # no Python, or an address that is not its own
            raise TpukitError("a worker does not serve the others")
        yield {**order, "port": int(port[1])}
    finally:
        stop.set()


def _fetch(delivery: Delivery, order: Mapping[str, Any]) -> State:
    """Let a worker fetch the payload; what it could not get it is sent later."""
    line, command = _line(order), _program("fetch")
    done = delivery.line.ask(lambda each: each.run(command, stdin=line, deadline=delivery.deadline))
    # Without Python the worker answers nothing.
    return state(done) if done.ok else State("partial")


def _line(order: Mapping[str, Any]) -> bytes:
    # The token stays off the command line, which every user of a worker can read.
    return json.dumps(dict(order)).encode() + b"\n"


def _program(verb: str) -> str:
    return quote(["python3", "-c", program_text("relay.py"), verb])

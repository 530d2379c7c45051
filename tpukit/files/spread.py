"""One payload for many workers: uploaded once, then passed on inside the zone."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from tpukit.errors import TpukitError
from tpukit.files.payload import Payload
from tpukit.files.upload import Delivery, Placement, TransferContext
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.worker import RemoteWorker

#: From this many workers on, one upload and the zone's network are faster than separate uploads.
ENOUGH_WORKERS = 3
#: The most uploads at the same time, and the most workers to inspect at the same time.
_UPLOADS, _LOOKS = 8, 64
#: Seconds for the first worker to start serving, and the most seconds without a byte before a
#: fetching worker gives up; this machine then sends it the rest.
_SERVE_SECONDS, _SILENCE = 15.0, 30.0
#: The most bytes of a login script's output before the port.
_LONGEST_GREETING = 64 << 10


def distribute(
    payload: Payload,
    workers: Sequence[RemoteWorker],
    context: TransferContext,
    placement: Placement,
) -> list[Outcome[RemoteWorker, str]]:
    """Put the payload in its place on every worker.

    A worker's outcome is `sent`, or `unchanged` if it already had the file. A worker that fails
    does not stop the others.
    """
    with ExitStack() as stack:
        deliveries = [Delivery(payload, worker, context, placement) for worker in workers]
        for delivery in deliveries:
            stack.enter_context(delivery.connection)
        _each(deliveries, Delivery.look, _LOOKS)
        # The second pass resumes after an interrupted upload or the loss of the serving worker.
        for _ in range(2):
            if context.relay and len(_pending(deliveries)) >= ENOUGH_WORKERS:
                _relay(_pending(deliveries))
        pending = _pending(deliveries)
        context.counter.expect(sum(payload.size - delivery.size for delivery in pending))
        _each(pending, Delivery.send, _UPLOADS)
    return [
        Outcome(delivery.worker, None if delivery.error else delivery.state, delivery.error)
        for delivery in deliveries
    ]


def _pending(deliveries: Sequence[Delivery]) -> list[Delivery]:
    return [delivery for delivery in deliveries if delivery.pending]


def _each(deliveries: Sequence[Delivery], work: Callable[[Delivery], object], window: int) -> None:
    """Call `work` for several workers, and note the error of each."""
    cancel = deliveries[0].context.cancel if deliveries else None
    for outcome in fan_out(deliveries, work, window=window, cancel=cancel):
        outcome.item.error = outcome.error


def _relay(deliveries: Sequence[Delivery]) -> None:
    """Let the worker with the most bytes serve the others while it still receives."""
    source = max(deliveries, key=lambda delivery: delivery.size)
    stop = threading.Event()
    with suppress(TpukitError), _serving(source, stop) as served:
        source.context.counter.expect(source.payload.size - source.size)

        def work(delivery: Delivery) -> None:
            if delivery is not source:
                delivery.fetch(served)
                return
            try:
                delivery.send()
            except TpukitError:
                stop.set()
                raise

        _each(deliveries, work, len(deliveries))


@contextmanager
def _serving(source: Delivery, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Serve the payload from a worker; yield the address, the port and the secret for clients."""
    output, answered = bytearray(), threading.Event()
    connection, target = source.connection.connection, source.worker.target
    address = target.internal_address if target else ""
    place = {"address": address, "token": secrets.token_urlsafe(32)}

    def stdin() -> Iterator[bytes]:
        stop.wait()  # the server ends with its standard input
        yield from ()

    def on_output(stream: str, chunk: bytes) -> None:
        if stream == "stdout" and not answered.is_set():
            output.extend(chunk)
            told = b"tpukit-agent" in output and output.endswith(b"\n")
            if told or len(output) > _LONGEST_GREETING:
                answered.set()

    def serve() -> None:
        # An error here shows in the workers that fetch from it.
        with suppress(TpukitError):
            agent_client.run(
                connection,
                "serve_upload",
                {**source.request(), **place},
                stdin=stdin,
                on_output=on_output,
                deadline=source.context.deadline,
                keep=1 << 16,
            )
        answered.set()

    threading.Thread(target=serve, name="tpukit-relay", daemon=True).start()
    try:
        answered.wait(_SERVE_SECONDS)
        answers = agent_client.answers_in(connection.label, bytes(output))
        port = answers[-1].number("port") if answers else 0
        if not 0 < port < 1 << 16:  # serving can fail: the address may not be the worker's own
            raise TpukitError("a worker does not serve the others")
        silence = min(_SILENCE, source.context.silence / 2)
        yield {**place, "port": port, "silence": silence}
    finally:
        stop.set()
        answered.set()  # `on_output` ignores later output

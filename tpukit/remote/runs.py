"""One command on many workers at once: started together, ended together, never left behind."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tpukit.clock import Clock, Deadline
from tpukit.errors import DeadlinePassed, TpukitError
from tpukit.remote.ending import EndReport, end_processes
from tpukit.remote.fanout import Outcome, fan_out
from tpukit.remote.program import program_line
from tpukit.remote.values import Completed
from tpukit.remote.worker import RemoteWorker

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection

#: Seconds that a worker gets to end a command, TERM and KILL together.
_END_SECONDS = 12.0
_GRACE_SECONDS = 5.0
_SAME_INTERRUPT_SECONDS = 1.0

Hear = Callable[[RemoteWorker, str, bytes], None]
Result = Outcome[RemoteWorker, Completed]


@dataclass(frozen=True)
class Order:
    """What is to run: a command, the shell lines before it, its input, and its limits.

    The lines travel on standard input and may hold secrets; the command is seen by all on the
    worker.

    `limit` is in seconds for each worker's command. `at_once` bounds the commands that run at the
    same time, zero does not. `keep` is in bytes for each stream of each worker.
    """

    command: str
    environment: str = ""
    stdin: Callable[[], Iterable[bytes]] | None = None
    limit: float | None = None
    at_once: int = 0
    fail_fast: bool = False
    keep: int = 64 << 10


class Stopped(TpukitError):
    """The command was ended, or not started, because another worker's failed."""


@dataclass
class _Live:
    """A worker on which the command may be running."""

    worker: RemoteWorker
    connection: Connection
    mark: str
    ending: threading.Event | None = None  #: set when the attempt to end it is over


@dataclass
class FleetRun:
    """One command on its way over the workers; `hear` gets their output, each from its own thread.

    A command is started at most once on each worker.
    """

    order: Order
    clock: Clock
    hear: Hear
    _live: dict[int, _Live] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: set[int] = field(default_factory=set)
    _stopped: bool = False

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[Result]:
        """Return each worker's outcome, in their order.

        An interrupt ends the command on every worker, as `stop` does, and is raised again.
        """
        window = self.order.at_once or len(workers)
        try:
            return fan_out(
                workers, self._work, window=window, cancel=lambda: insist(self.stop, self.clock)
            )
        finally:
            self.abandon()

    def stop(self) -> None:
        """Start nothing more and end the command wherever it runs."""
        with self._lock:
            self._stopped = True
            live = [each for each in self._live.values() if id(each) not in self._ended]
            for each in live:
                each.ending = threading.Event()
        fan_out(live, self._end, window=max(len(live), 1))

    @property
    def unreached(self) -> list[RemoteWorker]:
        """The workers on which the command was started, and its end was not seen."""
        with self._lock:
            return [each.worker for each in self._live.values() if id(each) not in self._ended]

    def abandon(self) -> None:
        """Start nothing more, and close the connections over which a command may be running."""
        with self._lock:
            self._stopped = True
            live = list(self._live.values())
        for each in live:
            each.connection.close()

    def _work(self, worker: RemoteWorker) -> Completed:
        try:
            done = self._run(worker)
        except Stopped:
            raise
        except TpukitError:
            self._fail()
            raise
        if not done.ok:
            self._fail()
        return done

    def _run(self, worker: RemoteWorker) -> Completed:
        self._check(worker)
        connection = worker.connect()
        live = _Live(worker, connection, f"{secrets.token_hex(8)}.{worker.index}")
        with connection:
            self._enter(live)
            done = self._command(live)
            self._leave(live)
        self._check_not_ended(worker, done)
        return done

    def _command(self, live: _Live) -> Completed:
        order = self.order
        # Without variables there is nothing to send, and nothing that a worker has to wait for.
        reads = ["input"] if order.environment or order.stdin else []
        head = f"{order.environment}{live.mark}\n".encode() if reads else b""
        never = Deadline.never(self.clock)
        limit = Deadline.after(self.clock, order.limit) if order.limit else never
        try:
            return live.connection.run(
                program_line("device.sh", "run.sh", words=(live.mark, order.command, *reads)),
                stdin=chain([head], order.stdin()) if order.stdin else head,
                on_output=partial(self.hear, live.worker),
                deadline=limit,
                keep=order.keep,
            )
        except DeadlinePassed as error:
            raise self._too_long(live) from error

    def _too_long(self, live: _Live) -> DeadlinePassed:
        what = f"the command on {live.worker.label} did not end in {self.order.limit:g} s"
        try:
            self._end(live)
        except TpukitError as error:
            return DeadlinePassed(what, why=f"it may still be running: {error.what}")
        return DeadlinePassed(what, why="it was ended")

    def _end(self, live: _Live) -> EndReport:
        try:
            report = end_processes(
                live.connection,
                marks=[live.mark],
                grace=_GRACE_SECONDS,
                deadline=Deadline.after(self.clock, _END_SECONDS),
            )
            if report.left:
                raise TpukitError(f"processes on {live.worker.label} cannot be ended")
            with self._lock:
                self._ended.add(id(live))
            return report
        finally:
            if live.ending:
                live.ending.set()

    def _enter(self, live: _Live) -> None:
        with self._lock:
            if not self._stopped:
                self._live[id(live)] = live
                return
        raise Stopped(f"not started on {live.worker.label}")

    def _leave(self, live: _Live) -> None:
        """Let a worker go; where the command was to be ended, not before all it started is."""
        with self._lock:
            if not live.ending:
                self._live.pop(id(live))
                return
        live.ending.wait(_END_SECONDS)

    def _check(self, worker: RemoteWorker) -> None:
        if self._stopped:
            raise Stopped(f"not started on {worker.label}")

    def _check_not_ended(self, worker: RemoteWorker, done: Completed) -> None:
        """Take a failure after the others were stopped for its consequence."""
        if self._stopped and not done.ok:
            raise Stopped(f"ended on {worker.label}")

    def _fail(self) -> None:
        if self.order.fail_fast and not self._stopped:
            self.stop()


def insist(stop: Callable[[], None], clock: Clock) -> None:
    """Stop; an interrupt repeated at once is the same one, passed on by somebody's wrapper."""
    stopping = threading.Thread(target=stop, name="tpukit-stop", daemon=True)
    stopping.start()
    begun = clock.monotonic()
    while stopping.is_alive():
        try:
            stopping.join(0.2)
        except KeyboardInterrupt:
            if clock.monotonic() - begun > _SAME_INTERRUPT_SECONDS:
                raise

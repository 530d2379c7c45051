"""One command on many workers at once: started together, ended together, never left behind."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tpukit.clock import Clock, Deadline
from tpukit.errors import DeadlinePassed, TpukitError, TransportFailed
from tpukit.remote.command.end import GRACE_SECONDS, NotEnded, end_processes
from tpukit.remote.command.environment import export_lines, launch
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.target import Completed
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import program_text, shell_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Seconds beyond the grace for which a command that has ended waits for what it started to.
_END_SECONDS = 10.0
_SAME_INTERRUPT_SECONDS = 1.0

OnWorkerOutput = Callable[[RemoteWorker, str, bytes], None]
CommandOutcome = Outcome[RemoteWorker, Completed]


@dataclass(frozen=True)
class CommandRequest:
    """A command to run, the shell lines before it, its input, and its limits.

    The lines travel on standard input and may hold secrets; the command is seen by all on the
    worker.

    `limit` is in seconds for each worker's command. `at_once` bounds the commands that run at the
    same time, zero does not. `keep` is in bytes for each stream of each worker. A command that is
    to end gets the signal `first`, TERM, and after `grace` seconds KILL. `sudo` runs it as root.
    """

    command: str
    environment: str = ""
    stdin: Callable[[], Iterable[bytes]] | None = None
    limit: float | None = None
    at_once: int = 0
    fail_fast: bool = False
    keep: int = 64 << 10
    first: str = "INT"
    grace: float = GRACE_SECONDS
    sudo: bool = False


class CommandCancelled(TpukitError):
    """The command was ended, or not started, because another worker's failed."""


@dataclass
class _Live:
    """A worker on which the command may be running."""

    worker: RemoteWorker
    connection: Connection
    mark: str
    ending: threading.Event | None = None  #: set when the attempt to end it is over
    ended: bool = False
    state: str = "may still run: not reached"  #: where it was not ended


@dataclass
class AttachedRun:
    """One command on its way over the workers; `on_output` is called from a thread for each.

    A command is started at most once on each worker.
    """

    request: CommandRequest
    clock: Clock
    on_output: OnWorkerOutput
    _live: dict[int, _Live] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failing: threading.Lock = field(default_factory=threading.Lock)
    _failure: OSError | TpukitError | None = None
    _stopped: bool = False

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[CommandOutcome]:
        """Return each worker's outcome, in their request.

        An interrupt ends the command on every worker, as `stop` does, and is raised again. So is
        what `fail` is given, or an `OSError` or `TpukitError` of `on_output` or the input.
        """
        window = self.request.at_once or len(workers)
        try:
            outcomes = fan_out(
                workers, self._work, window=window, cancel=lambda: shield(self.stop, self.clock)
            )
        finally:
            with self._lock:
                self._stopped = True
                live = list(self._live.values())
            for each in live:
                each.connection.close()
        if self._failure:
            raise self._failure
        return outcomes

    def fail(self, error: OSError | TpukitError) -> None:
        """End the command wherever it runs, for what happened here; `on_all` raises it."""
        with self._failing:
            if not self._failure:
                self._failure = error
                self.stop()

    def stop(self) -> None:
        """Start nothing more and end the command wherever it runs."""
        with self._lock:
            self._stopped = True
            live = [each for each in self._live.values() if not each.ended]
            for each in live:
                each.ending = each.ending or threading.Event()
        fan_out(live, self._end, window=max(len(live), 1))

    @property
    def unreached(self) -> dict[RemoteWorker, str]:
        """What is known of the command where it was started, and its end was not seen."""
        with self._lock:
            return {each.worker: each.state for each in self._live.values() if not each.ended}

    def _work(self, worker: RemoteWorker) -> Completed:
        try:
            done = self._run(worker)
        except CommandCancelled:
            raise
        except TpukitError:
            self._fail()
            raise
        if not done.ok:
            self._fail()
        return done

    def _run(self, worker: RemoteWorker) -> Completed:
        if self._stopped:
            raise CommandCancelled(f"not started on {worker.label}")
        connection = worker.connect()
        live = _Live(worker, connection, f"{secrets.token_hex(8)}.{worker.index}")
        with connection:
            with self._lock:
                if self._stopped:
                    raise CommandCancelled(f"not started on {worker.label}")
                self._live[id(live)] = live
            done = self._command(live)
            self._leave(live)
        # A failure after the others were stopped is taken for its consequence.
        if self._stopped and not done.ok:
            raise CommandCancelled(f"ended on {worker.label}")
        return done

    def _command(self, live: _Live) -> Completed:
        request, worker = self.request, live.worker
        # Without variables there is nothing to send, and nothing that a worker has to wait for.
        reads = ["input"] if request.environment or request.stdin else []
        head = f"{request.environment}{live.mark}\n".encode() if reads else b""
        never = Deadline.never(self.clock)
        limit = Deadline.after(self.clock, request.limit) if request.limit else never
        program = program_text("remote/command/device.sh", "remote/command/run.sh")
        launched = launch(request.command, worker.words, sudo=request.sudo)
        try:
            return live.connection.run(
                shell_line(
                    export_lines(worker.variables) + program + launched, [live.mark, *reads]
                ),
                stdin=chain([head], self._input(request.stdin)) if request.stdin else head,
                on_output=partial(self._write, worker),
                deadline=limit,
                keep=request.keep,
            )
        except DeadlinePassed as error:
            raise self._too_long(live) from error
        except TransportFailed:
            worker.check_slice()
            raise

    def _write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        try:
            self.on_output(worker, stream, chunk)
        except (OSError, TpukitError) as error:
            self.fail(error)
            raise CommandCancelled(f"ended on {worker.label}") from error

    def _input(self, source: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
        """Yield the command's input; where it fails the command must not take that for its end."""
        try:
            yield from source()
        except TpukitError as error:
            self.fail(error)
            raise

    def _too_long(self, live: _Live) -> DeadlinePassed:
        what = f"the command on {live.worker.label} did not end in {self.request.limit:g} s"
        try:
            self._end(live)
        except TpukitError:
            return DeadlinePassed(what, why=f"it {live.state}")
        return DeadlinePassed(what, why="it was ended")

    def _end(self, live: _Live) -> None:
        first, grace = self.request.first, self.request.grace
        end = partial(end_processes, clock=self.clock, marks=[live.mark], first=first, grace=grace)
        try:
            try:
                end(live.connection)
            except TransportFailed:  # what it was lost with runs on there
                with live.worker.connect() as connection:
                    end(connection)
            live.ended = True
        except NotEnded as error:
            live.state = f"goes on as {error.reason}" + (f": {error.why}" if error.why else "")
            raise
        finally:
            if live.ending:
                live.ending.set()

    def _leave(self, live: _Live) -> None:
        """Let a worker go; where the command was to be ended, not before all it started is."""
        with self._lock:
            if not live.ending:
                self._live.pop(id(live))
                return
        live.ending.wait(self.request.grace + _END_SECONDS)

    def _fail(self) -> None:
        if self.request.fail_fast and not self._stopped:
            self.stop()


def shield(stop: Callable[[], None], clock: Clock) -> None:
    """Call `stop` and wait for it, also where the interrupt is repeated within a second.

    Then it is the same one, passed on by somebody's wrapper; raises KeyboardInterrupt for a later
    one.
    """
    begun, over = clock.monotonic(), threading.Event()

    def work() -> None:
        try:
            stop()
        finally:
            over.set()

    with suppress(KeyboardInterrupt):
        threading.Thread(target=work, name="tpukit-stop", daemon=True).start()
    # Not `join`: Python 3.11 takes a thread whose join was interrupted for ended.
    while not over.is_set():
        try:
            over.wait(0.2)
        except KeyboardInterrupt:
            if clock.monotonic() - begun > _SAME_INTERRUPT_SECONDS:
                raise

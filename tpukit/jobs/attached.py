"""One command on many workers at once; if it is stopped, it ends on all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tpukit.clock import Clock, Deadline
from tpukit.errors import DeadlinePassed, Fix, TpukitError, TransportFailed, interruption
from tpukit.jobs.end import (
    GRACE_SECONDS,
    EndReport,
    NotEnded,
    end_processes,
    kill_line,
)
from tpukit.jobs.job_list import about
from tpukit.jobs.shell_environment import launch, shell_lines
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.programs import program_text, shell_line
from tpukit.ssh.target import Completed
from tpukit.ssh.worker import RemoteWorker, RetryingConnection, listed
from tpukit.ssh.worker_files import new_run_id, record_name

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection

_SAME_INTERRUPT_SECONDS = 1.0
#: Seconds of silence, after a worker is told to end a command, before a message about it.
_ANSWER_SECONDS = 3.0
#: Seconds for the last output of an ended command. A process that was not found may hold it open.
_OUTPUT_SECONDS = 3.0
#: Seconds for the agent to be on a worker.
_SEND_SECONDS = 60.0
_FOUND = "its processes that could be found"

OnWorkerOutput = Callable[[RemoteWorker, str, bytes], None]
CommandOutcome = Outcome[RemoteWorker, Completed]


@dataclass(frozen=True)
class CommandRequest:
    """A command to run, the shell lines before it, its input, and its limits.

    The lines travel on standard input and may contain secrets. All users of the worker can see the
    command.

    `limit` is in seconds for each worker's command. `at_once` limits the number of commands at the
    same time; 0 means no limit. `keep` is in bytes for each stream of each worker. To end the
    command, it gets the signal `first`, then TERM, and after `grace` seconds KILL. `sudo` runs it
    as root. With `per_chip`, a process runs for each chip, without input.
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
    per_chip: bool = False


class CommandCancelled(TpukitError):
    """The command was ended, or not started, because another worker's failed."""


@dataclass
class _Begun:
    """A worker on which the command has started."""

    worker: RemoteWorker
    link: RetryingConnection
    name: str
    state: str = "may still run: not reached"  #: empty once it has ended
    certain: bool = True  #: True if its control group was ended too
    answered: bool = False  #: True if the worker has answered the request to end the command


@dataclass
class AttachedRun:
    """One command on many workers; `on_output` is called from one thread for each worker.

    The command starts at most once on each worker. `say` gets a line when `stop` ends it, and
    another one if workers do not answer then. `run_id` names the command for `jobs` and `kill`.
    """

    request: CommandRequest
    clock: Clock
    on_output: OnWorkerOutput
    say: Callable[[str], object] = lambda line: None
    run_id: str = ""
    _begun: list[_Begun] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)  #: held while it is ended
    _failure: OSError | TpukitError | None = None
    _stopped: bool = False

    def __post_init__(self) -> None:
        self.run_id = self.run_id or new_run_id(self.clock)

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[CommandOutcome]:
        """Return each worker's outcome, in their order.

        An interrupt ends the command on every worker, as `stop` does.

        Raises:
            Interrupted, Terminated: after an interrupt.
            OSError, TpukitError: the error given to `fail`, or raised by `on_output` or the input.

        A `TpukitError` names the workers on which the command may still run.
        """
        window = self.request.at_once or len(workers)
        cancel = partial(shield, self.stop, self.clock)
        try:
            outcomes = fan_out(workers, self._work, window=window, cancel=cancel)
            if self._failure:
                raise self._failure
            return outcomes
        except KeyboardInterrupt as signal:
            error = interruption(signal)
            error.why = "" if self.remains else self.ended
            self._complete(error)
            raise error from None
        except TpukitError as error:
            self._complete(error)
            raise
        finally:
            self._close()

    def _complete(self, error: TpukitError) -> None:
        error.exists += self.remains
        error.fix = error.fix or self.end_line

    def fail(self, error: OSError | TpukitError) -> None:
        """End the command on all workers because of a local error, which `on_all` then raises."""
        with self._lock:
            if not self._failure:
                self._failure = error
                self.stop()

    def stop(self) -> None:
        """End the command on every worker, and start it on no other."""
        with self._lock:
            self._stopped = True
            running = [begun for begun in self._begun if begun.state]
            if not running:
                return
            if not self._failure:  # after a failure, the error itself is the message
                self.say(f"ending the command on {listed(begun.worker for begun in running)}")
            doubt = threading.Timer(_ANSWER_SECONDS, self._doubt, [running])
            doubt.daemon = True
            doubt.start()
            try:
                fan_out(running, self._end, window=len(running))
            finally:
                doubt.cancel()
            leave = threading.Timer(_OUTPUT_SECONDS, self._close)
            leave.daemon = True
            leave.start()

    def _close(self) -> None:
        for begun in self._begun:
            begun.link.close()

    def _doubt(self, running: Sequence[_Begun]) -> None:
        silent = [begun.worker for begun in running if begun.state and not begun.answered]
        if silent:
            names = listed(silent)
            self.say(f"no answer has come from {names} yet; Ctrl-C leaves the command there")

    @property
    def remains(self) -> tuple[str, ...]:
        """A line for each worker on which the command may still run."""
        left = [begun for begun in self._begun if begun.state]
        return tuple(f"the command on {begun.worker.label} {begun.state}" for begun in left)

    @property
    def end_line(self) -> Fix | None:
        """The command line to end the command on workers that may still run it; None if none."""
        left = [begun.worker for begun in self._begun if begun.state]
        return kill_line(left, self.run_id) if left else None

    @property
    def ended(self) -> str:
        """A sentence on how the command ended; it claims no more than is certain."""
        if not self._begun:
            return "the command was started on no worker"
        if all(begun.certain for begun in self._begun):
            return "the command and its control group were ended on every worker"
        return f"{_FOUND} were ended on every worker"

    def _work(self, worker: RemoteWorker) -> Completed:
        ok = False
        try:
            done = self._run(worker)
            ok = done.ok
            return done
        finally:
            if self.request.fail_fast and not (ok or self._stopped):
                self.stop()

    def _run(self, worker: RemoteWorker) -> Completed:
        if self._stopped:
            raise CommandCancelled(f"not started on {worker.label}")
        with RetryingConnection(worker.connect, Deadline.never(self.clock)) as link:
            begun = _Begun(worker, link, record_name(self.run_id, worker.record))
            connection = link.connection
            with self._lock:
                if self._stopped:
                    raise CommandCancelled(f"not started on {worker.label}")
                self._begun.append(begun)
            done = self._command(begun, connection)
            with self._lock:  # during a stop, wait until the command has ended on all workers
                if not self._stopped:
                    begun.state = ""
        # A failure after the stop counts as a consequence of the stop.
        if self._stopped and not done.ok:
            raise CommandCancelled(f"ended on {worker.label}")
        return done

    def _command(self, begun: _Begun, connection: Connection) -> Completed:
        request, worker = self.request, begun.worker
        # Without variables and input there is nothing to send, so the worker need not wait for it.
        reads = ["input"] if request.environment or request.stdin else []
        head = f"{request.environment}{begun.name}\n".encode() if reads else b""
        never = Deadline.never(self.clock)
        limit = Deadline.after(self.clock, request.limit) if request.limit else never
        program = program_text("agent/scope.sh", "jobs/run.sh")
        per_chip = worker.accelerator if request.per_chip else None
        if per_chip:
            agent_client.ensure(connection, deadline=Deadline.after(self.clock, _SEND_SECONDS))
        launched = launch(request.command, worker.words, sudo=request.sudo, per_chip=per_chip)
        line = shell_line(
            shell_lines(worker.variables) + program + launched,
            [begun.name, about(request.command, ""), *reads],
        )
        try:
            return connection.run(
                line,
                stdin=chain([head], self._input(request.stdin)) if request.stdin else head,
                on_output=partial(self._write, worker),
                deadline=limit,
                keep=request.keep,
            )
        except DeadlinePassed as error:
            with suppress(TpukitError):
                self._end(begun)
            what = f"the command on {worker.label} did not end in {request.limit:g} s"
            ended = "it and its control group" if begun.certain else _FOUND
            why = f"it {begun.state}" if begun.state else f"{ended} were ended"
            raise DeadlinePassed(what, why=why) from error
        except TransportFailed:
            if self._stopped and not begun.state:
                raise CommandCancelled(f"ended on {worker.label}") from None
            worker.check_slice()
            with self._lock:  # during a stop, `_end` still needs the link
                raise

    def _write(self, worker: RemoteWorker, stream: str, chunk: bytes) -> None:
        try:
            self.on_output(worker, stream, chunk)
        except (OSError, TpukitError) as error:
            self.fail(error)
            raise CommandCancelled(f"ended on {worker.label}") from error

    def _input(self, source: Callable[[], Iterable[bytes]]) -> Iterator[bytes]:
        """Yield the input; if it fails, end the command, which would see a normal end of input."""
        try:
            yield from source()
        except TpukitError as error:
            self.fail(error)
            raise

    def _end(self, begun: _Begun) -> None:
        def end(connection: Connection) -> EndReport:
            return end_processes(
                connection,
                self.clock,
                jobs=[begun.name],
                first=self.request.first,
                grace=self.request.grace,
                on_answer=answered,
            )

        def answered() -> None:
            begun.answered = True

        try:  # the command goes on after a loss of the connection, so retry
            begun.certain = begun.link.retry(end).certain
        except NotEnded as error:
            begun.state = f"goes on as {error.reason}" + (f": {error.why}" if error.why else "")
            raise
        begun.state = ""


def shield(stop: Callable[[], None], clock: Clock) -> None:
    """Call `stop` and wait for it.

    An interrupt within a second is the same one, repeated by a wrapper, and is ignored. A later one
    raises KeyboardInterrupt.
    """
    begun, over = clock.monotonic(), threading.Event()

    def work() -> None:
        try:
            stop()
        finally:
            over.set()

    with suppress(KeyboardInterrupt):
        threading.Thread(target=work, name="tpukit-stop", daemon=True).start()
    # Not `join`: after an interrupted join, Python 3.11 believes that the thread has ended.
    while not over.is_set():
        try:
            over.wait(0.2)
        except KeyboardInterrupt:
            if clock.monotonic() - begun > _SAME_INTERRUPT_SECONDS:
                raise

"""Run the smoke test: one program on every worker at once, with the provisioned interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tpukit.accelerators import AcceleratorType
from tpukit.clock import Deadline, polls
from tpukit.errors import (
    BadInput,
    DeadlinePassed,
    DevicesBusy,
    Fix,
    SmokeFailed,
    TpukitError,
    decisive,
)
from tpukit.models import worker_names
from tpukit.provision import recipe_names
from tpukit.provision.recipes import Recipe
from tpukit.remote import agent_client
from tpukit.remote.command.end import Holder, device_holders, stop_runtime
from tpukit.remote.command.fan_out import fan_out
from tpukit.remote.command.worker_lock import worker_lock
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import program_text
from tpukit.remote.worker_files import SMOKE_LOCK, venv_python
from tpukit.smoke.judge import Expectation, Observation, failures, judge
from tpukit.smoke.measurements import TOO_FAST
from tpukit.smoke.presence import look_for_chips
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: Seconds that the smoke test may take at most; the deadline can cut it shorter.
SMOKE_SECONDS = 600.0
#: Seconds for a worker to answer whether it is ready.
_READY_SECONDS = 60.0
#: Seconds that the others get after one worker failed: they may fail for a reason of their own.
_GRACE_SECONDS = 15.0
#: Seconds in which a program whose client is gone lets the devices go: smoke_program.py.
_ORPHAN_SECONDS = 5.0
#: Bytes at the end of each stream that are kept.
_KEEP = 1 << 20


@dataclass(frozen=True)
class Load:
    """How much a smoke test asks of the devices: its level, and the seconds of level 3."""

    level: int = 1
    soak_seconds: float = 0.0


#: What `up` asks.
QUICK = Load()

OnWait = Callable[[str], None]
Item = TypeVar("Item")


def ensure_computes(
    workers: Sequence[RemoteWorker],
    accelerator: AcceleratorType,
    recipe: Recipe,
    *,
    deadline: Deadline,
    on_wait: OnWait = lambda line: None,
    load: Load = QUICK,
    on_report: Callable[[SmokeReport], None] = lambda report: None,
) -> SmokeReport:
    """Compute as `smoke` does, after any other client's smoke test of the slice, or raise.

    Raises:
        BadInput: there are no workers, or the recipe has no such level.
        SmokeFailed: a worker did not compute, or not rightly, or a device is slow.
        DevicesBusy: another process holds a worker's devices.
        DeadlinePassed: a worker gave no answer in time, or another smoke test did not end.
        TpukitError: a worker could not be reached: the class of the error that says why.
            Each of these has every worker's report in `details`.
    """
    if not workers:
        raise BadInput("no workers to compute on")
    check_level(recipe, load.level)
    if load.level == 0:
        report = look_for_chips(workers, accelerator, deadline=deadline.within(SMOKE_SECONDS))
        on_report(report)
        if not report.ok:
            raise _failure(report)
        return report
    with smoke_lock(workers[0], deadline, on_wait):
        limit = deadline.within(SMOKE_SECONDS + load.soak_seconds)
        report = smoke(workers, accelerator, recipe, deadline=limit, load=load)
    on_report(report)
    if not report.ok:
        raise _failure(report)
    return report


def smoke(
    workers: Sequence[RemoteWorker],
    accelerator: AcceleratorType,
    recipe: Recipe,
    *,
    deadline: Deadline,
    load: Load = QUICK,
) -> SmokeReport:
    """Compute on every device of every worker and return what came out.

    Each worker's provisioned interpreter runs the recipe's program at most once, and only when all
    workers are ready: with one missing the others would hang. A program ends at the deadline, and
    when its connection is gone. A worker that fails is never raised: its report has the error.

    Raises `BadInput` where there are no workers.
    """
    if not workers:
        raise BadInput("no workers to compute on")
    run = _Run(recipe, len(workers), deadline, load)
    try:
        observations = run.on_all(workers)
    finally:
        run.close()
    return judge(observations, Expectation(accelerator, recipe, len(workers), load.level))


def check_level(recipe: Recipe, level: int) -> None:
    """Raise `BadInput` where a recipe has no program for a level."""
    if level < 2 or recipe.smoke.bench_program:
        return
    able = [each for each in recipe_names() if Recipe.named(each).smoke.bench_program]
    note = f"--with {' or '.join(able)} has all: its figures are of the chips, no framework's"
    raise BadInput(f"the smoke test of {recipe.name} has levels 0 and 1", fix=Fix(note=note))


@contextmanager
def smoke_lock(
    worker: RemoteWorker, deadline: Deadline, on_wait: OnWait = lambda line: None
) -> Iterator[None]:
    """Run the block while no other client of this user tests the slice of `worker`.

    Two at once would fail each other: a process has a TPU to itself, and `jax.distributed` has one
    coordinator port a slice. `worker` is the slice's first: its lock is that of all. `on_wait` gets
    one line where another client has it.

    Raises `DeadlinePassed` where another client has the lock until the deadline.
    """
    ahead, late = "another smoke test of the slice runs", "the smoke test had no turn"
    with worker_lock(worker, SMOKE_LOCK, deadline, ahead=ahead, late=late, on_wait=on_wait):
        yield


def _failure(report: SmokeReport) -> TpukitError:
    failed = [worker for worker in report.workers if not worker.ok]
    if not failed:
        bad = failures(report)
        chips = any(each.note != TOO_FAST for each in report.failed_measurements)
        stays = "a bad chip stays with its slice: a new slice may get another one"
        return SmokeFailed(
            f"{len(bad)} of {len(report.measurements)} figures are no healthy slice's",
            why="\n".join([*bad, *report.notes]),
            fix=Fix(note=stays if chips else "report it: the program is at fault, not the slice"),
            details=report.document(),
        )
    cause = decisive(worker.cause for worker in failed)
    kind = type(cause) if cause else SmokeFailed
    first = next((each for each in failed if cause and each.cause is cause), failed[0])
    # Of a computation that hung, the tail is a traceback, and of one that answered it says nothing:
    # it is in the details.
    tail = () if cause or first.version else first.log_tail
    named = worker_names(worker.worker for worker in failed)
    fix = cause or first.cause
    return kind(
        cause.what if isinstance(cause, DevicesBusy) else f"the smoke test failed on {named}",
        why="\n".join([first.error, *report.notes, *tail]),
        exists=cause.exists if cause else (),
        fix=fix.fix if fix else None,
        details=report.document(),
    )


class _Run:
    """One connection a worker; first to see whether all are ready, then for the program."""

    def __init__(self, recipe: Recipe, workers: int, deadline: Deadline, load: Load) -> None:
        self._recipe = recipe
        self._load = load
        self._python = venv_python(recipe.name)
        self._workers = workers
        self._deadline = deadline
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._running: set[int] = set()
        self._stopped: set[int] = set()

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[Observation]:
        """Start the program on all workers, or on none where one is not ready."""
        looks = self._at_once(workers, self._look)
        if any(look.error for look in looks):
            idle = SmokeFailed("not started")
            return [
                look if look.error else replace(look, error=idle, waiting=True) for look in looks
            ]
        self._running = {look.worker for look in looks}
        return self._at_once(looks, self._run)

    def close(self) -> None:
        """Close every connection, which also ends what runs over it."""
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()

    def _at_once(
        self, items: Sequence[Item], work: Callable[[Item], Observation]
    ) -> list[Observation]:
        outcomes = fan_out(items, work, window=len(items), cancel=self.close)
        return [outcome.value for outcome in outcomes if outcome.value]

    def _look(self, worker: RemoteWorker) -> Observation:
        """See whether the worker is ready, over the connection that the program will use."""
        seen = Observation(worker.index)
        try:
            connection = worker.connect()
            with self._lock:
                self._connections[worker.index] = connection
            limit = self._deadline.within(_READY_SECONDS)
            request, failure = {"path": self._python}, "it gave no answer whether it is ready"
            answer = agent_client.ask(
                connection, "look_for_python", request, failure, deadline=limit
            )
            ready = replace(seen, emulated_devices=answer.number("emulated"))
            if not answer.flag("there"):
                what = f"there is no Python at {self._python}: it is not provisioned"
                fix = Fix.command("tpukit", "provision", worker.slice, self._recipe.name)
                return replace(ready, error=SmokeFailed(what, fix=fix))
            return replace(ready, error=_busy(worker, connection, limit))
        except TpukitError as error:
            return replace(seen, error=error)

    def _run(self, look: Observation) -> Observation:
        """Run the program once; where it fails, end the others, which wait for it."""
        started = self._deadline.clock.monotonic()
        limit = self._deadline.remaining()
        seconds = f"{max(limit - 5.0, limit * 0.8):.3f}"
        level, soak = str(self._load.level), f"{self._load.soak_seconds:.3f}"
        words = [self._python, "-I", "-", self._recipe.name, str(self._workers), seconds]
        files = self._recipe.smoke.files(self._load.level)
        program = program_text(*(f"smoke/{each}" for each in files), "smoke/smoke_program.py")
        try:
            done = self._connections[look.worker].run(
                quote([*words, level, soak]),
                stdin=program.encode(),
                deadline=self._deadline,
                keep=_KEEP,
            )
            seen = replace(look, status=done.status, stdout=done.stdout, stderr=done.stderr)
        except DeadlinePassed:
            late = DeadlinePassed(f"no answer within {limit:.0f} s")
            seen = replace(look, error=late, waiting=True)
        except TpukitError as error:
            seen = replace(look, error=error, waiting=look.worker in self._stopped)
        seen = replace(seen, seconds=self._deadline.clock.monotonic() - started)
        self._leave(look.worker, failed=seen.status != 0)
        return seen

    def _leave(self, worker: int, failed: bool) -> None:
        """Count a worker out; after a failure give the others a grace, then end them."""
        with self._lock:
            self._running.discard(worker)
        if not failed:
            return
        for _ in polls(self._deadline.within(_GRACE_SECONDS), first=0.2, most=1.0):
            if not self._running:
                return
        with self._lock:
            self._stopped |= self._running
            connections = [self._connections[index] for index in self._running]
        for connection in connections:
            connection.close()


def _busy(worker: RemoteWorker, connection: Connection, limit: Deadline) -> DevicesBusy | None:
    """Return the error for devices that another process holds, and goes on holding."""
    held: tuple[Holder, ...] = ()
    for _ in polls(limit.within(_ORPHAN_SECONDS)):
        # Without a Python of the system nobody can look: the smoke test shows what is wrong.
        with suppress(TpukitError):
            held = device_holders(connection, deadline=limit)
        if not held:
            return None
    what = f"the devices of {worker.label} are busy with {', '.join(map(str, held))}"
    if any(each.of_runtime for each in held):
        return DevicesBusy(what, fix=stop_runtime(worker.slice))
    run = next((each.run for each in held if each.run and not each.attached), "")
    attach = Fix.command("tpukit", "attach", worker.slice, run, note="waits until it has ended")
    return DevicesBusy(
        what,
        fix=attach if run else Fix(note="the same command goes on once it has ended"),
    )

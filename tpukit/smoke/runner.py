"""Run the smoke test: one program on all workers at once, with the provisioned interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from tpukit.jobs.end import Holder, device_holders, stop_runtime
from tpukit.models import worker_names
from tpukit.provision import recipe_names
from tpukit.provision.recipes import Recipe
from tpukit.smoke.chip_judge import judge_chips
from tpukit.smoke.judge import Expectation, Observation, judge
from tpukit.smoke.measurements import TOO_FAST
from tpukit.smoke.presence import look_for_chips
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.ssh import agent_client
from tpukit.ssh.fan_out import fan_out
from tpukit.ssh.programs import program_text
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import SMOKE_LOCK, venv_python
from tpukit.ssh.worker_lock import worker_lock
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection
    from tpukit.ssh.target import Completed

#: The most seconds for the smoke test; the deadline may be earlier.
SMOKE_SECONDS = 600.0
#: Seconds for a worker to say that it is ready.
_READY_SECONDS = 60.0
#: Seconds for the other workers after one has failed, so that they can report their own failures.
_GRACE_SECONDS = 15.0
#: Seconds until a program frees the devices after its client is gone: smoke_program.py.
_ORPHAN_SECONDS = 5.0
#: The bytes to keep from the end of each stream.
_KEEP = 1 << 20


@dataclass(frozen=True)
class Load:
    """The work for the devices: the level of the smoke test, and the seconds of level 3.

    With `per_chip`, one process computes on each chip, as with `run --per-chip`; for level 1.
    """

    level: int = 1
    soak_seconds: float = 0.0
    per_chip: bool = False


#: The work that `up` gives.
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
) -> SmokeReport:
    """Run the smoke test after any other client's test of the slice; raise if it fails.

    The errors after BadInput have the report of all workers in `details`.

    Raises:
        BadInput: there are no workers, or the recipe lacks this level.
        SmokeFailed: a worker did not compute, computed wrong numbers, or has a slow device.
        DevicesBusy: another process holds a worker's devices.
        DeadlinePassed: a worker gave no answer in time, or another smoke test did not end.
        TpukitError: a worker could not be reached; it has the class of the connection's error.
    """
    if not workers:
        raise BadInput("no workers to compute on")
    check_level(recipe, load.level)
    if load.level == 0:
        report = look_for_chips(workers, accelerator, deadline=deadline.within(SMOKE_SECONDS))
    else:
        # Two tests at once would both fail: a TPU belongs to one process, and `jax.distributed` has
        # one coordinator port for a slice.
        ahead, late = "another smoke test of the slice runs", "the smoke test had no turn"
        first = workers[0]
        with worker_lock(first, SMOKE_LOCK, deadline, ahead=ahead, late=late, on_wait=on_wait):
            limit = deadline.within(SMOKE_SECONDS + load.soak_seconds)
            report = smoke(workers, accelerator, recipe, deadline=limit, load=load)
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
    """Compute on every device of every worker, and return the report.

    Each worker runs the recipe's program at most once, and only if all workers are ready: the
    others would hang without the missing one. A program ends at the deadline and when its
    connection is gone. The report contains the errors of failed workers.
    """
    run = _Run(accelerator, recipe, len(workers), deadline, load)
    try:
        observations = run.on_all(workers)
    finally:
        run.close()
    if load.per_chip:
        return judge_chips(observations, accelerator, recipe)
    return judge(observations, Expectation(accelerator, recipe, len(workers), load.level))


def check_level(recipe: Recipe, level: int) -> None:
    """Raise `BadInput` if a recipe has no program for a level."""
    if level and not recipe.smoke.program:
        note = f"compute with another recipe, and provision {recipe.name} beside it"
        raise BadInput(f"the recipe {recipe.name} has no smoke test", fix=Fix(note=note))
    if level < 2 or recipe.smoke.bench_program:
        return
    able = [one for one in map(Recipe.named, recipe_names()) if one.smoke.bench_program]
    smallest = min(able, key=lambda one: one.releases[0].disk_megabytes).name
    note = f"--with {smallest} has all levels: they measure the chips, not the framework"
    raise BadInput(f"the smoke test of {recipe.name} has levels 0 and 1", fix=Fix(note=note))


def _failure(report: SmokeReport) -> TpukitError:
    failed = [worker for worker in report.workers if not worker.ok]
    if not failed:
        bad = [*map(str, report.failed_measurements)]
        chips = any(figure.note != TOO_FAST for figure in report.failed_measurements)
        stays = "a bad chip stays with its slice: a new slice may get another one"
        return SmokeFailed(
            f"{len(bad)} of {len(report.measurements)} figures are too low or wrong",
            why="\n".join([*bad, *report.notes]),
            fix=Fix(note=stays if chips else "report it: the program is at fault, not the slice"),
            details=report.document(),
        )
    cause = decisive(worker.cause for worker in failed)
    kind = type(cause) if cause else SmokeFailed
    first = next((worker for worker in failed if cause and worker.cause is cause), failed[0])
    # After a hang the tail is a traceback, and after an answer it is useless: see the details.
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
    """A run with one connection for each worker: first for `_look`, then for the program."""

    def __init__(
        self,
        accelerator: AcceleratorType,
        recipe: Recipe,
        workers: int,
        deadline: Deadline,
        load: Load,
    ) -> None:
        self._accelerator = accelerator
        self._recipe = recipe
        self._load = load
        self._python = venv_python(recipe.name)
        self._workers = 1 if load.per_chip else workers  # that compute together
        self._deadline = deadline
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._running: set[int] = set()
        self._stopped: set[int] = set()

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[Observation]:
        """Run the program on all workers, or on none if one is not ready."""
        looks = self._at_once(workers, self._look)
        if any(look.error for look in looks):
            idle = SmokeFailed("not started")
            return [
                look if look.error else replace(look, error=idle, waiting=True) for look in looks
            ]
        self._running = {look.worker for look in looks}
        return self._at_once(looks, self._run)

    def close(self) -> None:
        """Close every connection, which also ends the program on the worker."""
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
        """Connect, and return an observation with an error if the worker is not ready."""
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
        """Run the program once; if it fails, end the others, which wait for it."""
        started = self._deadline.clock.monotonic()
        limit = self._deadline.remaining()
        seconds = f"{max(limit - 5.0, limit * 0.8):.3f}"
        level, soak = str(self._load.level), f"{self._load.soak_seconds:.3f}"
        words = [self._python, "-I", "-", self._recipe.name, str(self._workers), seconds]
        files = self._recipe.smoke.files(self._load.level)
        program = program_text(*(f"smoke/{name}" for name in files), "smoke/smoke_program.py")
        try:
            done = self._completed(look.worker, quote([*words, level, soak]), program)
            seen = replace(look, status=done.status, stdout=done.stdout, stderr=done.stderr)
        except DeadlinePassed:
            late = DeadlinePassed(f"no answer within {limit:.0f} s")
            seen = replace(look, error=late, waiting=True)
        except TpukitError as error:
            seen = replace(look, error=error, waiting=look.worker in self._stopped)
        seen = replace(seen, seconds=self._deadline.clock.monotonic() - started)
        self._leave(look.worker, failed=seen.status != 0 and not self._load.per_chip)
        return seen

    def _completed(self, worker: int, line: str, program: str) -> Completed:
        """Run the program on a worker, once or on each chip, and return how it ended."""
        connection = self._connections[worker]
        if not self._load.per_chip:
            return connection.run(line, stdin=program.encode(), deadline=self._deadline, keep=_KEEP)
        one = f"{line} <<'END'\n{program}\nEND"  # the processes have no input
        request = {
            "command": [one],
            "chips": self._accelerator.chips_per_worker,
            "accelerator_type": self._accelerator.name,
            "sudo": False,
        }
        return agent_client.run(
            connection, "run_per_chip", request, deadline=self._deadline, keep=_KEEP
        )

    def _leave(self, worker: int, failed: bool) -> None:
        """Record that a worker has ended; after a failure, end the others after a grace period."""
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
    """Return the error if another process still holds the devices after `_ORPHAN_SECONDS`."""
    held: tuple[Holder, ...] = ()
    for _ in polls(limit.within(_ORPHAN_SECONDS)):
        # This fails without the system's Python; then the smoke test itself shows the problem.
        with suppress(TpukitError):
            held = device_holders(connection, deadline=limit)
        if not held:
            return None
    what = f"the devices of {worker.label} are busy with {', '.join(map(str, held))}"
    if any(holder.of_runtime for holder in held):
        return DevicesBusy(what, fix=stop_runtime(worker.slice))
    run = next((holder.run for holder in held if holder.run and not holder.attached), "")
    attach = Fix.command("tpukit", "attach", worker.slice, run, note="waits until it has ended")
    return DevicesBusy(
        what,
        fix=attach if run else Fix(note="repeat the command after the process has ended"),
    )

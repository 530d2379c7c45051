"""What a watch does on slices and their workers: makes, provisions, pushes, begins, follows."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tpukit.access import slice_workers
from tpukit.access.context import Context
from tpukit.access.creation import ensure_somewhere, wait_reachable
from tpukit.clock import Clock, Deadline
from tpukit.errors import Fix, NameTaken, TpukitError
from tpukit.models import Slice, SliceRequest
from tpukit.provision.recipes import Recipe
from tpukit.provision.requirements import Requirements
from tpukit.recovery.watch_file import WatchSpec
from tpukit.remote.command.fan_out import Outcome, values
from tpukit.remote.connection.client import Connection
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.job.detached_job import JobLost, JobResult
from tpukit.remote.transfer.upload import TransferContext
from tpukit.slices.capacity import Search
from tpukit.up import Progress, up
from tpukit.work import pushes, runs
from tpukit.work.guard import install_guard, wants_guard
from tpukit.work.worktree import read_tree

#: Seconds that a slice may take to be READY once there is room.
READY_SECONDS = 1200.0
#: Seconds for reaching the workers of a slice that is READY, and for the whole of provisioning it.
CONNECT_SECONDS, UP_SECONDS = 300.0, 3600.0
#: Seconds for which workers that are out of reach are tried before the API is believed alone.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How the command ended: the highest of all workers' statuses, or that its processes are gone.

    `status` is None where a worker has restarted under it, `why` says so.
    """

    status: int | None
    why: str = ""


@dataclass
class Workload:
    """What is done on slices and their workers; every method raises `TpukitError`.

    `environment` are the command's shell lines, and `setup` what its workers are provisioned with;
    both are read anew for each beginning. `output` gets the workers whose log is shown and returns
    what takes it.
    """

    context: Context
    endpoint: str  #: of the API
    spec: WatchSpec
    environment: Callable[[], str]
    setup: Callable[[], tuple[Recipe | None, Requirements | None]]
    progress: Callable[[], AbstractContextManager[Progress]]
    transfer: Callable[[], AbstractContextManager[TransferContext]]
    output: Callable[[Sequence[RemoteWorker]], runs.OnLog]
    say: Callable[[str], None]
    _follower: _Follower | None = field(default=None, init=False)

    def make(self, search: Search) -> Slice:
        """Make sure of one slice that is READY and lets us in, where there is room; return it."""
        waits = search.asking.remaining() if search.asking else 0.0
        deadline = Deadline.after(self.context.clock, waits + READY_SECONDS)
        context = self.context.within(deadline)
        made = ensure_somewhere(
            context,
            search,
            firewall=self.spec.firewall,
            deadline=deadline,
            on_state=self.say,
        )
        return wait_reachable(context, made).slice

    def begin(self, found: Slice, request: SliceRequest) -> str:
        """Make sure that the command runs on the slice, once, and follow it; return the event.

        If nothing of it is there, the slice is provisioned and pushed to before. Raises `NameTaken`
        if another run is there.
        """
        if not self.spec.command:
            self._prepare(request)
            return "ready"
        workers = self._workers(found)
        states = [run for own in values(runs.states(workers, self.context.clock)) for run in own]
        ours = [each for each in states if each.run == self.spec.run_id]
        whole = len(ours) == len(workers) and not any(each.state == "lost" for each in ours)
        if not whole:
            self._check_alone([each.run for each in states if each.state == "running"])
            if ours:
                self._clear(workers)
            self._start(found, request)
        clock = self.context.clock
        self._follower = _Follower(clock, workers, self.spec.run_id, self.output, self.say)
        return self.spec.begun[whole]

    def ended(self) -> Ended | None:
        """Return how the command ended, or None while it runs, or nobody can say."""
        return self._follower.ended() if self._follower else None

    def leave(self) -> None:
        """Follow the command no longer: its slice is lost."""
        if self._follower:
            self._follower.left.set()
        self._follower = None
        self.context.hints.forget(self.spec.request.name)

    def _workers(self, found: Slice) -> list[RemoteWorker]:
        limit = Deadline.after(self.context.clock, CONNECT_SECONDS)
        return slice_workers.workers(
            self.context, [found], "all", limit, CONNECT_SECONDS, on_wait=self.say
        )

    def _prepare(self, request: SliceRequest) -> None:
        """Provision the slice and let it compute, where a recipe was asked for."""
        recipe, requirements = self.setup()
        if recipe is None:
            return
        with self.progress() as progress:
            up(
                self.context,
                Search([request]),
                recipe,
                endpoint=self.endpoint,
                firewall=self.spec.firewall,
                requirements=requirements,
                deadline=Deadline.after(self.context.clock, UP_SECONDS),
                progress=progress,
            )

    def _start(self, found: Slice, request: SliceRequest) -> None:
        self._prepare(request)
        workers = self._workers(found)
        if not self.spec.recipe and wants_guard(found):
            limit = Deadline.after(self.context.clock, CONNECT_SECONDS)
            self.say(install_guard(workers[0], found, self.endpoint, deadline=limit).summary)
        if self.spec.push:
            tree, target = read_tree(Path(self.spec.push)), pushes.target_path(self.spec.push_to)
            with self.transfer() as context:
                values(pushes.prepare(tree, target, workers, context).send(context))
        command, lines = self.spec.command, self.environment()
        runs.start(workers, self.spec.run_id, command, lines, self.context.clock)

    def _check_alone(self, running: Sequence[str]) -> None:
        name = self.spec.request.name
        for run in (run for run in running if run != self.spec.run_id):
            raise NameTaken(
                f"run {run} is on slice {name} already",
                why="two runs at once disturb each other, and use the devices of one",
                fix=Fix.command("tpukit", "kill", name, run),
                otherwise=Fix(note=f"--run-id {run} watches that one"),
            )

    def _clear(self, workers: Sequence[RemoteWorker]) -> None:
        """End what some workers have of the run, and forget it: it never runs twice at once."""
        run, clock = self.spec.run_id, self.context.clock
        values(runs.end(workers, [run], clock))
        for states in values(runs.states(workers, clock, run, ended_before=0.0)):
            if any(state.freed is None for state in states):
                raise NameTaken(f"run {run} still runs, and cannot be ended")


@dataclass
class _Follower:
    """Follows a run's log in a thread, from its beginning, as often as that takes.

    A slice that is lost ends the connections; once it is `left`, no others are made.
    """

    clock: Clock
    workers: Sequence[RemoteWorker]
    run_id: str
    output: Callable[[Sequence[RemoteWorker]], runs.OnLog]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.left = threading.Event()
        self._workers = [
            replace(each, connect=partial(self._connect, each)) for each in self.workers
        ]
        self._write = self.output(self._workers)
        self._shown: dict[int, int] = {}
        self._outcomes: list[Outcome[RemoteWorker, JobResult | None]] = []
        self._defect: Exception | None = None
        self._thread = self._begun()

    def ended(self) -> Ended | None:
        """Return how the run ended; follow it again where the workers were out of reach."""
        if self._thread.is_alive():
            return None
        if self._defect:
            raise self._defect
        errors = [each.error for each in self._outcomes if each.error]
        lost = next((each for each in errors if isinstance(each, JobLost)), None)
        if lost:
            return Ended(None, lost.summary())
        results = [each.value for each in self._outcomes if each.value]
        if errors or len(results) < len(self._workers):
            for error in errors[:1]:
                self.say(f"{error.summary()}; following on")
            self._thread = self._begun()
            return None
        return Ended(max(each.status for each in results))

    def _begun(self) -> threading.Thread:
        # A daemon: a worker that is silent must not keep an interrupted command.
        thread = threading.Thread(target=self._follow, name="tpukit-follow", daemon=True)
        thread.start()
        return thread

    def _follow(self) -> None:
        self._sent: dict[int, int] = {}
        try:
            self._outcomes = runs.follow(
                self._workers,
                self.run_id,
                self._on_log,
                self.clock,
                notice=lambda worker, word: self.say(f"{worker.label}: {word}"),
                patience=PATIENCE_SECONDS,
            )
        except Exception as defect:  # noqa: BLE001 - raised in the thread that asks
            self._defect = None if isinstance(defect, TpukitError) else defect
            self._outcomes = []

    def _on_log(self, worker: RemoteWorker, data: bytes, epoch: int) -> None:
        """Hand on what was not shown before: a log that is followed again begins at its start."""
        if self.left.is_set():
            return
        begin = self._sent.get(worker.index, 0)
        self._sent[worker.index] = begin + len(data)
        skip = max(0, self._shown.get(worker.index, 0) - begin)
        if data[skip:]:
            self._shown[worker.index] = begin + len(data)
            try:
                self._write(worker, data[skip:], epoch)
            except OSError as error:
                if error.errno != errno.ENOSPC:  # then only what is shown is lost
                    raise

    def _connect(self, worker: RemoteWorker) -> Connection:
        if self.left.is_set():
            raise TpukitError("it is followed no longer")
        return worker.connect()

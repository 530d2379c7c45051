"""The work of a watch on slices: make, provision, push, start the command, follow its log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tpukit.access import slice_workers
from tpukit.access.context import Context
from tpukit.access.creation import ensure_somewhere, wait_reachable
from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import Fix, NameTaken, NotFound, TpukitError
from tpukit.files import pushes
from tpukit.files.upload import TransferContext
from tpukit.files.worktree import read_tree
from tpukit.jobs import runs
from tpukit.jobs.detached_job import JobLost, JobResult
from tpukit.jobs.guard import install_guard, wants_guard
from tpukit.jobs.ray_cluster import RayCluster
from tpukit.models import Slice, SliceRequest
from tpukit.provision.recipes import Recipe
from tpukit.provision.requirements import Requirements
from tpukit.slices.capacity import Search
from tpukit.slices.find import find
from tpukit.smoke.cleanliness import require_clean
from tpukit.ssh.client import Connection
from tpukit.ssh.fan_out import Outcome, values
from tpukit.ssh.worker import RemoteWorker
from tpukit.up import Progress, up
from tpukit.watch.saved_watches import WatchSpec

#: Seconds for a slice to be READY when there is capacity.
READY_SECONDS = 1200.0
#: Seconds to reach the workers of a READY slice, and to provision it.
CONNECT_SECONDS, UP_SECONDS = 300.0, 3600.0
#: Seconds in which the head of a Ray cluster that has just been made again is joined.
HEAD_SECONDS = 600.0
#: Seconds to try unreachable workers before the follower starts again.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """The end of the command: the highest status of all workers.

    If its processes have vanished, `status` is None and `why` has the reason.
    """

    status: int | None
    why: str = ""


@dataclass
class Workload:
    """The work on slices and their workers; every method raises `TpukitError`.

    `environment` returns the command's shell lines, and `setup` the recipe and requirements for its
    workers; both are called for each start. `output` returns the callback for the workers' log.
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
        """Obtain a READY slice that lets us in, and return it."""
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

    def begin(self, slice_: Slice, request: SliceRequest) -> str:
        """Start the command unless it already runs, and follow it; return the event.

        Before a start, the slice is provisioned and the folder pushed. Raises `NameTaken` if
        another run uses the slice.
        """
        if not self.spec.command:
            self._prepare(slice_, request)
            return self.spec.begun[False]
        workers = self._workers(slice_)
        states = [run for own in values(runs.states(workers, self.context.clock)) for run in own]
        ours = [state for state in states if state.run == self.spec.run_id]
        whole = len(ours) == len(workers) and not any(state.state == "lost" for state in ours)
        if not whole:
            self._check_alone([state.run for state in states if state.state == "running"])
            if ours:
                self._clear(workers)
            self._prepare(slice_, request)
            self._start(slice_)
        clock = self.context.clock
        self._follower = _Follower(clock, workers, self.spec.run_id, self.output, self.say)
        return self.spec.begun[whole]

    def ended(self) -> Ended | None:
        """Return the end of the command, or None while it runs or its state is unknown."""
        return self._follower.ended() if self._follower else None

    def leave(self) -> None:
        """Stop following the command, because its slice is lost."""
        if self._follower:
            self._follower.left.set()
        self._follower = None
        self.context.hints.forget(self.spec.request.name)

    def _workers(self, slice_: Slice) -> list[RemoteWorker]:
        limit = Deadline.after(self.context.clock, CONNECT_SECONDS)
        return slice_workers.workers(
            self.context, [slice_], "all", limit, CONNECT_SECONDS, on_wait=self.say, claims=True
        )

    def _prepare(self, slice_: Slice, request: SliceRequest) -> None:
        """Provision and test the slice if there is a recipe; complete its Ray cluster."""
        recipe, requirements = self.setup()
        if recipe:
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
        if self.spec.ray:
            self._join(slice_)

    def _join(self, slice_: Slice) -> None:
        """Complete the Ray cluster; slices that are missing join it when they are back.

        Only the watch of the head's slice starts the head, because two would end each other's.
        The others wait for it: if it was lost as well, it may not have seen them yet.
        """
        first, clock = self.spec.ray[0], self.context.clock
        told: set[str] = set()

        def say(line: str) -> None:
            if line not in told:
                self.say(line)
            told.add(line)

        for _ in polls(Deadline.after(clock, HEAD_SECONDS), first=1.0, most=10.0):
            workers = self._ray_workers(slice_, say)
            cluster = RayCluster(workers, clock, self.say)
            if first == slice_.name or cluster.token():
                cluster.up(Deadline.after(clock, UP_SECONDS))
                return
            say(f"Ray waits for its head on {first}")
        self.say(f"not in Ray: `tpukit ray up {','.join(self.spec.ray)}` joins it")

    def _ray_workers(self, slice_: Slice, say: Callable[[str], None]) -> list[RemoteWorker]:
        """Return the workers of those slices of the cluster that are there."""
        context, slices = self.context, []
        for name in self.spec.ray:
            try:
                slices.append(slice_ if name == slice_.name else find(context.provider, name))
            except NotFound as error:
                say(f"Ray without {name}: {error.summary()}")
        return slice_workers.workers(
            context,
            slices,
            "all",
            Deadline.after(context.clock, CONNECT_SECONDS),
            CONNECT_SECONDS,
            on_wait=say,
            on_failure=lambda name, error: say(f"Ray without {name}: {error.summary()}"),
        )

    def _start(self, slice_: Slice) -> None:
        workers = self._workers(slice_)
        if not self.spec.recipe and wants_guard(slice_):
            limit = Deadline.after(self.context.clock, CONNECT_SECONDS)
            self.say(install_guard(workers[0], slice_, self.endpoint, deadline=limit).summary)
        if self.spec.clean:
            require_clean(workers, slice_, self.context.clock, CONNECT_SECONDS)
        commit = ""
        if self.spec.push:
            tree, target = read_tree(Path(self.spec.push)), pushes.target_path(self.spec.push_to)
            with self.transfer() as context:
                values(pushes.prepare(tree, target, workers, context).send(context))
            commit = tree.commit
        command, lines, clock = self.spec.command, self.environment(), self.context.clock
        runs.start(workers, self.spec.run_id, command, lines, clock, commit=commit)

    def _check_alone(self, running: Sequence[str]) -> None:
        name = self.spec.request.name
        for run in (run for run in running if run != self.spec.run_id):
            raise NameTaken(
                f"run {run} is already on slice {name}",
                why="two runs would use the same devices",
                fix=Fix.command("tpukit", "kill", name, run),
                otherwise=Fix(note=f"--run-id {run} watches that run"),
            )

    def _clear(self, workers: Sequence[RemoteWorker]) -> None:
        """End and remove the run on workers that still have it, so that it never runs twice."""
        run, clock = self.spec.run_id, self.context.clock
        values(runs.end(workers, [run], clock))
        for states in values(runs.states(workers, clock, run, ended_before=0.0)):
            if any(state.freed is None for state in states):
                raise NameTaken(f"run {run} still runs, and cannot be ended")


@dataclass
class _Follower:
    """Follows a run's log in a thread, and starts again from its beginning after failures.

    After `left` is set, it makes no more connections.
    """

    clock: Clock
    workers: Sequence[RemoteWorker]
    run_id: str
    output: Callable[[Sequence[RemoteWorker]], runs.OnLog]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self.left = threading.Event()
        self._workers = [
            replace(worker, connect=partial(self._connect, worker)) for worker in self.workers
        ]
        self._write = self.output(self._workers)
        self._shown: dict[int, int] = {}
        self._outcomes: list[Outcome[RemoteWorker, JobResult | None]] = []
        self._defect: Exception | None = None
        self._thread = self._begun()

    def ended(self) -> Ended | None:
        """Return the end of the run, or None; follow it again if workers could not be reached."""
        if self._thread.is_alive():
            return None
        if self._defect:
            raise self._defect
        errors = [outcome.error for outcome in self._outcomes if outcome.error]
        lost = next((error for error in errors if isinstance(error, JobLost)), None)
        if lost:
            return Ended(None, lost.summary())
        results = [outcome.value for outcome in self._outcomes if outcome.value]
        if errors or len(results) < len(self._workers):
            for error in errors[:1]:
                self.say(f"{error.summary()}; following again")
            self._thread = self._begun()
            return None
        return Ended(max(result.status for result in results))

    def _begun(self) -> threading.Thread:
        # A daemon, so that a silent worker does not delay an interrupted command.
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

    def _on_log(self, worker: RemoteWorker, data: bytes) -> None:
        """Pass new output on; skip shown output, because every follow begins at the start."""
        if self.left.is_set():
            return
        begin = self._sent.get(worker.index, 0)
        self._sent[worker.index] = begin + len(data)
        skip = max(0, self._shown.get(worker.index, 0) - begin)
        if data[skip:]:
            self._shown[worker.index] = begin + len(data)
            try:
                self._write(worker, data[skip:])
            except BrokenPipeError:
                raise
            except OSError:  # a full disk or a used-up quota here loses only the shown output
                return

    def _connect(self, worker: RemoteWorker) -> Connection:
        if self.left.is_set():
            raise TpukitError("the run is no longer followed")
        return worker.connect()

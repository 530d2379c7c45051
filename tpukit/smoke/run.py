"""Run the smoke test: one program on every worker at once, with the provisioned interpreter."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, TypeVar

from tpukit.accelerators import AcceleratorType
from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import BadInput, DeadlinePassed, TpukitError
from tpukit.models import SmokeReport
from tpukit.remote.fanout import fan_out
from tpukit.remote.values import Completed
from tpukit.remote.worker import RemoteWorker
from tpukit.smoke.answer import Observation
from tpukit.smoke.judge import Expectation, judge
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection

#: Frameworks that the program on the workers knows.
FRAMEWORKS = ("jax", "torch_xla")
#: Seconds for a worker to say whether it is ready.
_READY_SECONDS = 60.0
#: Seconds that the others get after one worker failed: they may fail for a reason of their own.
_GRACE_SECONDS = 15.0
#: Bytes at the end of each stream that are kept.
_KEEP = 1 << 20
_READY = re.compile(rb"^TPUKIT-READY (ready|missing) ([0-9]{1,6})$", re.MULTILINE)

Item = TypeVar("Item")


def smoke(
    workers: Sequence[RemoteWorker],
    accelerator: AcceleratorType,
    framework: str,
    *,
    python: str,
    clock: Clock,
    deadline: Deadline,
) -> SmokeReport:
    """Compute on every device of every worker and return what came out.

    `python` is the interpreter's path on the workers, absolute or below the home directory. The
    program is started only when every worker is ready, at most once each: with one worker missing
    the others would hang. It ends at the deadline, and when the connection is gone.

    Raises:
        BadInput: there is no program for the framework, or there are no workers.
    """
    if framework not in FRAMEWORKS or not workers:
        raise BadInput(f"no smoke test for {framework}", fix=f"one of {', '.join(FRAMEWORKS)}")
    test = _SmokeTest(framework, _path(python), len(workers), clock, deadline)
    try:
        observations = test.on_all(workers)
    finally:
        test.close()
    return judge(observations, Expectation(accelerator, framework, len(workers)))


class _SmokeTest:
    """One connection a worker; first to see whether all are ready, then for the program."""

    def __init__(
        self, framework: str, python: str, workers: int, clock: Clock, deadline: Deadline
    ) -> None:
        self._framework = framework
        self._python = python
        self._workers = workers
        self._clock = clock
        self._deadline = deadline
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._running: set[int] = set()
        self._stopped: set[int] = set()

    def on_all(self, workers: Sequence[RemoteWorker]) -> list[Observation]:
        """Start the program on all workers, or on none where one is not ready."""
        looks = self._at_once(workers, self._look)
        if any(look.fault for look in looks):
            return [
                look if look.fault else replace(look, fault="not started", waiting=True)
                for look in looks
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
            command = quote(["sh", "-s", "--", self._python])
            limit = self._deadline.within(_READY_SECONDS)
            done = connection.run(command, stdin=_program("ready.sh"), deadline=limit)
        except TpukitError as error:
            return replace(seen, fault=one_line(error.summary()))
        return _read_readiness(seen, done, self._python)

    def _run(self, look: Observation) -> Observation:
        """Run the program once; where it fails, end those who wait for it in vain."""
        started = self._clock.monotonic()
        limit = self._deadline.remaining()
        seconds = f"{max(limit - 5.0, limit * 0.8):.3f}"
        words = [self._python, "-I", "-", self._framework, str(self._workers), seconds]
        try:
            done = self._connections[look.worker].run(
                quote(words), stdin=_program("smoke.py"), deadline=self._deadline, keep=_KEEP
            )
            seen = replace(look, status=done.status, stdout=done.stdout, stderr=done.stderr)
        except DeadlinePassed:
            seen = replace(look, fault=f"no answer within {limit:.0f} s", waiting=True)
        except TpukitError as error:
            stopped = look.worker in self._stopped
            seen = replace(look, fault=one_line(error.summary()), waiting=stopped)
        seen = replace(seen, seconds=self._clock.monotonic() - started)
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


def _path(python: str) -> str:
    """Return a path that no shell looks up in PATH; commands start in the home directory."""
    return python if python.startswith("/") else f"./{python.removeprefix('~/')}"


def _read_readiness(seen: Observation, done: Completed, python: str) -> Observation:
    words = _READY.findall(done.stdout)
    if len(words) != 1:
        return replace(seen, fault="it cannot say whether it is ready", stderr=done.stderr)
    state, devices = words[0]
    if state == b"missing":
        fault = f"there is no Python at {one_line(python)}: tpukit provision comes first"
        return replace(seen, emulated_devices=int(devices), fault=fault)
    return replace(seen, emulated_devices=int(devices))


def _program(name: str) -> bytes:
    return files("tpukit.smoke").joinpath("programs", name).read_bytes()

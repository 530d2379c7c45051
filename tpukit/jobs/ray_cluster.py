"""A Ray cluster over the workers of one or several slices.

Each worker has a detached run that keeps Ray's processes: the head on the first worker, and a node
on each other one. Ray itself knows which nodes are alive. Clients need the cluster's token, which
is in a file on each worker: ray-project/ray:doc/source/ray-security/token-auth.md.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from tpukit.clock import Clock, Deadline
from tpukit.errors import DeadlinePassed, Fix, NameTaken, TpukitError
from tpukit.jobs import runs
from tpukit.jobs.end import follow_line
from tpukit.jobs.job_list import JobState
from tpukit.jobs.shell_environment import shell_lines
from tpukit.models import Documented
from tpukit.ssh import worker_files
from tpukit.ssh.fan_out import fan_out, values
from tpukit.ssh.programs import shell_line
from tpukit.ssh.worker import RemoteWorker, listed
from tpukit.ssh.worker_lock import worker_lock
from tpukit.text import one_line, quote

RECIPE = "ray"
#: Ray's own numbers: ray-project/ray:doc/source/ray-core/configure.rst.
PORT, DASHBOARD_PORT = 6379, 8265
_RUN = "ray-"
#: Our runs; a user may have named one `ray-train`.
_OURS = re.compile(r"ray-\d{8}-\d{6}-[0-9a-f]{4}")
#: Where Ray looks for the token of clients and nodes.
_TOKEN = '"$HOME/.ray/auth_token"'
_KEEP_TOKEN = f"""\
(umask 077 && mkdir -p "$HOME/.ray" && printf %s "$RAY_AUTH_TOKEN" >{_TOKEN}.new &&
    mv -f {_TOKEN}.new {_TOKEN}) || exit 1
"""
#: A token has no blanks and no control characters: it becomes part of lines for a shell.
_TOKEN_TEXT = re.compile(r"[!-~]{1,1000}")
#: The head that a node's command names.
_HEAD = re.compile(r"--address=([\w.:]+)")
_RAY = worker_files.shell_word(f"{worker_files.venv(RECIPE)}/bin/ray")
_MARK = "tpukit-answer"  #: before what a program prints: a shell may greet first
_ASK_SECONDS, _PAUSE_SECONDS = 60.0, 1.0
#: What reading a strange answer may raise.
_STRANGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
#: How long a head that runs may be too busy to answer.
_BUSY_SECONDS = 120.0
#: A node that is not alive after 30 seconds ends (ray/_private/node.py). A busy head may need more.
_STARTS = 4


@dataclass(frozen=True)
class RayNode(Documented):
    """A worker's part in the cluster: `alive` says if Ray counts on it."""

    slice: str
    worker: int
    alive: bool
    resources: dict[str, float]


class RayCluster:
    """The cluster over workers that have the environment `ray`.

    Its head is on the worker where one runs, else on the first worker.
    """

    def __init__(
        self, workers: Sequence[RemoteWorker], clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._head, self._workers = workers[0], workers
        self._clock = clock
        self._say = say

    def up(self, deadline: Deadline) -> list[RayNode]:
        """Start the head and the nodes that are missing; return all once they are alive.

        If the head has ended, the remaining nodes start anew, because they have lost their cluster.
        Raises `NameTaken` if a worker belongs to a cluster whose head runs on a slice that is not
        named, `DeadlinePassed` if a node is not alive in time, and the errors of runs.
        """
        keeper = min(self._workers, key=lambda worker: worker.record)
        lock, ahead = worker_files.RAY_LOCK, "another client joins them to Ray"
        late = "joining them to Ray had no turn"
        # Two clients at once would start a node twice.
        with worker_lock(keeper, lock, deadline, ahead=ahead, late=late, on_wait=self._say):
            return self._up(deadline)

    def _up(self, deadline: Deadline) -> list[RayNode]:
        headed = self._find_head()
        token = self._token() or secrets.token_hex(32)
        if headed:
            self._await([self._head], token, deadline.within(_BUSY_SECONDS))
            alive = self._alive()
            missing = [worker for worker in self._workers if worker.record not in alive]
            self._end(missing)
        else:
            missing = [*self._workers]
            values(fan_out(missing, self._check_free))
            self.down()
            self._start([self._head], token)
            self._await([self._head], token, deadline)
        self._start([worker for worker in missing if worker is not self._head], token)
        self._await(self._workers, token, deadline)
        return self.nodes()

    def down(self) -> None:
        """End Ray on every worker; a worker without Ray is no error."""
        self._end(self._workers)

    def nodes(self) -> list[RayNode]:
        """Return the part of each worker; none is alive if there is no head."""
        alive = self._alive() if self._find_head() else {}
        return [
            RayNode(
                worker.slice, worker.index, worker.record in alive, alive.get(worker.record, {})
            )
            for worker in self._workers
        ]

    @property
    def head(self) -> str:
        """The slice with the head, as it was found last."""
        return self._head.slice

    @property
    def runs(self) -> bool:
        """Whether Ray runs on one of the workers."""
        return any(self._runs(worker) for worker in self._workers)

    def token(self) -> str:
        """Return the token of the cluster whose head runs, or "" if none does."""
        return self._token() if self._find_head() else ""

    def _token(self) -> str:
        status, text = self._ask(f"cat {_TOKEN}")
        token = text.decode(errors="replace").strip() if status == 0 else ""
        return token if _TOKEN_TEXT.fullmatch(token) else ""

    def _find_head(self) -> bool:
        """Find the worker whose head runs; return False if there is none.

        Only if it is not on the first worker, the others are asked; their errors do not count.
        """
        first, *others = self._workers
        heads = [first] if self._is_head(first) else []
        if others and not heads:
            asked = fan_out(others, self._is_head, window=len(others))
            heads = [outcome.item for outcome in asked if outcome.value]
        self._head = (heads or [first])[0]
        return bool(heads)

    def _is_head(self, worker: RemoteWorker) -> bool:
        return any("--head" in run.command.split() for run in self._runs(worker))

    def _check_free(self, worker: RemoteWorker) -> None:
        """Raise `NameTaken` if the worker is a node of a cluster whose head answers."""
        for head in {name for run in self._runs(worker) for name in _HEAD.findall(run.command)}:
            if self._ask(f"timeout 10 {_RAY} status --address={head}", worker)[0] == 0:
                raise NameTaken(
                    f"{worker.label} belongs to the Ray cluster whose head is {head}",
                    fix=Fix(note="name the slice with that head too"),
                    otherwise=Fix.command(
                        "tpukit", "ray", "down", worker.slice, note="takes it out of that cluster"
                    ),
                )

    def _alive(self) -> dict[str, dict[str, float]]:
        """Return the resources of each living node by its name; none if the head is silent."""
        words = ["list", "nodes", "--format=json", "--limit=10000", "--filter=state=ALIVE"]
        words += ["--detail", f"--address=http://127.0.0.1:{DASHBOARD_PORT}"]
        status, text = self._ask(f"timeout 30 {_RAY} {quote(words)}")
        if status or not text.startswith(b"["):  # it says in words that there are none
            return {}
        try:
            rows = json.loads(text)
            return {str(row["node_name"]): _numbers(row["resources_total"]) for row in rows}
        except _STRANGE as error:
            what = f"{self._head.label}: the answer of Ray is not understood"
            raise TpukitError(what, why=one_line(repr(error))) from error

    def _start(self, workers: Sequence[RemoteWorker], token: str) -> None:
        # The paths of sockets have at most 107 bytes: a TMPDIR of the worker may be too long.
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "TMPDIR": "/tmp"}
        lines = shell_lines(variables, RECIPE) + _KEEP_TOKEN

        def one(worker: RemoteWorker) -> None:
            run_id = f"{_RUN}{worker_files.new_run_id(self._clock)}"
            runs.start([worker], run_id, quote(self._command(worker)), lines, self._clock)
            self._say(f"{worker.label}: {'head' if worker is self._head else 'node'} started")

        values(fan_out(workers, one))

    def _command(self, worker: RemoteWorker) -> list[str]:
        address = f"{worker.coordinator}:{PORT}"
        place = (
            *("--head", f"--node-ip-address={worker.coordinator}", f"--port={PORT}"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={DASHBOARD_PORT}"),
        )
        return [
            *("ray", "start", "--block", "--disable-usage-stats"),
            *(place if worker is self._head else (f"--address={address}",)),
            f"--node-name={worker.record}",
            # Any free port: Ray's usual ones collide if several nodes share a machine.
            *("--min-worker-port=0", "--max-worker-port=0"),
            f"--resources={json.dumps(resources(worker))}",
        ]

    def _end(self, workers: Sequence[RemoteWorker]) -> None:
        def one(worker: RemoteWorker) -> None:
            if running := [run.run for run in self._runs(worker)]:
                values(runs.end([worker], running, self._clock))

        values(fan_out(workers, one))

    def _await(self, workers: Sequence[RemoteWorker], token: str, deadline: Deadline) -> None:
        """Wait until Ray is alive on the workers; where it has ended, start it again.

        Raises `DeadlinePassed`; what has started goes on.
        """
        starts = dict.fromkeys(workers, 1)
        while True:
            alive = self._alive()
            missing = [worker for worker in workers if worker.record not in alive]
            if not missing:
                return
            for worker in missing:
                if self._runs(worker):
                    continue
                if starts[worker] == _STARTS:
                    last = self._last_run(worker)
                    fix = follow_line([worker], last.run) if last else None
                    raise TpukitError(f"Ray ends on {worker.label} at once", fix=fix)
                starts[worker] += 1
                self._start([worker], token)
            if deadline.remaining() <= 0:
                raise self._overdue(missing)
            self._clock.sleep(_PAUSE_SECONDS)

    def _overdue(self, missing: Sequence[RemoteWorker]) -> DeadlinePassed:
        last = self._last_run(missing[0])
        down = Fix.command("tpukit", "ray", "down", missing[0].slice, note="ends Ray there")
        return DeadlinePassed(
            f"Ray is not alive on {listed(missing)}",
            exists=(f"run {last.run} on {missing[0].label}, which goes on",) if last else (),
            fix=follow_line(missing[:1], last.run) if last else down,
            otherwise=down if last else None,
        )

    def _runs(self, worker: RemoteWorker) -> list[JobState]:
        """Return the worker's runs of Ray that are running."""
        return [run for run in self._all_runs(worker) if run.state == "running"]

    def _last_run(self, worker: RemoteWorker) -> JobState | None:
        """Return the worker's newest run of Ray."""
        return max(self._all_runs(worker), key=lambda run: (run.started, run.run), default=None)

    def _all_runs(self, worker: RemoteWorker) -> list[JobState]:
        (states,) = values(runs.states([worker], self._clock))
        return [run for run in states if _OURS.fullmatch(run.run)]

    def _ask(self, text: str, worker: RemoteWorker | None = None) -> tuple[int, bytes]:
        """Run shell text on a worker or the head; return its status and output, no greeting."""
        line = shell_line(f"echo {_MARK}; export RAY_AUTH_MODE=token; {text} 2>/dev/null")
        with (worker or self._head).connect() as connection:
            done = connection.run(line, deadline=Deadline.after(self._clock, _ASK_SECONDS))
        return done.status, done.stdout.partition(_MARK.encode() + b"\n")[2]


def _numbers(total: dict[str, object]) -> dict[str, float]:
    """Return what tasks can ask for: without memory, which is text, and the nodes' own names."""
    return {
        one_line(name): float(count)
        for name, count in total.items()
        if isinstance(count, (int, float)) and isfinite(count) and not name.startswith("node:")
    }


def resources(worker: RemoteWorker) -> dict[str, float]:
    """Return a worker's resources under Ray's names.

    Ray's tasks ask for chips as `TPU`, for workers of one slice by the slice's name, and for one
    task a slice as `TPU-v4-16-head`: ray-project/ray:python/ray/_private/accelerators/tpu.py.
    """
    accelerator = worker.accelerator
    chips = {"TPU": float(accelerator.chips_per_worker)} if accelerator else {}
    head = {f"TPU-{worker.accelerator_type}-head": 1.0} if worker.index == 0 else {}
    return {**chips, worker.slice: 1.0, **head}

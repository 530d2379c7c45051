"""End what a command or job has started on a worker, and find what holds its TPU devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tpukit.clock import Clock, Deadline, Patience
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.models import Documented
from tpukit.remote import agent_client
from tpukit.remote.agent_client import AgentAnswer
from tpukit.remote.worker_files import run_of
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection
    from tpukit.remote.connection.worker import RemoteWorker

#: Seconds between a command's first signal and KILL, unless somebody says otherwise.
GRACE_SECONDS = 10.0
#: Seconds that a worker gets beyond that: for sudo, KILL, and a job's runner that notes the end.
_OVERHEAD_SECONDS = 40.0
#: Seconds without a sign of life after which a worker is given up, unless somebody says otherwise.
_PATIENCE_SECONDS = 60.0
#: Whose processes are Google's own runtime: image script of public record, `useradd -u 2000
#: tpu-runtime`; its container runs with `--user=2000:2000` (docs/reference/real-workers.md).
RUNTIME_USER = "tpu-runtime"
_SIGNALS = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "KILL")

#: What becomes of those that hold a device and belong to none of the runs: they are not looked for,
#: stay and are told, or end too.
Holders = Literal["none", "told", "ended"]


def signal_name(word: str) -> str:
    """Return a signal's name without SIG; raise `BadInput` for none that asks a program to end."""
    name = word.upper().removeprefix("SIG")
    if name not in _SIGNALS:
        names = ", ".join(_SIGNALS)
        raise BadInput(f"{one_line(word)[:40]!r} is no signal", fix=Fix(note=f"choose of {names}"))
    return name


@dataclass(frozen=True)
class Holder(Documented):
    """A process that holds a TPU device; `run` is empty unless it belongs to a run."""

    _hidden = ("attached",)
    pid: int
    run: str
    command: str
    user: str = ""  #: whose it is, if the worker knows
    attached: bool = False  #: whether the run is an attached one

    @property
    def of_runtime(self) -> bool:
        """Whether it is Google's own runtime, which its unit starts again when it is killed."""
        return self.user == RUNTIME_USER

    def __str__(self) -> str:
        """Return it as messages name it: `PID 17 (run train, python train.py)`."""
        runtime = "Google's tpu-runtime" if self.of_runtime else ""
        known = [runtime, f"run {self.run}" if self.run else "", self.command]
        said = ", ".join(each for each in known if each)
        return f"PID {self.pid} ({said})" if said else f"PID {self.pid}"


@dataclass(frozen=True)
class EndReport(Documented):
    """What was ended on one worker: processes, holders of devices, how many of them by KILL.

    `runs` counts the runs that the worker had. `spared` are those who hold a device and belong to
    none of them. `certain` is false if a run had no control group of its own: a process may have
    left it, and was not found.
    """

    _hidden = ("runs",)
    ended: int = 0
    holders_ended: int = 0
    forced: int = 0
    spared: tuple[Holder, ...] = ()
    lock_removed: bool = False
    certain: bool = True
    runs: int = 0


def stop_runtime(slice_name: str) -> Fix:
    """Return the command that makes Google's own runtime let the chips go on every worker.

    Source: tensorflow/tpu:tools/grpc_tpu_worker/README.md.
    """
    line = ("--worker", "all", "--", "sudo", "systemctl", "stop", "tpu-runtime")
    note = (
        "it is back after a restart; runtime versions other than tpu-vm-tf-* leave the chips free"
    )
    return Fix.command("tpukit", "run", slice_name, *line, note=note)


def kill_line(workers: Iterable[RemoteWorker], run_id: str) -> Fix:
    """Return the command that ends a run on these workers."""
    slices = ",".join(sorted({worker.slice for worker in workers}))
    return Fix.command("tpukit", "kill", slices, run_id, note="ends it there")


class NotEnded(TpukitError):
    """Processes on a worker resist, or are another user's: they go on."""


def device_holders(connection: Connection, *, deadline: Deadline) -> tuple[Holder, ...]:
    """Return the processes that hold a worker's TPU devices, of every user if we may look.

    Raises `TpukitError` if the worker does not say, and what `Connection.run` raises.
    """
    failure = _failure(connection)
    answer = agent_client.ask(
        connection, "find_holders", {}, failure, deadline=deadline, root="if possible"
    )
    return _held(answer.rows("held"))


def end_processes(
    connection: Connection,
    clock: Clock,
    *,
    jobs: Sequence[str] | None,
    worker: str = "",
    holders: Holders = "none",
    first: str = "TERM",
    grace: float = GRACE_SECONDS,
    patience: float = _PATIENCE_SECONDS,
    on_answer: Callable[[], object] = lambda: None,
) -> EndReport:
    """End processes and return what came of it: the first signal, TERM, after `grace` seconds KILL.

    `jobs` name jobs, runs and attached runs; None stands for all runs of `worker`. libtpu's lock
    file goes only when nobody holds a device. The worker says at once, and then every second, that
    it is there: `on_answer` is called each time.

    Raises:
        NotEnded: it names the processes that are left.
        DeadlinePassed: nothing was heard for `patience` seconds, or it took much too long.
        TpukitError: the agent failed; and what `Connection.run` raises.
    """
    request = {"jobs": jobs and [*jobs], "worker": worker, "holders": holders}
    deadline = Patience(Deadline.after(clock, grace + _OVERHEAD_SECONDS), patience)

    def heard(stream: str, chunk: bytes) -> None:
        if agent_client.ANSWERS in chunk:  # endless noise is no sign of life
            deadline.renew()
            on_answer()

    # As root if that needs no password, as on TPU VMs: sudo's children and a device's holder may
    # be another user's.
    done = agent_client.run(
        connection,
        "end_runs",
        {**request, "signal": first, "grace": grace},
        on_output=heard,
        deadline=deadline,
        keep=1 << 20,
        root="if possible",
    )
    answer = agent_client.answer(connection.label, done, _failure(connection))
    if left := _held(answer.rows("left")):
        what = f"processes on {connection.label} go on"
        raise NotEnded(what, reason=", ".join(map(str, left)), why=one_line(answer.text("why")))
    return EndReport(
        runs=answer.number("runs"),
        ended=answer.number("ended"),
        holders_ended=answer.number("holders_ended"),
        forced=answer.number("forced"),
        spared=_held(answer.rows("held")),
        lock_removed=answer.flag("lock_removed"),
        certain=answer.flag("certain"),
    )


def _failure(connection: Connection) -> str:
    return f"{connection.label} could not look at its processes"


def _held(rows: Sequence[AgentAnswer]) -> tuple[Holder, ...]:
    return tuple(
        Holder(
            row.number("pid"),
            run_of(one_line(row.text("job"))),
            one_line(row.text("command"))[:100],
            one_line(row.text("user")),
            row.flag("attached"),
        )
        for row in rows
    )

"""Ends the processes of commands and jobs on a worker, and finds the holders of TPU devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tpukit.clock import Clock, Deadline, Patience
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.models import Documented
from tpukit.ssh import agent_client
from tpukit.ssh.agent_client import AgentAnswer
from tpukit.ssh.worker_files import run_of
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection
    from tpukit.ssh.worker import RemoteWorker

#: The default seconds between a command's first signal and KILL.
GRACE_SECONDS = 10.0
#: More seconds for sudo, for KILL, and for a job's runner to write its status.
_OVERHEAD_SECONDS = 40.0
#: The default seconds without a sign of life after which a worker fails.
_PATIENCE_SECONDS = 60.0
#: The user of Google's own runtime: image script of public record, `useradd -u 2000 tpu-runtime`;
#: its container runs with `--user=2000:2000` (docs/reference/real-workers.md).
RUNTIME_USER = "tpu-runtime"
_SIGNALS = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "KILL")

#: The treatment of other processes that hold a device: ignore them ("none"), report them ("told"),
#: or end them too ("ended").
Holders = Literal["none", "told", "ended"]


def signal_name(word: str) -> str:
    """Return a signal's name without SIG; raise `BadInput` if it does not end programs."""
    name = word.upper().removeprefix("SIG")
    if name not in _SIGNALS:
        names = ", ".join(_SIGNALS)
        raise BadInput(
            f"{one_line(word)[:40]!r} is not a signal", fix=Fix(note=f"choose of {names}")
        )
    return name


@dataclass(frozen=True)
class Holder(Documented):
    """A process that holds a TPU device; `run` is empty unless it belongs to a run."""

    _hidden = ("attached",)
    pid: int
    run: str
    command: str
    user: str = ""  #: the owner, if the worker knows it
    attached: bool = False  #: True if the run is attached

    @property
    def of_runtime(self) -> bool:
        """True for Google's own runtime, which systemd starts again after a kill."""
        return self.user == RUNTIME_USER

    def __str__(self) -> str:
        """Return its name in messages: `PID 17 (run train, python train.py)`."""
        runtime = "Google's tpu-runtime" if self.of_runtime else ""
        known = [runtime, f"run {self.run}" if self.run else "", self.command]
        said = ", ".join(filter(None, known))
        return f"PID {self.pid} ({said})" if said else f"PID {self.pid}"


@dataclass(frozen=True)
class EndReport(Documented):
    """The processes that were ended on one worker: those of runs, and other holders of devices.

    `forced` counts those that needed KILL, `runs` the runs on the worker. `spared` has the holders
    of devices that were left alone. `certain` is False if a run had no control group: then a
    process of the run may have been missed.
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
    """Return the command line that stops Google's own runtime on every worker, to free the chips.

    Source: tensorflow/tpu:tools/grpc_tpu_worker/README.md.
    """
    line = ("--worker", "all", "--", "sudo", "systemctl", "stop", "tpu-runtime")
    note = (
        "it is back after a restart; runtime versions other than tpu-vm-tf-* leave the chips free"
    )
    return Fix.command("tpukit", "run", slice_name, *line, note=note)


def kill_line(workers: Iterable[RemoteWorker], run_id: str) -> Fix:
    """Return the command line that ends a run on these workers."""
    return Fix.command("tpukit", "kill", _slices(workers), run_id, note="ends it there")


def follow_line(workers: Iterable[RemoteWorker], run_id: str) -> Fix:
    """Return the command line that follows a detached run on the slices of these workers."""
    return Fix.command("tpukit", "attach", _slices(workers), run_id, note="follows it")


def _slices(workers: Iterable[RemoteWorker]) -> str:
    return ",".join(sorted({worker.slice for worker in workers}))


class NotEnded(TpukitError):
    """Processes on a worker still run: they resist, or belong to another user."""


def device_holders(connection: Connection, *, deadline: Deadline) -> tuple[Holder, ...]:
    """Return the processes that hold a worker's TPU devices; those of other users need sudo.

    Raises `TpukitError` if the agent fails, and the errors of `Connection.run`.
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
    """End processes by the signal `first`, then TERM, and KILL after `grace` seconds.

    `jobs` has the record names of jobs and runs; None means all runs of `worker`. libtpu's lock
    file is removed if no process holds a device. The worker sends a sign of life every second, and
    `on_answer` is called for each.

    Raises:
        NotEnded: some processes are left; the error names them.
        DeadlinePassed: no sign of life came for `patience` seconds, or the end took too long.
        TpukitError: the agent failed; and the errors of `Connection.run`.
    """
    request = {"jobs": jobs and [*jobs], "worker": worker, "holders": holders}
    deadline = Patience(Deadline.after(clock, grace + _OVERHEAD_SECONDS), patience)

    def heard(stream: str, chunk: bytes) -> None:
        if agent_client.ANSWERS in chunk:  # other output is no sign of life
            deadline.renew()
            on_answer()

    # Run as root if sudo needs no password, as on TPU VMs: children of sudo and holders of devices
    # may belong to another user.
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

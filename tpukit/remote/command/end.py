"""End what a command or job has started on a worker, and find what holds its TPU devices."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.models import Documented
from tpukit.remote.programs import answer, program_text, shell_line
from tpukit.remote.worker_files import run_of
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.channel import OnOutput
    from tpukit.remote.connection.client import Connection

#: Seconds between a command's first signal and KILL, unless somebody says otherwise.
GRACE_SECONDS = 10.0
#: Seconds that a worker gets beyond that: for sudo, KILL, and a job's runner that notes the end.
_OVERHEAD_SECONDS = 40.0
_ANSWER = re.compile(rb"^tpukit-end (\{.*\})$", re.MULTILINE)
#: As root where that needs no password, as on TPU VMs: sudo's children and a device's holder may be
#: another user's. The empty line says at once that the worker answers.
_PYTHON = """
echo
run='python3 -I -'; if sudo -n true 2>/dev/null; then run="sudo -n $run"; fi
exec $run "$tpukit" "${TMPDIR:-/tmp}" "${TPUKIT_EMULATED_DEVICES:-}" "$1"
"""
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
    """A process that holds a TPU device; `run` is empty unless it belongs to a detached run."""

    pid: int
    run: str
    command: str
    user: str = ""  #: whose it is, if the worker knows

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

    `spared` are those who hold a device and belong to none of the runs.
    """

    ended: int = 0
    holders_ended: int = 0
    forced: int = 0
    spared: tuple[Holder, ...] = ()
    lock_removed: bool = False


def stop_runtime(slice_name: str) -> Fix:
    """Return the command that makes Google's own runtime let the chips go on every worker.

    Source: tensorflow/tpu:tools/grpc_tpu_worker/README.md.
    """
    line = ("--worker", "all", "--", "sudo", "systemctl", "stop", "tpu-runtime")
    note = (
        "it is back after a restart; runtime versions other than tpu-vm-tf-* leave the chips free"
    )
    return Fix.command("tpukit", "run", slice_name, *line, note=note)


class NotEnded(TpukitError):
    """Processes on a worker resist, or are another user's: they go on."""


def device_holders(connection: Connection, *, deadline: Deadline) -> tuple[Holder, ...]:
    """Return the processes that hold a worker's TPU devices, of every user where we may look.

    Raises `TpukitError` where the program failed, and what `Connection.run` raises.
    """
    return _held(_ask(connection, {"holders": "look"}, deadline)["held"])


def end_processes(
    connection: Connection,
    clock: Clock,
    *,
    marks: Sequence[str] = (),
    jobs: Sequence[str] | Literal["all"] = (),
    holders: Holders = "none",
    first: str = "TERM",
    grace: float = GRACE_SECONDS,
    on_answer: OnOutput | None = None,
) -> EndReport:
    """End processes and return what came of it: the first signal, TERM, after `grace` seconds KILL.

    `marks` name commands without a folder, `jobs` those with one. libtpu's lock file goes only when
    nobody holds a device. `on_answer` gets what the worker writes: something at once, then the end.

    Raises:
        NotEnded: it names the processes that are left.
        TpukitError: the program failed; and what `Connection.run` raises.
    """
    request = {"marks": [*marks], "jobs": jobs, "holders": holders, "signal": first, "grace": grace}
    limit = Deadline.after(clock, grace + _OVERHEAD_SECONDS)
    document = _ask(connection, request, limit, on_answer)
    if left := _held(document["left"]):
        what = f"processes on {connection.label} go on"
        raise NotEnded(what, reason=", ".join(map(str, left)), why=str(document["why"]))
    return EndReport(
        ended=int(document["ended"]),
        holders_ended=int(document["holders_ended"]),
        forced=int(document["forced"]),
        spared=_held(document["held"]),
        lock_removed=bool(document["lock_removed"]),
    )


def _held(found: Sequence[dict[str, Any]]) -> tuple[Holder, ...]:
    return tuple(
        Holder(
            int(each["pid"]),
            run_of(one_line(each["job"])),
            one_line(each["command"])[:100],
            one_line(each["user"]),
        )
        for each in found
    )


def _ask(
    connection: Connection,
    request: dict[str, Any],
    deadline: Deadline,
    on_answer: OnOutput | None = None,
) -> Any:
    done = connection.run(
        shell_line(_PYTHON, words=[json.dumps(request)]),
        stdin=program_text("remote/command/end_program.py").encode(),
        on_output=on_answer,
        deadline=deadline,
    )
    found = answer(done, _ANSWER, f"{connection.label} could not look at its processes")
    return json.loads(found[1])

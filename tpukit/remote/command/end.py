"""End what a command or job has started on a worker, and find what holds its TPU devices."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tpukit.clock import Deadline
from tpukit.models import Documented
from tpukit.remote import worker_files
from tpukit.remote.job.job_list import run_of
from tpukit.remote.programs import answer, program_text
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

_ANSWER = re.compile(rb"^tpukit-end (\{.*\})$", re.MULTILINE)
#: As root where that needs no password, as on TPU VMs: a device's holder may be another user's.
_PYTHON = (
    'run="python3 -I -"; if [ -n "$2" ] && sudo -n true 2>/dev/null; then run="sudo -n $run"; fi; '
    'exec $run "$HOME/$3" "${TMPDIR:-/tmp}" "${TPUKIT_EMULATED_DEVICES:-}" "$1"'
)

Holders = Literal["none", "orphans", "all"]


@dataclass(frozen=True)
class EndReport(Documented):
    """What was ended on one worker: processes, holders of devices, how many of them by KILL.

    `left` are processes that resisted, `spared` holders of a device that belong to another job.
    """

    ended: int = 0
    holders_ended: int = 0
    forced: int = 0
    left: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()
    lock_removed: bool = False


@dataclass(frozen=True)
class Holder:
    """A process that holds a TPU device; `run` is empty unless it belongs to a detached run."""

    pid: int
    run: str
    command: str

    def __str__(self) -> str:
        """Return it as messages name it: `PID 17 (run train, python train.py)`."""
        known = [f"run {self.run}" if self.run else "", self.command]
        said = ", ".join(each for each in known if each)
        return f"PID {self.pid} ({said})" if said else f"PID {self.pid}"


def device_holders(connection: Connection, *, deadline: Deadline) -> list[Holder]:
    """Return the processes that hold a worker's TPU devices, of every user where we may look.

    Raises as `end_processes` does.
    """
    found = _ask(connection, {"marks": [], "jobs": [], "holders": "look"}, deadline)["held"]
    return [
        Holder(int(each["pid"]), run_of(one_line(each["job"])), one_line(each["command"])[:100])
        for each in found
    ]


def end_processes(
    connection: Connection,
    *,
    marks: Sequence[str] = (),
    jobs: Sequence[str] | Literal["all"] = (),
    holders: Holders = "none",
    grace: float = 10.0,
    deadline: Deadline,
) -> EndReport:
    """End processes with TERM, after `grace` seconds with KILL, and return what came of it.

    `marks` name commands without a folder, `jobs` those with one. Holders of TPU devices follow:
    "orphans" spares those of other jobs. libtpu's lock file goes only when nobody holds a device.
    Raises `TpukitError` where the program failed, and what `Connection.run` raises.
    """
    request = {"marks": [*marks], "jobs": jobs, "holders": holders, "grace": grace}
    document = _ask(connection, request, deadline)
    return EndReport(
        ended=int(document["ended"]),
        holders_ended=int(document.get("holders_ended", 0)),
        forced=int(document["forced"]),
        left=tuple(map(int, document["left"])),
        spared=tuple(map(int, document.get("spared", ()))),
        lock_removed=bool(document.get("lock_removed", False)),
    )


def _ask(connection: Connection, request: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
    privileged = "" if request["holders"] == "none" else "privileged"
    done = connection.run(
        quote(["sh", "-c", _PYTHON, "sh", json.dumps(request), privileged, worker_files.ROOT]),
        stdin=program_text("remote/command/end_program.py").encode(),
        deadline=deadline,
    )
    found = answer(done, _ANSWER, f"{connection.label} could not look at its processes")
    document: dict[str, Any] = json.loads(found[1])
    return document

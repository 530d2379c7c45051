"""End what a run has started on a worker, and what holds its TPU devices, and make sure of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.remote.program import program_text
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection

_ANSWER = re.compile(rb"^tpukit-end (\{.*\})$", re.MULTILINE)
#: As root where that needs no password, as on TPU VMs: a device's holder may be another user's.
_PYTHON = (
    'run="python3 -I -"; if [ -n "$2" ] && sudo -n true 2>/dev/null; then run="sudo -n $run"; fi; '
    'exec $run "$HOME" "${TMPDIR:-/tmp}" "${TPUKIT_EMULATED_DEVICES:-}" "$1"'
)

Holders = Literal["none", "orphans", "all"]


@dataclass(frozen=True)
class EndReport:
    """What was ended on one worker: processes of runs, holders of devices, how many by KILL.

    `left` are processes that resisted, `spared` holders of a device that belong to another run.
    """

    ended: int = 0
    holders_ended: int = 0
    forced: int = 0
    left: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()
    lock_removed: bool = False

    def document(self) -> dict[str, Any]:
        return {
            "ended": self.ended,
            "holders_ended": self.holders_ended,
            "forced": self.forced,
            "left": list(self.left),
            "spared": list(self.spared),
            "lock_removed": self.lock_removed,
        }


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
    "orphans" spares those of other runs. libtpu's lock file goes only when nobody holds a device.
    """
    request = json.dumps({"marks": [*marks], "jobs": jobs, "holders": holders, "grace": grace})
    privileged = "" if holders == "none" else "privileged"
    done = connection.run(
        quote(["sh", "-c", _PYTHON, "sh", request, privileged]),
        stdin=program_text("end.py").encode(),
        deadline=deadline,
    )
    found = _ANSWER.search(done.stdout)
    if not done.ok or found is None:
        reason = one_line(done.stderr[-400:]) or f"status {done.status}"
        raise TpukitError(f"{connection.label} could not end the processes", reason=reason)
    return _report(found[1])


def _report(text: bytes) -> EndReport:
    answer = json.loads(text)
    return EndReport(
        ended=int(answer["ended"]),
        holders_ended=int(answer.get("holders_ended", 0)),
        forced=int(answer["forced"]),
        left=tuple(map(int, answer["left"])),
        spared=tuple(map(int, answer.get("spared", ()))),
        lock_removed=bool(answer.get("lock_removed", False)),
    )

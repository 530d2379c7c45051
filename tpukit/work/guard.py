"""The guard: a program on worker 0 that ends the slice by itself, with the laptop closed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import TpukitError
from tpukit.models import Documented, Slice
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import program_text, python_line
from tpukit.remote.worker_files import GUARD
from tpukit.slices import lifetime
from tpukit.text import one_line

_PROGRAM = "work/guard_program.py"
#: Seconds for the program to look what it may do, and to be started.
INSTALL_SECONDS = 120.0


@dataclass(frozen=True)
class GuardReport(Documented):
    """What became of the guard; `may_delete` is None where that could not be told.

    `kept_by` is "systemd", "process" (which a restart of the worker ends), or "" where there is no
    guard; `sees_all` whether it sees everybody's use of the devices.
    """

    account: str
    may_delete: bool | None
    why: str = ""
    kept_by: str = ""
    sees_all: bool = False

    @property
    def summary(self) -> str:
        """The report as one line."""
        if not self.kept_by:
            return f"none: {self.account or 'its service account'} cannot end it: {self.why}"
        kept = "" if self.kept_by == "systemd" else ", until worker 0 restarts"
        return f"worker 0 ends it as {self.account}{kept}"


def wants_guard(found: Slice) -> bool:
    """Tell whether a slice's labels set an end that a guard can bring about."""
    return bool({lifetime.EXPIRES, lifetime.IDLE} & found.labels.keys())


def install_guard(
    worker: RemoteWorker, found: Slice, endpoint: str, *, deadline: Deadline
) -> GuardReport:
    """Start the guard on a slice's worker 0, anew where there is one; `endpoint` is of the API.

    Raises TpukitError where the worker does not do it; that there can be no guard is a report.
    """
    location = f"{endpoint.rstrip('/')}/v2/projects/{found.project}/locations/{found.zone}"
    configuration = json.dumps({"location": location, "name": found.name})
    words = ("install", GUARD, configuration, program_text(_PROGRAM))
    limit = deadline.within(INSTALL_SECONDS)
    with worker.connect() as connection:
        done = connection.run(python_line(_PROGRAM, *words), deadline=limit)
    report = _report(done.stdout.decode("utf-8", "replace"))
    if report is None:
        said = one_line(done.stderr.decode("utf-8", "replace"))[-300:]
        raise TpukitError(f"no guard on {worker.label}", reason=f"status {done.status}", why=said)
    return report


def _report(output: str) -> GuardReport | None:
    for line in output.splitlines():
        if line.startswith("tpukit-guard "):
            try:
                given: dict[str, Any] = json.loads(line.partition(" ")[2])
            except ValueError:
                return None
            texts = {
                key: one_line(str(given.get(key, ""))) for key in ("account", "why", "kept_by")
            }
            may = given.get("may_delete")
            sees = given.get("sees_all") is True
            return GuardReport(
                **texts, may_delete=None if may is None else may is True, sees_all=sees
            )
    return None

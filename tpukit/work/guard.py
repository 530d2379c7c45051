"""The guard: a program on worker 0 that ends the slice by itself, with the laptop closed."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.clock import Deadline
from tpukit.models import Documented, Slice
from tpukit.remote import agent_client
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.slices import lifetime
from tpukit.text import one_line

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
            whose = f"{self.account} cannot end it: " if self.account else ""
            return f"none: {whose}{self.why}"
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
    request, failure = {"location": location, "name": found.name}, f"no guard on {worker.label}"
    limit = deadline.within(INSTALL_SECONDS)
    with worker.connect() as connection:
        answer = agent_client.ask(connection, "install_guard", request, failure, deadline=limit)
    account, why, kept_by = (one_line(answer.text(name)) for name in ("account", "why", "kept_by"))
    may_delete = answer.flag("may_delete") if answer.has("may_delete") else None
    return GuardReport(account, may_delete, why, kept_by, answer.flag("sees_all"))

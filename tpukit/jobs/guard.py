"""The guard: a program on worker 0 that deletes the slice on time, without your machine."""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.clock import Deadline
from tpukit.models import Documented, Slice
from tpukit.slices import lifetime
from tpukit.ssh import agent_client
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line

#: Seconds to check the service account's permissions and start the program.
INSTALL_SECONDS = 120.0


@dataclass(frozen=True)
class GuardReport(Documented):
    """The result of installing the guard; `may_delete` is None if it is unknown.

    `kept_by` is "systemd", "process" (which a restart of the worker ends), or "" if there is no
    guard. `sees_all` is True if it sees every user's use of the devices.
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


def wants_guard(slice_: Slice) -> bool:
    """Return True if a slice's labels set an end: a time, a claim, or a limit on idleness."""
    return bool({lifetime.EXPIRES, lifetime.CLAIM, lifetime.IDLE} & slice_.labels.keys())


def install_guard(
    worker: RemoteWorker, slice_: Slice, endpoint: str, *, deadline: Deadline
) -> GuardReport:
    """Start the guard on a slice's worker 0, in place of an older one.

    `endpoint` is the Cloud TPU API's. A slice of Compute Engine gets no guard, which would watch a
    slice of that name in the other API. If the account may not delete the slice, the report says
    so. Raises `TpukitError` if the worker fails.
    """
    if slice_.api != "tpu":
        return GuardReport("", None, why="there is none on Compute Engine")
    location = f"{endpoint.rstrip('/')}/v2/projects/{slice_.project}/locations/{slice_.zone}"
    request, failure = {"location": location, "name": slice_.name}, f"no guard on {worker.label}"
    limit = deadline.within(INSTALL_SECONDS)
    with worker.connect() as connection:
        answer = agent_client.ask(connection, "install_guard", request, failure, deadline=limit)
    account, why, kept_by = (one_line(answer.text(name)) for name in ("account", "why", "kept_by"))
    may_delete = answer.flag("may_delete") if answer.has("may_delete") else None
    return GuardReport(account, may_delete, why, kept_by, answer.flag("sees_all"))

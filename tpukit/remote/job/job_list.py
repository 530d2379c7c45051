"""The runs on a worker, attached and detached: what each was started with, and how it stands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import NameTaken
from tpukit.models import Documented
from tpukit.remote import agent_client
from tpukit.remote.agent_client import AgentAnswer
from tpukit.remote.worker_files import attached_name, job_name, run_of
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

_SHOWN = 2000  #: characters of a command that a listing knows
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|.PWD|CRED|AUTH|PRIVATE|COOKIE|JWT|WEBHOOK|(^|_)PAT(_|$)", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s]+(?=@)")
_MASK = "****"


@dataclass(frozen=True)
class JobState(Documented):
    """One run on one worker. `state` is running, finished or lost, of an attached one attached.

    An attached run whose client is gone is "attached, client gone". `status` is the exit status of
    a finished one, `started` seconds since the epoch by the worker's clock, `environment` what it
    was started with, secrets masked. `dropped` counts the bytes of its output that are not in its
    log because the disk was full.
    """

    _hidden = ("environment",)
    run: str
    state: str
    status: int | None = None
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0
    dropped: int = 0

    @property
    def attached(self) -> bool:
        """Whether it is attached: it has no log, and ends with its client or by `kill`."""
        return self.state.startswith("attached")


@dataclass(frozen=True)
class Removal(Documented):
    """A run that is to go from a worker: how it stood, and the bytes freed; None where it stays."""

    run: str
    state: str
    bytes: int | None


def about(command: str, environment: str) -> str:
    """Return what listings show of a run: its command, and the variables that its lines export.

    Those that look secret are without their values.
    """
    words = (word.partition("=") for word in shlex.split(environment))
    masked = {
        name: _MASK if _SECRET.search(name) else _IN_ADDRESS.sub(_MASK, value)
        for name, equals, value in words
        if equals and name.isidentifier()
    }
    return json.dumps({"command": command[:_SHOWN], "environment": masked})


def list_jobs(
    connection: Connection, run: str = "", worker: str = "", *, deadline: Deadline
) -> list[JobState]:
    """Return the runs on a worker, or one run, the first one first.

    `worker` is the worker's `record`. Raises `TpukitError` if the worker does not say.
    """
    rows = _rows(connection, _names(run, worker), worker, None, deadline)
    return sorted((job for job, _ in rows), key=lambda job: (job.started, job.run))


def _about(text: str) -> tuple[str, dict[str, str]]:
    """Return a job's command and environment; nothing for what we have not written."""
    try:
        known = json.loads(text)
        command, environment = str(known["command"]), dict(known["environment"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return "", {}
    return one_line(command), {one_line(str(name)): str(environment[name]) for name in environment}


def remove_jobs(
    connection: Connection,
    run: str = "",
    older_than: float = 0.0,
    worker: str = "",
    *,
    deadline: Deadline,
) -> list[Removal]:
    """Remove what is left of runs, or of one, that ended so many seconds ago; none that lives.

    Raises `TpukitError` if one cannot be removed.
    """
    rows = _rows(connection, _names(run, worker), worker, older_than, deadline)
    return [Removal(job.run, job.state, size) for job, size in rows]


def forget_job(connection: Connection, job: str, *, deadline: Deadline) -> None:
    """Remove a finished or lost job's folder, so that its name can start again.

    A job that is not there is forgotten already.

    Raises `NameTaken` for a job that runs, `TpukitError` if its folder cannot be removed.
    """
    if any(size is None for _, size in _rows(connection, [job], "", 0.0, deadline)):
        raise NameTaken(f"job {job} is still running")


def run_names(run: str, worker: str) -> list[str]:
    """Return the names that a run may have on a worker: detached, or attached."""
    return [job_name(run), attached_name(run, worker)]


def _names(run: str, worker: str) -> list[str] | None:
    return run_names(run, worker) if run else None


def _rows(
    connection: Connection,
    jobs: list[str] | None,
    worker: str,
    older: float | None,
    deadline: Deadline,
) -> list[tuple[JobState, int | None]]:
    """Return how jobs stand, and the bytes that the removal of each has freed."""
    request = {"jobs": jobs, "worker": worker, "older": older}
    failure = f"{connection.label} could not list its jobs"
    answer = agent_client.ask(
        connection, "list_jobs", request, failure, deadline=deadline, root="if possible"
    )
    return [
        (_state(row), row.number("bytes") if row.has("bytes") else None)
        for row in answer.rows("jobs")
    ]


def _state(row: AgentAnswer) -> JobState:
    command, environment = _about(row.text("about"))
    return JobState(
        run_of(one_line(row.text("job"))),
        one_line(row.text("state")),
        row.number("status") if row.has("status") else None,
        command,
        environment,
        row.seconds("started"),
        row.number("dropped") if row.has("dropped") else 0,
    )

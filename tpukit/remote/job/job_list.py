"""The detached runs on a worker, each a job there: what it was started with, and how it stands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpukit.clock import Deadline
from tpukit.errors import NameTaken, TpukitError
from tpukit.models import Documented
from tpukit.remote.job.detached_job import ask
from tpukit.remote.worker_files import job_name, run_of
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
    """The job of one run on one worker. `state` is running, finished or lost.

    `status` is the exit status of a finished one, `started` seconds since the epoch by the worker's
    clock, `environment` what it was started with, where one run was asked for, secrets masked.
    """

    _hidden = ("environment",)
    run: str
    state: str
    status: int | None = None
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0


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


def list_jobs(connection: Connection, run: str = "", *, deadline: Deadline) -> list[JobState]:
    """Return the jobs of runs on a worker, or of one run, the first one first.

    Raises `TpukitError` where the worker does not say.
    """
    rows = _rows(connection, job_name(run) if run else "", None, deadline)
    return sorted((job for job, _ in rows), key=lambda each: (each.started, each.run))


def _about(text: str) -> tuple[str, dict[str, str]]:
    """Return a job's command and environment; nothing for what we have not written."""
    try:
        known = json.loads(text)
        command, environment = str(known["command"]), dict(known["environment"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return "", {}
    return one_line(command), {one_line(str(name)): str(environment[name]) for name in environment}


def remove_jobs(
    connection: Connection, run: str = "", older_than: float = 0.0, *, deadline: Deadline
) -> list[Removal]:
    """Remove what is left of runs, or of one, that ended so many seconds ago; none that lives.

    Raises `TpukitError` where one cannot be removed.
    """
    rows = _rows(connection, job_name(run) if run else "", older_than, deadline)
    return [Removal(job.run, job.state, size) for job, size in rows]


def forget_job(connection: Connection, job: str, *, deadline: Deadline) -> None:
    """Remove a finished or lost job's folder, so that its name can start again.

    A job that is not there is forgotten already.

    Raises `NameTaken` for a job that runs, `TpukitError` where its folder cannot be removed.
    """
    if any(size is None for _, size in _rows(connection, job, 0.0, deadline)):
        raise NameTaken(f"job {job} is still running")


def _rows(
    connection: Connection, job: str, older: float | None, deadline: Deadline
) -> list[tuple[JobState, int | None]]:
    """Return how jobs stand, and the bytes that the removal of each has freed."""
    answer = ask(connection, "list", {"job": job, "older": older}, deadline)
    try:
        return [(_state(each), each["bytes"] and int(each["bytes"])) for each in json.loads(answer)]
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise TpukitError(f"{connection.label} could not list its jobs") from error


def _state(row: dict[str, Any]) -> JobState:
    word, _, status = str(row["stands"]).partition(" ")
    known = (int(status) if status else None, *_about(row["about"]), float(row["started"]))
    return JobState(run_of(str(row["job"])), one_line(word), *known)

"""The runs on a worker, attached and detached: their commands, environments and states."""

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
from tpukit.ssh import agent_client
from tpukit.ssh.agent_client import AgentAnswer
from tpukit.ssh.worker_files import record_name, run_of
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.ssh.client import Connection

_SHOWN = 2000  #: the most characters of a command in a listing
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|.PWD|CRED|AUTH|PRIVATE|COOKIE|JWT|WEBHOOK|(^|_)PAT(_|$)", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s]+(?=@)")
_MASK = "****"


@dataclass(frozen=True)
class JobState(Documented):
    """One run on one worker.

    The `state` is running, finished or lost; for an attached run it is "attached", "attached,
    client gone", or "attached, ended" if processes outlive its command. `status` is the exit status
    of a finished run. `started` is in seconds since the epoch, by the worker's clock. `commit` is
    that of the pushed tree. Secrets in `environment` are masked. `dropped` counts bytes that are
    missing from the log because the disk was full, and `freed` the bytes of removed files.
    """

    _hidden = ("environment", "freed")
    run: str
    state: str
    status: int | None = None
    command: str = ""
    commit: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0
    dropped: int = 0
    freed: int | None = None

    @property
    def attached(self) -> bool:
        """True for an attached run: it has no log, and ends with its client or by `kill`."""
        return self.state.startswith("attached")

    def has_command(self, command: str) -> bool:
        """Return True if the run was started with this command."""
        return self.command == one_line(command[:_SHOWN])


def about(command: str, environment: str, commit: str = "") -> str:
    """Return the JSON text about a run for listings: command, exported variables, pushed commit.

    Values that look secret are masked.
    """
    words = (word.partition("=") for word in shlex.split(environment))
    masked = {
        name: _MASK if _SECRET.search(name) else _IN_ADDRESS.sub(_MASK, value)
        for name, equals, value in words
        if equals and name.isidentifier()
    }
    known = {"command": command[:_SHOWN], "environment": masked, "commit": commit}
    return json.dumps(known)


def list_jobs(
    connection: Connection,
    worker: str,
    run: str = "",
    ended_before: float | None = None,
    *,
    deadline: Deadline,
) -> list[JobState]:
    """Return the runs on a worker, or only one run, oldest first.

    `worker` is the worker's `record`. With `ended_before`, remove the files of runs that ended at
    least so many seconds ago. Raises `TpukitError` if the agent fails.
    """
    names = [record_name(run, worker)] if run else None
    states = _states(connection, names, worker, ended_before, deadline)
    return sorted(states, key=lambda job: (job.started, job.run))


def forget_job(connection: Connection, job: str, *, deadline: Deadline) -> None:
    """Remove a finished or lost job's folder, so that its name can be used again.

    A job without a folder is no error. Raises `NameTaken` if the job runs, and `TpukitError` if its
    folder cannot be removed.
    """
    if any(state.freed is None for state in _states(connection, [job], "", 0.0, deadline)):
        raise NameTaken(f"job {job} is still running")


def _about(text: str) -> tuple[str, str, dict[str, str]]:
    """Return a job's command, commit and environment; empty if the text is not tpukit's."""
    try:
        known = json.loads(text)
        command, environment = str(known["command"]), dict(known["environment"])
        commit = str(known.get("commit", ""))  # runs of earlier versions have none
    except (ValueError, TypeError, LookupError, RecursionError):
        return "", "", {}
    masked = {one_line(str(name)): str(environment[name]) for name in environment}
    return one_line(command), one_line(commit), masked


def _states(
    connection: Connection,
    jobs: list[str] | None,
    worker: str,
    ended_before: float | None,
    deadline: Deadline,
) -> list[JobState]:
    request = {"jobs": jobs, "worker": worker, "older": ended_before}
    failure = f"{connection.label} could not list its jobs"
    answer = agent_client.ask(
        connection, "list_jobs", request, failure, deadline=deadline, root="if possible"
    )
    return [_state(row) for row in answer.rows("jobs")]


def _state(row: AgentAnswer) -> JobState:
    command, commit, environment = _about(row.text("about"))
    return JobState(
        run_of(one_line(row.text("job"))),
        one_line(row.text("state")),
        row.number("status") if row.has("status") else None,
        command,
        commit,
        environment,
        row.seconds("started"),
        row.number("dropped") if row.has("dropped") else 0,
        row.number("bytes") if row.has("bytes") else None,
    )

"""The detached runs on a worker, each a job there: what it was started with, and how it stands."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.models import Documented
from tpukit.remote.programs import program_line, program_text
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection

#: The folders of detached runs among those of all jobs: a provisioning step's have no such name.
_PREFIX = "run."
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_HEADER = "# tpukit-run "
_SHOWN = 200  #: characters of a command that a listing shows
_LINE = re.compile(rb"^tpukit-run ([a-z0-9._-]+) ([a-z]+) ?([0-9]*) ?(.*)$", re.MULTILINE)
_END = b"tpukit-runs end\n"


@dataclass(frozen=True)
class JobState(Documented):
    """The job of one run on one worker. `state` is running, starting, finished, lost or absent.

    `status` is the exit status of a finished one, `started` seconds since the epoch.
    """

    run: str
    state: str
    status: int | None = None
    command: str = ""
    started: float = 0.0

    @property
    def live(self) -> bool:
        return self.state in ("running", "starting")


def job_name(run_id: str) -> str:
    """Return the name of the job that carries a run; raise `BadInput` for no run id."""
    if not _RUN_ID.fullmatch(run_id):
        raise BadInput(
            f"{one_line(run_id)!r} cannot be a run id",
            fix=Fix(note="use a-z, 0-9, '.', '_' and '-'"),
        )
    return _PREFIX + run_id


def run_of(mark: str) -> str:
    """Return the run that a process with this TPUKIT_JOB belongs to, or nothing."""
    job = mark.rpartition("/")[2]
    return job.removeprefix(_PREFIX) if job.startswith(_PREFIX) else ""


def job_script(command: str, environment: str, launch: str, *, nonce: str, started: float) -> str:
    """Return the file that a job runs: a header for listings, its environment, what becomes it.

    The nonce makes it this start's own: the same start asked for twice is one job, another start
    under the same run id is refused.
    """
    shown = one_line(command)[:_SHOWN]
    header = json.dumps({"started": round(started, 3), "nonce": nonce, "command": shown})
    # The runner starts `sh FOLDER/command`.
    mark = 'export TPUKIT_JOB="${0%/command}"\n'
    device = program_text("remote/command/device.sh")
    return f"{_HEADER}{header}\n{device}{environment}{mark}{launch}"


def list_jobs(connection: Connection, *, deadline: Deadline) -> list[JobState]:
    """Return the jobs of runs on a worker, the first one first; raise `TpukitError` for none."""
    done = connection.run(
        program_line("remote/job/state.sh", "remote/job/list_jobs.sh"), deadline=deadline
    )
    if not done.ok or not done.stdout.endswith(_END):
        raise TpukitError(f"{connection.label} could not list its jobs", reason=done.reason)
    found = [_state(*line) for line in _LINE.findall(done.stdout)]
    return sorted(found, key=lambda each: (each.started, each.run))


def _state(name: bytes, word: bytes, status: bytes, header: bytes) -> JobState:
    try:
        document = json.loads(header.removeprefix(_HEADER.encode()))
        command, started = (
            one_line(str(document.get("command", ""))),
            float(document.get("started", 0)),
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        command, started = "", 0.0
    return JobState(name.decode(), word.decode(), int(status) if status else None, command, started)

"""The paths of tpukit's files on a worker, relative to the home folder."""

from __future__ import annotations

import re
import secrets
import time

from tpukit.clock import Clock
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line, quote

ROOT = ".tpukit"
#: The version of the installer on every worker; scripts/lock writes its hashes.
UV_VERSION = "0.13.9"
UV_FOLDER = f"{ROOT}/uv-{UV_VERSION}"
UV_PROGRAM = f"{UV_FOLDER}/bin/uv"
JOBS = f"{ROOT}/jobs"
PYTHONS = f"{ROOT}/pythons"
DIAGNOSES = f"{ROOT}/diagnose"
#: The folder of compiled programs, if the user has not chosen another.
COMPILATION_CACHE = f"{ROOT}/compilation-cache"
#: The locks of smoke tests and of provisioning.
SMOKE_LOCK, PROVISION_LOCK = f"{ROOT}/smoke.lock", f"{ROOT}/provision.lock"
RAY_LOCK = f"{ROOT}/ray.lock"
#: The prefix of runs among all jobs; the jobs of provisioning steps lack it.
_PREFIX = "run."
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


def record_name(run_id: str, worker: str) -> str:
    """Return the name of a run's record; `worker` is the worker's `record`.

    The name has the worker, because workers may share a home folder. Raises `BadInput` if the run
    id is invalid.
    """
    return f"{_PREFIX}{checked_run_id(run_id)}@{worker}"


def checked_run_id(run_id: str) -> str:
    """Return a run id; raise `BadInput` if it is invalid."""
    if not _RUN_ID.fullmatch(run_id):
        raise BadInput(
            f"{one_line(run_id)!r} cannot be a run id",
            fix=Fix(note="use a-z, 0-9, '.', '_' and '-'"),
        )
    return run_id


def run_of(mark: str) -> str:
    """Return the run id of a process with this TPUKIT_JOB, or "" if it belongs to no run."""
    job = mark.rpartition("/")[2].partition("@")[0]
    return job.removeprefix(_PREFIX) if job.startswith(_PREFIX) else ""


def new_run_id(clock: Clock) -> str:
    """Return a run id that sorts by time: `20261121-143355-3f2a` (UTC)."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(clock.time()))}-{secrets.token_hex(2)}"


def venv(recipe: str) -> str:
    """Return the folder of a recipe's virtual environment."""
    return f"{ROOT}/venvs/{recipe}"


def venv_python(recipe: str) -> str:
    """Return the interpreter of a recipe's virtual environment."""
    return f"{venv(recipe)}/bin/python"


def venv_variables(recipe: str) -> str:
    """Return the file of shell lines that set the recipe's variables."""
    return f"{venv(recipe)}/tpukit-variables"


def shell_word(path: str) -> str:
    """Return the path as a shell word that is valid in every folder."""
    return f'"$HOME"/{quote([path])}'

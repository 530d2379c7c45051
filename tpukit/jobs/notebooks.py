"""Jupyter on a worker: a detached run that ends when its lease is no longer renewed."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress

from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import DeadlinePassed, Fix, NotFound, TpukitError
from tpukit.jobs import runs
from tpukit.jobs.detached_job import DetachedJob, JobResult, LogPart
from tpukit.jobs.end import end_processes
from tpukit.jobs.job_list import forget_job
from tpukit.jobs.python_environments import require_environment
from tpukit.jobs.shell_environment import shell_lines
from tpukit.ssh import agent_client, worker_files
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line

#: Seconds between two renewals of a lease.
RENEWAL_SECONDS = 10.0
_INSTALL_SECONDS, _START_SECONDS, _ASK_SECONDS = 600.0, 90.0, 30.0


def install(worker: RemoteWorker, recipe: str, clock: Clock) -> None:
    """Install JupyterLab in a recipe's environment.

    Raises `NotFound` if the worker lacks that environment, and `TpukitError` if it fails.
    """
    require_environment([worker], recipe, clock)
    program = worker_files.shell_word(worker_files.UV_PROGRAM)
    uv = f"{program} --no-progress --color=never pip install"
    with worker.connect() as connection:
        deadline = Deadline.after(clock, _INSTALL_SECONDS)
        line = f"{uv} --python {_interpreter(recipe)} jupyterlab"
        done = connection.run(line, deadline=deadline)
    if not done.ok:
        raise TpukitError(
            f"JupyterLab could not be installed on {worker.label}", reason=done.reason
        )


class Notebook:
    """Jupyter on one worker.

    It ends by itself if this object has not renewed its lease for `lease` seconds.
    """

    def __init__(
        self,
        worker: RemoteWorker,
        recipe: str,
        clock: Clock,
        lease: float,
        variables: Mapping[str, str],
    ) -> None:
        self.run_id = f"notebook-{worker_files.new_run_id(clock)}"
        self._job = worker_files.record_name(self.run_id, worker.record)
        self._worker = worker
        self._recipe = recipe
        self._variables = variables
        self._lease = lease
        self._clock = clock
        self._token = secrets.token_urlsafe(24)
        self._ended = threading.Event()

    def start(self) -> int:
        """Start Jupyter and return its port on the worker's loopback.

        Raises:
            NotFound: the worker lacks the recipe's environment, or Jupyter in it.
            TpukitError: Jupyter ended early; the reason shows the end of its log.
            DeadlinePassed: it did not answer within 90 s.
        """
        require_environment([self._worker], self._recipe, self._clock)
        request, python = {"seconds": round(self._lease)}, _interpreter(self._recipe)
        words = agent_client.job_command("serve_notebook", request, python)
        lines = shell_lines({**self._variables, "JUPYTER_TOKEN": self._token}, self._recipe)
        runs.start([self._worker], self.run_id, words, lines, self._clock)
        return self._port()

    def url(self, port: int) -> str:
        """Return the URL for a browser on this machine, given the local port."""
        return f"http://127.0.0.1:{port}/?token={self._token}"

    def wait(self) -> str:
        """Renew the lease until `end`; return the reason if Jupyter ends by itself, else ""."""
        folder = f"{worker_files.JOBS}/{self._job}"
        # `touch -c` alone succeeds even if the folder is gone.
        there = f"test -e {folder}/lease && test ! -e {folder}/status && touch -c {folder}/lease"
        while not self._ended.wait(RENEWAL_SECONDS):
            with suppress(TpukitError), self._worker.connect() as connection:
                deadline = Deadline.after(self._clock, _ASK_SECONDS)
                if connection.run(there, deadline=deadline).status == 1:
                    return self._how_it_ended()
        return ""

    def end(self) -> None:
        """End Jupyter and its kernels, and remove its job's folder from the worker."""
        self._ended.set()
        with self._worker.connect() as connection:
            # It ends only this job: another program of the user's may hold the TPU.
            end_processes(connection, self._clock, jobs=[self._job])
            forget_job(connection, self._job, deadline=Deadline.after(self._clock, _ASK_SECONDS))

    def _port(self) -> int:
        for _ in polls(Deadline.after(self._clock, _START_SECONDS)):
            lines: list[str] = []
            ended = self._follow(lines)
            said = agent_client.answers_in(self._worker.label, "\n".join(lines).encode())
            if said and said[-1].has("absent"):
                raise NotFound(
                    f"{self._worker.label} has no Jupyter in its environment {self._recipe}",
                    fix=Fix(note="add --install: it puts JupyterLab into that environment"),
                )
            if ended:
                tail = one_line(" ".join(ended.tail[-3:]))[-300:]
                raise TpukitError(f"Jupyter ended on {self._worker.label}", reason=tail)
            if said:
                return said[-1].number("port")
        raise DeadlinePassed(f"Jupyter on {self._worker.label} does not answer")

    def _how_it_ended(self) -> str:
        try:
            ended = self._follow([], to_the_end=True)
        except TpukitError as error:
            return error.summary()
        return f"status {ended.status}" if ended else ""

    def _follow(self, lines: list[str], to_the_end: bool = False) -> JobResult | None:
        limit = Deadline.after(self._clock, _ASK_SECONDS)
        job = DetachedJob(self._worker.connect, self._job, limit, lines.append)
        return job.follow(LogPart(on=to_the_end))


def _interpreter(recipe: str) -> str:
    return worker_files.shell_word(worker_files.venv_python(recipe))

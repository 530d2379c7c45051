"""Jupyter on a worker: a detached run that ends when nobody renews its lease any more."""

from __future__ import annotations

import re
import secrets
import threading
from contextlib import suppress

from tpukit import detached
from tpukit.clock import Clock, Deadline, polls
from tpukit.errors import DeadlinePassed, NotFound, TpukitError
from tpukit.provision.recipes import UV_VERSION
from tpukit.remote.ending import end_processes
from tpukit.remote.environment import shell_lines
from tpukit.remote.job_list import job_name
from tpukit.remote.jobs import JobResult, follow_job, forget_job
from tpukit.remote.program import program_text
from tpukit.remote.worker import RemoteWorker
from tpukit.text import one_line, quote

#: Seconds after which Jupyter ends where nobody renews its lease, and between two renewals.
LEASE_SECONDS, RENEWAL_SECONDS = 300.0, 10.0
_INSTALL_SECONDS, _START_SECONDS, _ASK_SECONDS, _GRACE_SECONDS = 600.0, 90.0, 30.0, 10.0
_PROGRAM = ".tpukit/notebook.py"
_SAID = re.compile(r"tpukit-notebook (absent|\d{1,5})")


def install(worker: RemoteWorker, recipe: str, clock: Clock) -> None:
    """Put JupyterLab into a recipe's environment; raise `TpukitError` where that fails."""
    uv = f'"$HOME"/.tpukit/uv-{UV_VERSION}/bin/uv --no-progress --color=never pip install'
    with worker.connect() as connection:
        deadline = Deadline.after(clock, _INSTALL_SECONDS)
        line = f"{uv} --python {_interpreter(recipe)} jupyterlab"
        done = connection.run(line, deadline=deadline)
    if not done.ok:
        raise TpukitError(
            f"JupyterLab could not be installed on {worker.label}",
            reason=one_line(done.stderr[-300:]),
        )


class Notebook:
    """Jupyter on one worker, started here and ended here."""

    def __init__(self, worker: RemoteWorker, recipe: str, clock: Clock) -> None:
        self.run_id = f"notebook-{detached.new_run_id(clock)}"
        self._worker = worker
        self._recipe = recipe
        self._clock = clock
        self._token = secrets.token_urlsafe(24)
        self._ended = threading.Event()

    def start(self) -> int:
        """Start Jupyter and return its port on the worker's loopback.

        Raises:
            NotFound: the recipe's environment, or Jupyter in it, is not there.
            TpukitError: Jupyter ended early; the reason is the end of its log.
            DeadlinePassed: it did not answer within 90 s.
        """
        with self._worker.connect() as connection:
            deadline = Deadline.after(self._clock, _ASK_SECONDS)
            connection.upload(program_text("notebook.py").encode(), _PROGRAM, deadline=deadline)
            there = connection.run(f"test -x {_interpreter(self._recipe)}", deadline=deadline)
        name = self._worker.slice
        if not there.ok:
            raise NotFound(
                f"{self._worker.label} has no environment {self._recipe}",
                fix=quote(["tpukit", "provision", name, self._recipe]),
            )
        words = f'exec {_interpreter(self._recipe)} -I "$HOME"/{_PROGRAM} {LEASE_SECONDS:.0f}'
        lines = shell_lines({"JUPYTER_TOKEN": self._token}, self._recipe)
        detached.start([self._worker], self.run_id, words, lines, self._clock)
        return self._port()

    def url(self, port: int) -> str:
        """Return what a browser here opens, for a port of this machine."""
        return f"http://127.0.0.1:{port}/?token={self._token}"

    def wait(self) -> str:
        """Renew the lease until `end`; where Jupyter ends by itself, return how it ended."""
        lease = f".tpukit/jobs/{job_name(self.run_id)}/lease"
        there = f"test -e {lease} && touch -c {lease}"
        while not self._ended.wait(RENEWAL_SECONDS):
            with suppress(TpukitError), self._worker.connect() as connection:
                deadline = Deadline.after(self._clock, _ASK_SECONDS)
                if connection.run(there, deadline=deadline).status == 1:
                    return self._how_it_ended()
        return ""

    def end(self) -> None:
        """End Jupyter with its kernels, and remove its log and its token from the worker."""
        self._ended.set()
        job = job_name(self.run_id)
        with self._worker.connect() as connection:
            # Another program of the user's may hold the TPU: it is none of ours.
            report = end_processes(
                connection,
                jobs=[job],
                holders="none",
                grace=_GRACE_SECONDS,
                deadline=Deadline.after(self._clock, 2 * _GRACE_SECONDS + _ASK_SECONDS),
            )
            if report.left:
                pids = ", ".join(map(str, report.left))
                raise TpukitError(f"processes on {self._worker.label} cannot be ended", reason=pids)
            forget_job(connection, job, deadline=Deadline.after(self._clock, _ASK_SECONDS))

    def _port(self) -> int:
        for _ in polls(Deadline.after(self._clock, _START_SECONDS)):
            lines: list[str] = []
            ended = self._follow(lines)
            said = _SAID.search("\n".join(lines))
            if said and said[1] == "absent":
                raise NotFound(
                    f"{self._worker.label} has no Jupyter in its environment {self._recipe}",
                    fix="add --install: it puts JupyterLab into that environment",
                )
            if ended:
                tail = one_line(" ".join(ended.tail[-3:]))[-300:]
                raise TpukitError(f"Jupyter ended on {self._worker.label}", reason=tail)
            if said:
                return int(said[1])
        raise DeadlinePassed(f"Jupyter on {self._worker.label} does not answer")

    def _how_it_ended(self) -> str:
        try:
            ended = self._follow([], to_the_end=True)
        except TpukitError as error:
            return error.summary()
        return f"status {ended.status}" if ended else ""

    def _follow(self, lines: list[str], to_the_end: bool = False) -> JobResult | None:
        return follow_job(
            self._worker.connect,
            job_name(self.run_id),
            deadline=Deadline.after(self._clock, _ASK_SECONDS),
            clock=self._clock,
            on_line=lines.append,
            to_the_end=to_the_end,
        )


def _interpreter(recipe: str) -> str:
    return f'"$HOME"/{quote([f".tpukit/venvs/{recipe}"])}/bin/python'

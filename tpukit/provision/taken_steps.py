"""The steps taken on one worker: an event when each one ends, and a report on all."""

from __future__ import annotations

from collections.abc import Callable

from tpukit.errors import TpukitError
from tpukit.provision.provision_report import StepReport, WorkerProvisionReport
from tpukit.provision.worker_jobs import WorkerJobs
from tpukit.text import one_line


class TakenSteps:
    """Collects the reports of steps; a step that fails is the last."""

    def __init__(self, jobs: WorkerJobs) -> None:
        self._jobs = jobs
        self._reports: list[StepReport] = []

    def take(self, name: str, act: Callable[[], tuple[str, str]]) -> None:
        """Take a step: call `act`, which returns an outcome and a detail, and report them.

        If `act` raises a `TpukitError`, report the step as `failed` and raise the error again.
        """
        started = self._jobs.deadline.clock.monotonic()

        def end(outcome: str, detail: str) -> None:
            seconds = self._jobs.deadline.clock.monotonic() - started
            self._reports.append(StepReport(name, outcome, detail, seconds))
            self._jobs.tell(name, "finished", f"{outcome}: {detail}")

        try:
            outcome, detail = act()
        except TpukitError as error:
            end("failed", one_line(error.summary()))
            raise
        end(outcome, detail)

    def report(
        self, error: TpukitError | None, *, python: str = "", emulated: bool = False
    ) -> WorkerProvisionReport:
        """Return the worker's report; `error` is the error that ended the work early, if any."""
        details = error.details if error else {}
        return WorkerProvisionReport(
            worker=self._jobs.worker.index,
            slice=self._jobs.worker.slice,
            steps=tuple(self._reports),
            python=python,
            emulated=emulated,
            error=self._named(error) if error else "",
            cause=error,
            log_tail=tuple(details.get("log_tail", ())),
            log_path=one_line(details.get("log_path", "")),
        )

    def _named(self, error: TpukitError) -> str:
        failed = [f"step {step.name}: " for step in self._reports if step.outcome == "failed"]
        return "".join([*failed, one_line(error.summary())])

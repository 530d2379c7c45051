"""The reports on provisioning: on a step, a worker, and a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tpukit.errors import ProvisionFailed, TpukitError, decisive
from tpukit.models import Documented, names_of_workers

WorkerReport = TypeVar("WorkerReport", "WorkerProvisionReport", "WorkerUndoReport")


@dataclass(frozen=True)
class StepReport(Documented):
    """One provisioning step. Its outcome is `changed`, `unchanged` or `failed`."""

    name: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class WorkerProvisionReport(Documented):
    """One worker's steps. `error` is empty unless the worker failed."""

    _derived, _hidden = ("ok", "changes"), ("cause",)
    worker: int
    steps: tuple[StepReport, ...]
    python: str = ""  #: path of the provisioned interpreter on the worker
    emulated: bool = False
    error: str = ""
    cause: TpukitError | None = field(default=None, compare=False)  #: `error`, with its class
    log_tail: tuple[str, ...] = ()
    log_path: str = ""
    slice: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def changes(self) -> int:
        return sum(step.outcome == "changed" for step in self.steps)


@dataclass(frozen=True)
class WorkerUndoReport(Documented):
    """The undone steps and environments of one worker. `error` is empty unless it failed."""

    _derived, _hidden = ("ok",), ("cause",)
    worker: int
    undone: tuple[str, ...] = ()
    error: str = ""
    cause: TpukitError | None = field(default=None, compare=False)  #: `error`, with its class
    log_tail: tuple[str, ...] = ()
    slice: str = ""

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(frozen=True)
class ProvisionReport(Documented):
    """Every worker's provisioning."""

    _derived = ("ok", "changes")
    recipe: str
    workers: tuple[WorkerProvisionReport, ...]

    @property
    def ok(self) -> bool:
        return all(worker.ok for worker in self.workers)

    @property
    def changes(self) -> int:
        return sum(worker.changes for worker in self.workers)


def failure(
    what: str, reports: Sequence[WorkerReport], details: dict[str, Any]
) -> tuple[WorkerReport, TpukitError]:
    """Return one error for all failed workers, and the report of the worker that decides it."""
    failed = [report for report in reports if not report.ok]
    several = len({report.slice for report in reports}) > 1
    named = names_of_workers([(report.slice, report.worker) for report in failed], several=several)
    cause = decisive(worker.cause for worker in failed)
    kind = type(cause) if cause else ProvisionFailed
    first: WorkerReport = next(
        (report for report in failed if cause and report.cause is cause), failed[0]
    )
    return first, kind(
        f"{what} on {named}",
        why="\n".join([first.error, *first.log_tail]),
        exists=cause.exists if cause else (),
        fix=first.cause.fix if first.cause else None,
        details=details,
    )

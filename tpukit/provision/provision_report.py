"""What came of provisioning: of a step, of a worker, of a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tpukit.errors import ProvisionFailed, TpukitError, decisive
from tpukit.models import Documented, names_of_workers

WorkerReport = TypeVar("WorkerReport", "WorkerProvisionReport", "WorkerUndoReport")


@dataclass(frozen=True)
class StepReport(Documented):
    """What became of one provisioning step: `changed`, `unchanged` or `failed`."""

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
    """What was taken back on one worker. `error` is empty unless that failed."""

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
    """Return the error for workers of which some failed, and the report that it is about."""
    failed = [each for each in reports if not each.ok]
    several = len({each.slice for each in reports}) > 1
    named = names_of_workers([(each.slice, each.worker) for each in failed], several=several)
    cause = decisive(worker.cause for worker in failed)
    kind = type(cause) if cause else ProvisionFailed
    first: WorkerReport = next(
        (each for each in failed if cause and each.cause is cause), failed[0]
    )
    return first, kind(
        f"{what} on {named}",
        why="\n".join([first.error, *first.log_tail]),
        exists=cause.exists if cause else (),
        fix=first.cause.fix if first.cause else None,
        details=details,
    )

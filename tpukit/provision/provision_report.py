"""What came of provisioning: of a step, of a worker, of a slice."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpukit.errors import TpukitError
from tpukit.models import Documented


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

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def changes(self) -> int:
        return sum(step.outcome == "changed" for step in self.steps)


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

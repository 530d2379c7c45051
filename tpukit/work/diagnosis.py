"""Whether a training program waits for its input, and what to do about it, in order.

The rules are those of "TPU training in practice": resize beforehand, cache, more workers of the
loader, larger batches; and fixed shapes, without which XLA compiles again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.clock import Clock, Deadline
from tpukit.errors import TpukitError
from tpukit.remote import worker_files
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RemoteWorker
from tpukit.remote.programs import program_text, shell_line
from tpukit.text import one_line, quote

#: Below the home folder: the module that programs import, and what it found.
_FOLDER = worker_files.DIAGNOSES
_READ_SECONDS = 30.0
#: The part of a step that is the host's, above which a program is host-bound.
HOST_BOUND = 0.2
#: Processors are idle below the one, and have nothing left above the other.
_IDLE, _FULL = 0.7, 0.9
_DUTY = 80.0

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class StepTimes(BaseModel):
    """What steps_program.py found on a worker; seconds are of one step, or one batch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: Count
    real_seconds: Seconds
    cached_seconds: Seconds
    input_seconds: Seconds
    waited_seconds: Seconds
    compilations: Count
    shapes: Count
    busy: Annotated[float, Field(ge=0, le=1)]
    processors: Count
    duty_cycle: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @property
    def host_share(self) -> float:
        """The part of a step that goes when the batch is there already: at most the wait for it.

        A loader that prepares ahead catches up during cached steps; in a training it has none, and
        a step takes at least what a batch takes.
        """
        step = max(self.real_seconds, self.input_seconds)
        waited = self.waited_seconds + step - self.real_seconds
        return max(0.0, min(step - self.cached_seconds, waited) / step) if step else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """One worker's step times, and the advice, what helps most first."""

    worker: int
    times: StepTimes
    advice: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        times = self.times.model_dump(mode="json", exclude={"steps"})
        share = {"host_share": self.times.host_share}
        return {"worker": self.worker, **times, **share, "advice": [*self.advice]}


def shell_lines(run: str, steps: int) -> str:
    """Return the POSIX shell lines that put the module on a worker and ask it for so many steps."""
    folder, module = f'"$HOME"/{_FOLDER}', quote([program_text("work/steps_program.py")])
    return (
        f"mkdir -p {folder} && printf %s {module} >{folder}/tpukit_steps.py\n"
        f'export PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f"export TPUKIT_DIAGNOSE={folder}/{quote([run])}.json TPUKIT_DIAGNOSE_STEPS={steps}\n"
    )


def read(
    workers: Sequence[RemoteWorker], run: str, clock: Clock
) -> list[Outcome[RemoteWorker, StepTimes | None]]:
    """Return what each worker's program found, once; None where it never asked for its steps."""
    path = f'"$HOME"/{_FOLDER}/{quote([run])}.json'
    line = shell_line(f"[ ! -e {path} ] || {{ cat {path} && rm {path}; }}\n")

    def one(worker: RemoteWorker) -> StepTimes | None:
        with worker.connect() as connection:
            done = connection.run(line, deadline=Deadline.after(clock, _READ_SECONDS))
        text = done.stdout.strip()
        if not text:
            return None
        try:
            return StepTimes.model_validate_json(text)
        except ValidationError as error:
            first = one_line(error.errors()[0]["msg"])
            what = f"the step times of {worker.label} make no sense"
            raise TpukitError(what, reason=first) from error

    return fan_out(workers, one)


def diagnose(worker: int, found: StepTimes) -> Diagnosis:
    """Return what a worker's step times mean."""
    return Diagnosis(worker, found, tuple(_advice(found)))


def _advice(found: StepTimes) -> Iterator[str]:
    if found.host_share > HOST_BOUND:
        yield (
            f"presize: {found.host_share:.0%} of a step is the host's; what is the same in each"
            " epoch, as decoding, resizing and tokenizing, is done once, before training"
        )
        yield "cache: keep what is prepared in memory, or on the data disk"
        if found.busy < _IDLE:
            yield (
                f"workers: {found.busy:.0%} of {found.processors} vCPUs are busy; more processes"
                " of the loader, which prepare ahead"
            )
        elif found.busy > _FULL:
            yield (
                f"vCPUs: all {found.processors} are busy; more processes would not help, a worker"
                " with more vCPUs would"
            )
    if found.duty_cycle is not None and found.duty_cycle < _DUTY and not found.compilations:
        yield f"batch: the chips compute {found.duty_cycle:.0f} % of the time; larger batches"
    if found.compilations:
        cause = (
            f"{found.shapes} shapes of batches" if found.shapes > 1 else "no new shape of a batch"
        )
        yield (
            f"fixed shapes: {found.compilations} compilations in {found.steps} steps, with {cause};"
            " pad to one length, drop the last batch that is smaller"
        )

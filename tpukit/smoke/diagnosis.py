"""The diagnosis of a training program that waits for its input, with advice in order.

The rules come from "TPU training in practice": resize beforehand, cache, use more loader processes
and larger batches; keep shapes fixed, because XLA compiles again for each new shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.clock import Clock, Deadline
from tpukit.errors import TpukitError
from tpukit.ssh import worker_files
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.programs import program_text, shell_line
from tpukit.ssh.worker import RemoteWorker
from tpukit.text import one_line, quote

#: Below the home folder: the module that programs import, and its results.
_FOLDER = worker_files.DIAGNOSES
_READ_SECONDS = 30.0
#: A program is host-bound if the host takes more than this part of a step.
HOST_BOUND = 0.2
#: Below the first the processors are partly idle; above the second they are fully busy.
_IDLE, _FULL = 0.7, 0.9
_DUTY = 80.0

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class StepTimes(BaseModel):
    """The measurements of steps_program.py on a worker; seconds are for one step or one batch."""

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
        """The part of a step that the host takes: the time saved if the batch is ready.

        It is at most the wait for the batch. A loader that prepares ahead catches up during the
        cached steps. Real training has no cached steps, so a step takes at least as long as the
        loader needs for a batch.
        """
        step = max(self.real_seconds, self.input_seconds)
        waited = self.waited_seconds + step - self.real_seconds
        return max(0.0, min(step - self.cached_seconds, waited) / step) if step else 0.0


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one worker's step times."""

    worker: int
    times: StepTimes

    @property
    def advice(self) -> tuple[str, ...]:
        """The advice, the most effective first."""
        return tuple(_advice(self.times))

    def document(self) -> dict[str, Any]:
        """Return the public JSON value."""
        times = self.times.model_dump(mode="json", exclude={"steps"})
        share = {"host_share": self.times.host_share}
        return {"worker": self.worker, **times, **share, "advice": [*self.advice]}


def shell_lines(run: str, steps: int) -> str:
    """Return the POSIX shell lines that write the module on a worker and set its steps."""
    folder, module = f'"$HOME"/{_FOLDER}', quote([program_text("smoke/steps_program.py")])
    return (
        f"mkdir -p {folder} && printf %s {module} >{folder}/tpukit_steps.py\n"
        f'export PYTHONPATH={folder}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f"export TPUKIT_DIAGNOSE={folder}/{quote([run])}.json TPUKIT_DIAGNOSE_STEPS={steps}\n"
    )


def read(
    workers: Sequence[RemoteWorker], run: str, clock: Clock
) -> list[Outcome[RemoteWorker, StepTimes | None]]:
    """Return each worker's step times and remove their file; None if the program wrote none."""
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
            what = f"the step times of {worker.label} are invalid"
            raise TpukitError(what, reason=first) from error

    return fan_out(workers, one)


def _advice(times: StepTimes) -> Iterator[str]:
    if times.host_share > HOST_BOUND:
        yield (
            f"presize: the host takes {times.host_share:.0%} of a step; decode, resize and tokenize"
            " once, before training, instead of in each epoch"
        )
        yield "cache: keep the prepared data in memory, or on the data disk"
        if times.busy < _IDLE:
            yield (
                f"workers: {times.busy:.0%} of {times.processors} vCPUs are busy; give the loader"
                " more processes, which prepare ahead"
            )
        elif times.busy > _FULL:
            yield (
                f"vCPUs: all {times.processors} are busy; more processes would not help, a worker"
                " with more vCPUs would"
            )
    if times.duty_cycle is not None and times.duty_cycle < _DUTY and not times.compilations:
        yield f"batch: the chips compute {times.duty_cycle:.0f} % of the time; use larger batches"
    if times.compilations:
        cause = (
            f"{times.shapes} shapes of batches" if times.shapes > 1 else "no new shape of a batch"
        )
        yield (
            f"fixed shapes: {times.compilations} compilations in {times.steps} steps, with {cause};"
            " pad to one length and drop a smaller last batch"
        )

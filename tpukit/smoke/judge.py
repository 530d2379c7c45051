"""Read the workers' answers without trusting them, and judge: the right devices, all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.accelerators import AcceleratorType
from tpukit.errors import DeadlinePassed, SmokeFailed, TpukitError
from tpukit.models import SmokeReport, WorkerSmokeReport
from tpukit.provision.recipes import Recipe
from tpukit.text import one_line, sanitize

_MARK = b"TPUKIT-SMOKE "
#: How Python's faulthandler begins the traceback of a program that it ends for taking too long.
_TIMEOUT = "Timeout ("
_TAIL_LINES, _LINE_LENGTH = 15, 400
#: The sum of a 256 x 256 product of ones, exact in bfloat16 and float32.
MATMUL = 256.0**3


Word = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]


class Answer(BaseModel):
    """The JSON document that smoke_program.py prints."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    framework: Word
    versions: Annotated[dict[Word, Word], Field(max_length=20)]
    emulated: Count
    platform: Word
    device_kind: Word
    devices: Count
    global_devices: Count
    process: Count
    processes: Count
    matmuls: Annotated[tuple[float, ...], Field(max_length=4096)]
    global_sum: float
    numbers_hold: bool
    seconds: float

    @property
    def version(self) -> str:
        """The framework's own version."""
        return one_line(self.versions.get(self.framework, ""))


@dataclass(frozen=True)
class Observation:
    """How one worker's part ended: its streams and exit status, or the error in their place.

    `waiting`: this worker may only have waited for another one.
    """

    worker: int
    emulated_devices: int = 0
    status: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    error: TpukitError | None = None
    waiting: bool = False
    seconds: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether the program ended itself because its time was over."""
        lines = sanitize(self.stderr).splitlines()
        return any(line.startswith(_TIMEOUT) for line in lines)


def read_answer(observation: Observation) -> Answer | TpukitError:
    """Return the one answer in a worker's output, or what is wrong with it."""
    if observation.error:
        return observation.error
    found = [line for line in observation.stdout.splitlines() if line.startswith(_MARK)]
    if not found and observation.timed_out:
        return DeadlinePassed(f"no answer within {observation.seconds:.0f} s")
    if not found:
        status = observation.status
        return SmokeFailed(f"the program gave no answer and ended with status {status}")
    if len(found) > 1:
        return SmokeFailed(f"the program gave {len(found)} answers")
    try:
        return Answer.model_validate_json(found[0].removeprefix(_MARK))
    except ValidationError as error:
        first = error.errors()[0]
        wrong = one_line(" ".join([*map(str, first["loc"]), first["msg"]]))[:200]
        return SmokeFailed(f"the program's answer makes no sense: {wrong}")


def log_tail(observation: Observation) -> tuple[str, ...]:
    """Return the lines of a worker's output that show most of a failure."""
    lines = _lines(observation.stderr) or _lines(observation.stdout)
    timeouts = [at for at, line in enumerate(lines) if line.startswith(_TIMEOUT)]
    if timeouts:  # faulthandler shows the innermost call first
        return tuple(lines[timeouts[-1] :][:_TAIL_LINES])
    return tuple(lines[-_TAIL_LINES:])


def _lines(stream: bytes) -> list[str]:
    lines = sanitize(stream).splitlines()
    return [line[:_LINE_LENGTH] for line in lines if line.strip()]


@dataclass(frozen=True)
class Expectation:
    """What the smoke test of a slice has to show. Workers are counted, devices come by type."""

    accelerator: AcceleratorType
    recipe: Recipe
    workers: int

    @property
    def framework(self) -> str:
        return self.recipe.name

    @property
    def devices(self) -> int:
        return self.accelerator.devices

    @property
    def devices_per_worker(self) -> int:
        each, left = divmod(self.devices, self.workers)
        return self.accelerator.devices_per_worker if left else each

    @property
    def global_sum(self) -> float:
        """The sum of 1 for the first device, 2 for the second and so on: a missing one shows."""
        return self.devices * (self.devices + 1) / 2


def judge(observations: Sequence[Observation], expected: Expectation) -> SmokeReport:
    """Return the report on a slice from what was seen of each worker."""
    results = {each.worker: read_answer(each) for each in observations}
    answers = {worker: each for worker, each in results.items() if isinstance(each, Answer)}
    disagreement = _disagreement(observations, answers)
    reports = [_report(each, results[each.worker], expected, disagreement) for each in observations]
    return SmokeReport(
        expected.framework,
        tuple(_with_consequences(reports, observations)),
        _stand_in(observations, answers, expected),
        _notes(expected),
    )


def _report(
    observation: Observation, answer: Answer | TpukitError, expected: Expectation, disagreement: str
) -> WorkerSmokeReport:
    blank = WorkerSmokeReport(
        worker=observation.worker,
        framework=expected.framework,
        devices_expected=expected.devices_per_worker,
        global_devices_expected=expected.devices,
        matmul_expected=MATMUL,
        global_sum_expected=expected.global_sum,
        seconds=observation.seconds,
        emulated=observation.emulated_devices > 0,
    )
    if not isinstance(answer, Answer):
        error = one_line(answer.summary())
        return replace(blank, error=error, cause=answer, log_tail=log_tail(observation))
    problems = [*_problems(answer, observation, expected), disagreement]
    error = "; ".join(problem for problem in problems if problem)
    return replace(
        blank,
        version=answer.version,
        platform=one_line(answer.platform),
        device_kind=one_line(answer.device_kind),
        devices=answer.devices,
        global_devices=answer.global_devices,
        processes=answer.processes,
        matmul=_shown(answer.matmuls, MATMUL),
        global_sum=_shown([answer.global_sum], expected.global_sum),
        error=error,
        log_tail=log_tail(observation) if error else (),
    )


def _problems(answer: Answer, observation: Observation, expected: Expectation) -> Iterable[str]:
    emulated = observation.emulated_devices > 0
    platform = "cpu" if emulated else "tpu"
    kinds = expected.accelerator.facts.device_kinds
    if answer.framework != expected.framework:
        yield f"it computed with {one_line(answer.framework)}, not {expected.framework}"
    if (answer.emulated > 0) != emulated:
        yield "it does not know whether it is emulated"
    if answer.platform != platform:
        yield f"it computed on platform {one_line(answer.platform)}, not {platform}"
    named = expected.recipe.smoke.names_device_kind and not emulated
    if named and answer.device_kind not in kinds:
        yield f"its devices are {one_line(answer.device_kind)}, not {' or '.join(kinds)}"
    if answer.devices != expected.devices_per_worker:
        yield f"{answer.devices} of {expected.devices_per_worker} devices"
    if answer.global_devices != expected.devices:
        yield f"{answer.global_devices} of {expected.devices} devices in the whole slice"
    if answer.processes != expected.workers:
        yield f"{answer.processes} of {expected.workers} workers joined"
    yield from _number_problems(answer, expected)
    if observation.status != 0:
        yield f"the program ended with status {observation.status}"


def _number_problems(answer: Answer, expected: Expectation) -> Iterable[str]:
    if len(answer.matmuls) != answer.devices:
        yield f"{len(answer.matmuls)} of {answer.devices} devices multiplied"
    wrong = [value for value in answer.matmuls if value != MATMUL]
    if wrong:
        yield f"{len(wrong)} devices multiplied wrong: {wrong[0]:.1f}, not {MATMUL:.1f}"
    if answer.global_sum != expected.global_sum:
        yield f"the sum over all devices is {answer.global_sum:.1f}, not {expected.global_sum:.1f}"
    if not answer.numbers_hold:
        yield "the program itself finds its numbers wrong"


def _disagreement(observations: Sequence[Observation], answers: dict[int, Answer]) -> str:
    """Return what the workers contradict each other in."""
    if len({each.emulated_devices > 0 for each in observations if not each.error}) > 1:
        return "emulated workers and TPU VMs in one slice"
    versions = sorted({each.version for each in answers.values()})
    if len(versions) > 1:
        return f"the workers run different versions: {', '.join(versions)}"
    if len({each.process for each in answers.values()}) < len(answers):
        return "two workers have the same process number"
    return ""


def _with_consequences(
    reports: Sequence[WorkerSmokeReport], observations: Sequence[Observation]
) -> Iterable[WorkerSmokeReport]:
    """Name the cause where a worker only waited for one that failed."""
    waiting = {each.worker for each in observations if each.waiting or each.timed_out}
    causes = [each.worker for each in reports if each.error and each.worker not in waiting]
    named = ", ".join(f"worker {index}" for index in causes)
    for report in reports:
        consequence = causes and report.error and report.worker in waiting
        waited = replace(report, error=f"waited for {named}", cause=None, log_tail=())
        yield waited if consequence else report


def _stand_in(
    observations: Sequence[Observation], answers: dict[int, Answer], expected: Expectation
) -> str:
    if not any(each.emulated_devices for each in observations):
        return ""
    announced = sum(each.emulated_devices for each in observations)
    seen = max((each.global_devices for each in answers.values()), default=announced)
    unit = expected.accelerator.facts.device_unit
    return f"{_many(seen, 'CPU device')} standing in for {_many(expected.devices, f'TPU {unit}')}"


def _notes(expected: Expectation) -> tuple[str, ...]:
    predicted = expected.accelerator.workers
    if predicted == expected.workers:
        return ()
    name, found = expected.accelerator.name, expected.workers
    return (f"{name} should have {_many(predicted, 'worker')}, the slice has {found}",)


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shown(values: Sequence[float], right: float) -> float | None:
    """Return the first wrong value, or the right one; None for what JSON cannot carry."""
    value = next((value for value in values if value != right), right if values else math.nan)
    return value if math.isfinite(value) else None

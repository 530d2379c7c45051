"""Read the workers' answers, which may be wrong or hostile, and compare them with the type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.accelerators import AcceleratorType
from tpukit.errors import DeadlinePassed, SmokeFailed, TpukitError
from tpukit.explain.known_errors import first_known
from tpukit.provision.recipes import Recipe
from tpukit.smoke.measurements import Bench, Soak, WorkerFigures, measurements
from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport
from tpukit.text import counted, one_line, sanitize

_MARK = b"TPUKIT-SMOKE "
#: The start of faulthandler's traceback if a program took too long.
_TIMEOUT = "Timeout ("
_TAIL_LINES, _LINE_LENGTH = 15, 400
#: libtpu writes these lines many times if its log files belong to another user. They are harmless:
#: public logs of v4 and v5e slices have them (docs/reference/real-workers.md).
_HARMLESS = ("Could not open the log file '/tmp/tpu_logs/", "Could not open any log file.")
#: The digests of the product of `operands` in smoke_program.py, on emulated and on TPU devices.
STAND_IN_DIGEST, DIGEST = "80b3dcac85e01f81", "0b9393b4a276946f"
#: The part of a device's memory that its framework must offer. Healthy v4 chips offer 0.96 and 0.99
#: (jax-ml/jax issue 1491, pytorch/xla pull request 7086).
MEMORY_SHARE = 0.9
#: The most devices that an error names.
_NAMED = 8


Word = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=16384)]


class Answer(BaseModel):
    """The JSON document that smoke_program.py prints; its docstring explains the fields."""

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
    digests: Annotated[tuple[tuple[Word, ...], ...], Field(max_length=4096)]
    global_sum: float
    indices: Numbers = ()
    memory_bytes: Annotated[
        tuple[Annotated[int, Field(ge=0)] | None, ...], Field(max_length=16384)
    ] = ()
    missing: Numbers = ()
    ring: Numbers = ()
    bench: Bench | None = None
    soak: Soak | None = None

    @property
    def version(self) -> str:
        """The framework's version; if its package has another name, it is the first package."""
        first = next(iter(self.versions.values()), "")
        return one_line(self.versions.get(self.framework, first))


@dataclass(frozen=True)
class Observation:
    """The end of one worker's program: its streams and exit status, or an error.

    `waiting` is True if this worker may only have waited for another one.
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
        """Whether the program ended itself because it took too long."""
        lines = sanitize(self.stderr).splitlines()
        return any(line.startswith(_TIMEOUT) for line in lines)


def read_answer(observation: Observation) -> Answer | TpukitError:
    """Return the single answer in a worker's output, or the error if there is no valid one."""
    if observation.error:
        return observation.error
    answers = [line for line in observation.stdout.splitlines() if line.startswith(_MARK)]
    if not answers and observation.timed_out:
        return DeadlinePassed(f"no answer within {observation.seconds:.0f} s")
    if not answers:
        status = observation.status
        return SmokeFailed(f"the program gave no answer and ended with status {status}")
    if len(answers) > 1:
        return SmokeFailed(f"the program gave {len(answers)} answers")
    try:
        return Answer.model_validate_json(answers[0].removeprefix(_MARK))
    except ValidationError as error:
        first = error.errors()[0]
        wrong = one_line(" ".join([*map(str, first["loc"]), first["msg"]]))[:200]
        return SmokeFailed(f"the program's answer makes no sense: {wrong}")


def log_tail(observation: Observation) -> tuple[str, ...]:
    """Return the most useful lines of a worker's output after a failure: usually the last ones."""
    lines = _lines(observation.stderr) or _lines(observation.stdout)
    timeouts = [at for at, line in enumerate(lines) if line.startswith(_TIMEOUT)]
    if timeouts:  # faulthandler writes the innermost call first
        return tuple(lines[timeouts[-1] :][:_TAIL_LINES])
    return tuple(lines[-_TAIL_LINES:])


def _lines(stream: bytes) -> list[str]:
    lines = sanitize(stream).splitlines()
    left_out = (_MARK.decode(), *_HARMLESS)
    return [line[:_LINE_LENGTH] for line in lines if line.strip() and not line.startswith(left_out)]


@dataclass(frozen=True)
class Expectation:
    """The expected results: `workers` is the slice's own number, the rest comes from the type."""

    accelerator: AcceleratorType
    recipe: Recipe
    workers: int
    level: int = 1

    @property
    def devices_per_worker(self) -> int:
        share, rest = divmod(self.accelerator.devices, self.workers)
        return self.accelerator.devices_per_worker if rest else share

    @property
    def global_sum(self) -> float:
        """The sum of 1 for the first device, 2 for the second and so on."""
        devices = self.accelerator.devices
        return devices * (devices + 1) / 2

    @property
    def memory_bytes(self) -> float:
        """The bytes of HBM that a device must offer."""
        facts = self.accelerator.facts
        return MEMORY_SHARE * facts.hbm_gib_per_chip * 2**30 / facts.devices_per_chip


def judge(observations: Sequence[Observation], expected: Expectation) -> SmokeReport:
    """Return the report on a slice from the observations of its workers."""
    results = {observation.worker: read_answer(observation) for observation in observations}
    answers = {worker: result for worker, result in results.items() if isinstance(result, Answer)}
    disagreement = _disagreement(observations, answers)
    reports = [
        _report(observation, results[observation.worker], expected, disagreement)
        for observation in observations
    ]
    stand_in = _stand_in(observations, answers, expected)
    parts = [
        WorkerFigures(
            worker,
            answer.indices,
            answer.bench if answer.bench and answer.bench.is_of(answer.devices) else None,
            answer.soak if answer.soak and answer.soak.is_of(answer.devices) else None,
        )
        for worker, answer in answers.items()
    ]
    measured = measurements(parts, expected.accelerator, bool(stand_in))
    return SmokeReport(
        expected.recipe.name,
        tuple(_with_consequences(reports, observations)),
        stand_in,
        (
            *_notes(expected),
            *_unknown_memory(answers),
            *(str(figure) for figure in measured if figure.verdict == "warn"),
        ),
        expected.level,
        measured,
    )


def _report(
    observation: Observation, answer: Answer | TpukitError, expected: Expectation, disagreement: str
) -> WorkerSmokeReport:
    blank = WorkerSmokeReport(
        worker=observation.worker,
        framework=expected.recipe.name,
        devices_expected=expected.devices_per_worker,
        global_devices_expected=expected.accelerator.devices,
        matmul_expected=_digest(observation),
        global_sum_expected=expected.global_sum,
        seconds=observation.seconds,
        emulated=observation.emulated_devices > 0,
    )
    if not isinstance(answer, Answer):
        answer = _known_cause(observation, expected) or answer
        error = one_line(answer.summary())
        return replace(blank, error=error, cause=answer, log_tail=log_tail(observation))
    problems = [*_problems(answer, observation, expected), disagreement]
    problems = [problem for problem in problems if problem]
    if not problems and observation.status != 0:
        problems = [f"the program ended with status {observation.status}"]
    error = "; ".join(problems)
    return replace(
        blank,
        version=answer.version,
        platform=one_line(answer.platform),
        device_kind=one_line(answer.device_kind),
        devices=answer.devices,
        global_devices=answer.global_devices,
        processes=answer.processes,
        matmul=_shown_digest(answer, _digest(observation)),
        global_sum=answer.global_sum if math.isfinite(answer.global_sum) else None,
        error=error,
        log_tail=log_tail(observation) if error else (),
    )


def _known_cause(observation: Observation, expected: Expectation) -> SmokeFailed | None:
    """Return the known reason why a program without an answer found no chip, or None."""
    if observation.error or observation.timed_out:
        return None
    output = sanitize(observation.stderr + observation.stdout)
    known = first_known(output, "chips", expected.accelerator.runtime_version)
    return SmokeFailed(known.phrase, fix=known.fix) if known else None


def _problems(answer: Answer, observation: Observation, expected: Expectation) -> Iterable[str]:
    emulated = observation.emulated_devices > 0
    platform = "cpu" if emulated else "tpu"
    kinds = expected.accelerator.facts.device_kinds
    if answer.framework != expected.recipe.name:
        yield f"it computed with {one_line(answer.framework)}, not {expected.recipe.name}"
    if (answer.emulated > 0) != emulated:
        yield "it does not know whether it is emulated"
    if answer.platform != platform:
        yield f"it computed on platform {one_line(answer.platform)}, not {platform}"
    named = expected.recipe.smoke.names_device_kind and not emulated
    if named and answer.device_kind not in kinds:
        yield f"its devices are {one_line(answer.device_kind)}, not {' or '.join(kinds)}"
    if answer.devices != expected.devices_per_worker:
        yield f"{answer.devices} of {expected.devices_per_worker} devices"
    whole = expected.accelerator.devices
    if answer.global_devices != whole:
        yield f"{answer.global_devices} of {whole} devices in the whole slice"
    if answer.processes != expected.workers:
        yield f"{answer.processes} of {expected.workers} workers joined"
    yield from _number_problems(answer, _digest(observation))
    yield from _exchange_problems(answer, expected)
    offered = {n: size for n, size in enumerate(answer.memory_bytes) if size is not None}
    small = {n: size for n, size in offered.items() if size < expected.memory_bytes}
    if small and not emulated:
        least = min(small.values()) / 2**30
        yield f"{_devices([*small])} offer only {least:.1f} GiB of HBM"
    for level, part in ((2, answer.bench), (3, answer.soak)):
        if expected.level >= level and not part:
            yield f"it measured nothing of level {level}"
        elif part and not part.is_of(answer.devices):
            yield f"it measured only a part of level {level}"


def _number_problems(answer: Answer, digest: str) -> Iterable[str]:
    if len(answer.digests) != answer.devices:
        yield f"{len(answer.digests)} of {answer.devices} devices multiplied"
    wrong = [n for n, two in enumerate(answer.digests) if len(two) < 2 or {*two} != {digest}]
    unsteady = [n for n in wrong if len({*answer.digests[n]}) > 1]
    if wrong:
        yield f"{_devices(wrong)} multiplied wrong: not the bits {digest}"
    if unsteady:
        yield f"{_devices(unsteady)} found two results for one product"


def _exchange_problems(answer: Answer, expected: Expectation) -> Iterable[str]:
    """Yield the problems in the sum over all devices and in the ring through them."""
    if answer.global_sum != expected.global_sum:
        yield f"the sum over all devices is {answer.global_sum:.1f}, not {expected.global_sum:.1f}"
    own = {index: number for number, index in enumerate(answer.indices)}
    absent = [own[index] for index in answer.missing if index in own]
    others = [index for index in answer.missing if index not in own]
    if absent:
        yield f"the sum lacks {_devices(absent)}"
    if others:
        yield f"the sum lacks {_devices(others)} of the whole slice"
    if not expected.recipe.smoke.has_ring:
        return
    if len({*answer.indices}) < len(answer.indices):
        yield "two of its devices are one"
    elif not len(answer.indices) == len(answer.ring) == answer.devices:
        yield f"{len(answer.ring)} of {answer.devices} devices got their neighbour's number"
    before = [(index - 1) % (answer.global_devices or 1) + 1 for index in answer.indices]
    pairs = enumerate(zip(answer.ring, before, strict=False))
    wrong = [number for number, (received, right) in pairs if received != right]
    if wrong:
        yield f"{_devices(wrong)} got another number than their neighbour's"


def _devices(numbers: Sequence[int]) -> str:
    """Return `device 3` or `devices 0, 3`, with the numbers of the worker's framework."""
    shown = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"device {shown}" if len(numbers) == 1 else f"devices {shown}{more}"


def _digest(observation: Observation) -> str:
    return STAND_IN_DIGEST if observation.emulated_devices else DIGEST


def _disagreement(observations: Sequence[Observation], answers: dict[int, Answer]) -> str:
    """Return a contradiction between the workers, or ""."""
    emulated = {seen.emulated_devices > 0 for seen in observations if not seen.error}
    if len(emulated) > 1:
        return "emulated workers and TPU VMs in one slice"
    versions = sorted({answer.version for answer in answers.values()})
    if len(versions) > 1:
        return f"the workers run different versions: {', '.join(versions)}"
    if len({answer.process for answer in answers.values()}) < len(answers):
        return "two workers have the same process number"
    indices = [index for answer in answers.values() for index in answer.indices]
    if len(indices) > len({*indices}):
        return "two workers have the same device"
    return ""


def _with_consequences(
    reports: Sequence[WorkerSmokeReport], observations: Sequence[Observation]
) -> Iterable[WorkerSmokeReport]:
    """Yield the reports; if a worker only waited for a failed one, its error says so."""
    waiting = {seen.worker for seen in observations if seen.waiting or seen.timed_out}
    causes = [report.worker for report in reports if report.error and report.worker not in waiting]
    named = ", ".join(f"worker {index}" for index in causes)
    for report in reports:
        consequence = causes and report.error and report.worker in waiting
        waited = replace(report, error=f"waited for {named}", cause=None, log_tail=())
        yield waited if consequence else report


def _stand_in(
    observations: Sequence[Observation], answers: dict[int, Answer], expected: Expectation
) -> str:
    announced = sum(observation.emulated_devices for observation in observations)
    if not announced:
        return ""
    count = max((answer.global_devices for answer in answers.values()), default=announced)
    accelerator = expected.accelerator
    devices = counted(accelerator.devices, f"TPU {accelerator.facts.device_unit}")
    return f"{counted(count, 'CPU device')} standing in for {devices}"


def _notes(expected: Expectation) -> tuple[str, ...]:
    predicted = expected.accelerator.workers
    if predicted == expected.workers:
        return ()
    name, actual = expected.accelerator.name, expected.workers
    return (f"{name} should have {counted(predicted, 'worker')}, the slice has {actual}",)


def _unknown_memory(answers: dict[int, Answer]) -> Iterable[str]:
    """Yield a note for each worker with TPU devices of unknown memory size."""
    for worker, answer in answers.items():
        unknown = [n for n, size in enumerate(answer.memory_bytes) if size is None]
        if unknown and answer.platform == "tpu":
            yield f"worker {worker}: the HBM of {_devices(unknown)} is unknown"


def _shown_digest(answer: Answer, right: str) -> str:
    """Return the first wrong digest, or the right one."""
    digests = [digest for device in answer.digests for digest in device]
    wrong = (digest for digest in digests if digest != right)
    return one_line(next(wrong, right if digests else ""))

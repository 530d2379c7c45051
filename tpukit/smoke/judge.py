"""Read the workers' answers without trusting them, and judge: the right devices, all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tpukit.accelerators import AcceleratorType
from tpukit.errors import DeadlinePassed, SmokeFailed, TpukitError
from tpukit.provision.recipes import Recipe
from tpukit.smoke.chip_failures import chip_failure
from tpukit.smoke.measurements import Bench, Soak, WorkerFigures, measurements
from tpukit.smoke.smoke_report import Measurement, SmokeReport, WorkerSmokeReport
from tpukit.text import counted, one_line, sanitize

_MARK = b"TPUKIT-SMOKE "
#: How Python's faulthandler begins the traceback of a program that it ends for taking too long.
_TIMEOUT = "Timeout ("
_TAIL_LINES, _LINE_LENGTH = 15, 400
#: libtpu writes these many times if its log files are another user's. They are harmless: public
#: logs of v4 and v5e slices have them (docs/reference/real-workers.md).
_HARMLESS = ("Could not open the log file '/tmp/tpu_logs/", "Could not open any log file.")
#: The digests of smoke_program.py's product: on CPU devices in place of a TPU's, and on a TPU's.
STAND_IN_DIGEST, DIGEST = "80b3dcac85e01f81", "0b9393b4a276946f"
#: Of a device's memory, what its framework has to offer: 0.96 and 0.99 were seen on healthy v4
#: chips (jax-ml/jax issue 1491, pytorch/xla pull request 7086).
MEMORY_SHARE = 0.9
#: Devices that an error names.
_NAMED = 8


Word = Annotated[str, Field(max_length=100)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=16384)]


class Answer(BaseModel):
    """The JSON document that smoke_program.py prints, which says what each of it is."""

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
    numbers_hold: bool
    seconds: float

    @property
    def version(self) -> str:
        """The framework's own version; its package may have another name, and is the first then."""
        first = next(iter(self.versions.values()), "")
        return one_line(self.versions.get(self.framework, first))


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
    told = [
        line for line in lines if line.strip() and not line.startswith((_MARK.decode(), *_HARMLESS))
    ]
    return [line[:_LINE_LENGTH] for line in told]


@dataclass(frozen=True)
class Expectation:
    """What the smoke test of a slice has to show. Workers are counted, devices come by type."""

    accelerator: AcceleratorType
    recipe: Recipe
    workers: int
    level: int = 1

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

    @property
    def memory_bytes(self) -> float:
        """Bytes of HBM that a device has to offer."""
        facts = self.accelerator.facts
        return MEMORY_SHARE * facts.hbm_gib_per_chip * 2**30 / facts.devices_per_chip


def judge(observations: Sequence[Observation], expected: Expectation) -> SmokeReport:
    """Return the report on a slice from what was seen of each worker."""
    results = {each.worker: read_answer(each) for each in observations}
    answers = {worker: each for worker, each in results.items() if isinstance(each, Answer)}
    disagreement = _disagreement(observations, answers)
    reports = [_report(each, results[each.worker], expected, disagreement) for each in observations]
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
    found = measurements(parts, expected.accelerator, bool(stand_in))
    return SmokeReport(
        expected.framework,
        tuple(_with_consequences(reports, observations)),
        stand_in,
        (
            *_notes(expected),
            *_unknown_memory(answers),
            *map(_low, (each for each in found if each.verdict == "warn")),
        ),
        expected.level,
        found,
    )


def _low(found: Measurement) -> str:
    """Return a measurement that is low in words: `worker 0 device 3: matmul 61.5 TFLOP/s, …`."""
    share = f", {found.share:.0%} of {found.peak:.4g}" if found.share is not None else ""
    note = f", {found.note}" if found.note else ""
    return f"{found.place}: {found.what} {found.value:.4g} {found.unit}{share}{note}"


def failures(report: SmokeReport) -> tuple[str, ...]:
    """Return the measurements that fail, in words."""
    return tuple(map(_low, report.failed_measurements))


def _report(
    observation: Observation, answer: Answer | TpukitError, expected: Expectation, disagreement: str
) -> WorkerSmokeReport:
    blank = WorkerSmokeReport(
        worker=observation.worker,
        framework=expected.framework,
        devices_expected=expected.devices_per_worker,
        global_devices_expected=expected.devices,
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
    problems = [each for each in problems if each] or [*_own_doubts(answer, observation)]
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
    """Return why a program that ended without an answer found no chip, if its output tells."""
    if observation.error or observation.timed_out:
        return None
    output = sanitize(observation.stderr + observation.stdout)
    return chip_failure(output, expected.accelerator.runtime_version)


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


def _own_doubts(answer: Answer, observation: Observation) -> Iterable[str]:
    """Yield what follows from any problem, for where no other is seen."""
    if not answer.numbers_hold:
        yield "the program itself finds its numbers wrong"
    if observation.status != 0:
        yield f"the program ended with status {observation.status}"


def _number_problems(answer: Answer, digest: str) -> Iterable[str]:
    if len(answer.digests) != answer.devices:
        yield f"{len(answer.digests)} of {answer.devices} devices multiplied"
    wrong = [n for n, each in enumerate(answer.digests) if len(each) < 2 or {*each} != {digest}]
    unsteady = [n for n in wrong if len({*answer.digests[n]}) > 1]
    if wrong:
        yield f"{_devices(wrong)} multiplied wrong: not the bits {digest}"
    if unsteady:
        yield f"{_devices(unsteady)} found two results for one product"


def _exchange_problems(answer: Answer, expected: Expectation) -> Iterable[str]:
    """Yield what is wrong with the sum over all devices, and with the ring through them."""
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
    wrong = [number for number, (found, right) in pairs if found != right]
    if wrong:
        yield f"{_devices(wrong)} got another number than their neighbour's"


def _devices(numbers: Sequence[int]) -> str:
    """Return `device 3`, or `devices 0, 3`: as the worker's own framework numbers them."""
    shown = ", ".join(map(str, numbers[:_NAMED]))
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return f"device {shown}" if len(numbers) == 1 else f"devices {shown}{more}"


def _digest(observation: Observation) -> str:
    return STAND_IN_DIGEST if observation.emulated_devices else DIGEST


def _disagreement(observations: Sequence[Observation], answers: dict[int, Answer]) -> str:
    """Return what the workers contradict each other in."""
    if len({each.emulated_devices > 0 for each in observations if not each.error}) > 1:
        return "emulated workers and TPU VMs in one slice"
    versions = sorted({each.version for each in answers.values()})
    if len(versions) > 1:
        return f"the workers run different versions: {', '.join(versions)}"
    if len({each.process for each in answers.values()}) < len(answers):
        return "two workers have the same process number"
    indices = [index for each in answers.values() for index in each.indices]
    if len(indices) > len({*indices}):
        return "two workers have the same device"
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
    return (
        f"{counted(seen, 'CPU device')} standing in for {counted(expected.devices, f'TPU {unit}')}"
    )


def _notes(expected: Expectation) -> tuple[str, ...]:
    predicted = expected.accelerator.workers
    if predicted == expected.workers:
        return ()
    name, found = expected.accelerator.name, expected.workers
    return (f"{name} should have {counted(predicted, 'worker')}, the slice has {found}",)


def _unknown_memory(answers: dict[int, Answer]) -> Iterable[str]:
    """Yield which TPU devices do not say how much memory they offer."""
    for worker, answer in answers.items():
        unknown = [n for n, size in enumerate(answer.memory_bytes) if size is None]
        if unknown and answer.platform == "tpu":
            yield f"worker {worker}: how much HBM {_devices(unknown)} offer is unknown"


def _shown_digest(answer: Answer, right: str) -> str:
    """Return the first wrong digest, or the right one."""
    found = [each for device in answer.digests for each in device]
    return one_line(next((each for each in found if each != right), right if found else ""))

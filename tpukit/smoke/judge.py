"""Judge what the workers of a slice said: the right devices, all of them, the right numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tpukit.accelerators import AcceleratorType
from tpukit.models import SmokeReport, WorkerSmokeReport
from tpukit.smoke.answer import Answer, Observation, log_tail, read_answer
from tpukit.text import one_line

#: The sum of a 256 x 256 product of ones, exact in bfloat16 and float32.
MATMUL = 256.0**3
#: PyTorch/XLA has no public name for the kind of a TPU; jax.Device.device_kind is one.
_TELL_THE_KIND = frozenset({"jax"})


@dataclass(frozen=True)
class Expectation:
    """What the smoke test of a slice has to show. Workers are counted, devices come by type."""

    accelerator: AcceleratorType
    framework: str
    workers: int

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
    answers = {each.worker: read_answer(each) for each in observations if not each.fault}
    heard = {worker: each for worker, each in answers.items() if isinstance(each, Answer)}
    disagreement = _disagreement(observations, heard)
    reports = [_report(each, answers, expected, disagreement) for each in observations]
    return SmokeReport(
        expected.framework,
        tuple(_with_consequences(reports, observations)),
        _stand_in(observations, heard, expected),
        _notes(expected),
    )


def _report(
    observation: Observation,
    answers: dict[int, Answer | str],
    expected: Expectation,
    disagreement: str,
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
    answer = answers.get(observation.worker, observation.fault)
    if not isinstance(answer, Answer):
        return replace(blank, error=answer, log_tail=log_tail(observation))
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
    tells = expected.framework in _TELL_THE_KIND and not emulated
    if tells and answer.device_kind not in kinds:
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


def _disagreement(observations: Sequence[Observation], heard: dict[int, Answer]) -> str:
    """Return what the workers contradict each other in."""
    if len({each.emulated_devices > 0 for each in observations if not each.fault}) > 1:
        return "emulated workers and TPU VMs in one slice"
    versions = sorted({each.version for each in heard.values()})
    if len(versions) > 1:
        return f"the workers run different versions: {', '.join(versions)}"
    if len({each.process for each in heard.values()}) < len(heard):
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
        yield replace(report, error=f"waited for {named}", log_tail=()) if consequence else report


def _stand_in(
    observations: Sequence[Observation], heard: dict[int, Answer], expected: Expectation
) -> str:
    if not any(each.emulated_devices for each in observations):
        return ""
    announced = sum(each.emulated_devices for each in observations)
    seen = max((each.global_devices for each in heard.values()), default=announced)
    unit = expected.accelerator.device_unit
    return f"{_many(seen, 'CPU device')} standing in for {_many(expected.devices, f'TPU {unit}')}"


def _notes(expected: Expectation) -> tuple[str, ...]:
    foretold = expected.accelerator.workers
    if foretold == expected.workers:
        return ()
    name, found = expected.accelerator.name, expected.workers
    return (f"{name} should have {_many(foretold, 'worker')}, the slice has {found}",)


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shown(values: Sequence[float], right: float) -> float | None:
    """Return the first wrong value, or the right one; None for what JSON cannot carry."""
    value = next((value for value in values if value != right), right if values else math.nan)
    return value if math.isfinite(value) else None

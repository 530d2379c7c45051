"""Judges programs that ran on one chip each: is a chip, seen alone, a whole slice that computes?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tpukit.accelerators import AcceleratorType
from tpukit.agent.per_chip import mark_of
from tpukit.provision.recipes import Recipe
from tpukit.smoke.judge import Expectation, Observation, judge
from tpukit.smoke.smoke_report import SmokeReport

#: The line of tpukit/agent/per_chip.py about a process that has failed.
_FAILED = re.compile(rb"^tpukit: exited with status (\d{1,3})$", re.MULTILINE)


def judge_chips(
    observations: Sequence[Observation], accelerator: AcceleratorType, recipe: Recipe
) -> SmokeReport:
    """Return the report on each chip of each worker, from the output of its own program.

    A worker that ran nothing has one report, with its error.
    """
    alone = replace(
        accelerator,
        chips=1,
        cores=accelerator.facts.cores_per_chip,
        workers=1,
        chips_per_worker=1,
    )
    expected = Expectation(alone, recipe, workers=1)
    reports = [
        _judged(own, chip, expected)
        for observation in observations
        for chip, own in _chips(observation, accelerator)
    ]
    return SmokeReport(
        recipe.name,
        tuple(worker for report in reports for worker in report.workers),
        next((report.stand_in for report in reports if report.stand_in), ""),
        tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def _judged(observation: Observation, chip: int | None, expected: Expectation) -> SmokeReport:
    report = judge([observation], expected)
    if chip is None:
        return report
    (worker,) = report.workers
    error = f"chip {chip}: {worker.error}" if worker.error else ""
    return replace(report, workers=(replace(worker, chip=chip, error=error),))


def _chips(
    observation: Observation, accelerator: AcceleratorType
) -> Iterator[tuple[int | None, Observation]]:
    """Yield each chip of a worker with the observation of its program."""
    if observation.error:
        yield None, observation
        return
    chips = accelerator.chips_per_worker
    for chip in range(chips):
        mark = mark_of(chip)
        stdout, stderr = (
            b"".join(line for line in stream.splitlines(keepends=True) if line.startswith(mark))
            .replace(b"\n" + mark, b"\n")
            .removeprefix(mark)
            for stream in (observation.stdout, observation.stderr)
        )
        own = replace(observation, emulated_devices=observation.emulated_devices // chips)
        if stdout or stderr:  # else the agent has failed, and the streams are its own
            failed = _FAILED.search(stderr)
            status = int(failed[1]) if failed else 0
            own = replace(own, status=status, stdout=stdout, stderr=stderr)
        yield chip, own

"""Runs as tables and documents."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpukit.cli.output import place
from tpukit.cli.views.outcome_views import worst
from tpukit.console import Cell, View
from tpukit.errors import Fix
from tpukit.slices.lifetime import ago
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.command.end import EndReport
    from tpukit.remote.command.fan_out import Outcome
    from tpukit.remote.connection.worker import RemoteWorker
    from tpukit.remote.job.job_list import JobState
    from tpukit.work.runs import States


def jobs(found: States, run: str, now: float) -> View:
    """Show the runs, or one on each worker; warn of each worker that did not say.

    `now` is in seconds since the epoch.
    """
    groups: dict[tuple[str, str], list[tuple[RemoteWorker, JobState]]] = {}
    for each in found:
        for state in each.value or ():
            groups.setdefault((state.run, each.item.slice), []).append((each.item, state))
    ordered = sorted(groups.items(), key=lambda each: (_begun(each[1]), each[0]))
    shown = [each for _, group in ordered for each in group]
    asked = Counter(each.item.slice for each in found)
    failed = [each for each in found if each.error]
    document = {
        "jobs": [{**place(worker), **state.document()} for worker, state in shown],
        "unreachable": [place(each.item) for each in failed],
    }
    return View(
        document,
        ("RUN", "SLICE", *(("WORKER",) if run else ()), "STATE", "STARTED", "COMMAND"),
        [[run, each[0].slice, each[0].index, *_job([each], 0, now)] for each in shown]
        if run
        else [[*place, *_job(group, asked[place[1]], now)] for place, group in ordered],
        warnings=[
            *(each.error.summary() for each in failed if each.error),
            *(_dropped(worker, state) for worker, state in shown if state.dropped),
        ],
        status=worst(found),
    )


def started(name: str, run: str, workers: Sequence[RemoteWorker]) -> View:
    """Show the id of a detached run; what comes next is to follow it."""
    document = {"run": run, "workers": [place(each) for each in workers]}
    follow = Fix.command("tpukit", "logs", name, run, "-f")
    return View({"started": document}, rows=[[run]], next=(follow,))


def environments(found: States) -> View:
    """Show what a run was started with on each worker; its secrets are masked already."""
    known = [(each.item, state) for each in found for state in each.value or ()]
    documents = [
        {**place(worker), "command": state.command, "environment": dict(state.environment)}
        for worker, state in known
    ]
    rows = [
        [worker.slice, worker.index, name, value]
        for worker, state in known
        for name, value in [*state.environment.items(), ("COMMAND", state.command)]
    ]
    return View({"environments": documents}, ("SLICE", "WORKER", "NAME", "VALUE"), rows)


def pruned(found: States) -> View:
    """Show what was removed of ended runs, and how many bytes that freed on each worker."""
    gone = [
        {**place(each.item), "run": job.run, "state": job.state, "bytes": job.freed}
        for each in found
        for job in each.value or ()
        if job.freed is not None
    ]
    columns = ("run", "slice", "worker", "state", "bytes")
    return View(
        {"pruned": gone},
        tuple(map(str.upper, columns)),
        [[row[column] for column in columns] for row in gone],
        warnings=[each.error.summary() for each in found if each.error],
        status=worst(found),
    )


def ended(name: str, found: Sequence[Outcome[RemoteWorker, EndReport]]) -> View:
    """Show what was ended on each worker; warn if that failed, or if others hold a device."""
    from tpukit.remote.command.end import stop_runtime

    done = [(each.item, each.value) for each in found if each.value]
    failed = [(each.item, each.error) for each in found if each.error]
    spared = [
        f"{each} holds a TPU device of {worker.label}"
        for worker, report in done
        for each in report.spared
    ]
    uncertain = [
        f"on {worker.label} the processes that could be found were ended: it had no control group"
        for worker, report in done
        if not report.certain
    ]
    kinds = {holder.of_runtime for _, report in done for holder in report.spared}
    remedies = {
        True: stop_runtime(name),
        False: Fix.command("tpukit", "kill", name, "--all-holders"),
    }
    document = {
        "ended": [{**place(worker), **report.document()} for worker, report in done],
        "failed": [{**place(worker), "error": error.document()} for worker, error in failed],
    }
    return View(
        document,
        ("SLICE", "WORKER", "ENDED", "HOLDERS ENDED", "BY KILL", "SPARED", "LOCK"),
        [_ended_row(worker, report) for worker, report in done],
        next=[remedies[of_runtime] for of_runtime in sorted(kinds)],
        warnings=[*spared, *uncertain, *(error.summary() for _, error in failed)],
        status=worst(found),
    )


def _dropped(worker: RemoteWorker, state: JobState) -> str:
    dropped = f"{state.dropped} bytes of the output of run {state.run} were dropped"
    return f"{worker.label}: {dropped}: its disk was full"


def _begun(group: Sequence[tuple[RemoteWorker, JobState]]) -> float:
    return min(state.started for _, state in group)


def _job(group: Sequence[tuple[RemoteWorker, JobState]], workers: int, now: float) -> list[object]:
    """Return the cells for a run on so many workers: `3/4 exited 0, 1/4 lost`; on one: `lost`."""
    words = Counter(
        f"exited {job.status}" if job.state == "finished" else job.state for _, job in group
    )
    state = ", ".join(f"{n}/{workers} {word}" if workers else word for word, n in words.items())
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_begun(group)))
    return [state, Cell(started, ago(started, now)), one_line(group[0][1].command)[:200]]


def _ended_row(worker: RemoteWorker, report: EndReport) -> list[object]:
    counts = (report.ended, report.holders_ended, report.forced, len(report.spared))
    return [worker.slice, worker.index, *counts, "removed" if report.lock_removed else ""]

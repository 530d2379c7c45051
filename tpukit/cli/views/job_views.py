"""Runs as tables and documents."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpukit.cli.output import place
from tpukit.cli.views.outcome_views import worst
from tpukit.console import Cell, View
from tpukit.errors import Fix, TpukitError
from tpukit.slices.lifetime import ago
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.jobs.end import EndReport
    from tpukit.jobs.job_list import JobState
    from tpukit.jobs.runs import States
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.worker import RemoteWorker


def jobs(states: States, run: str, now: float) -> View:
    """Show all runs, or one run by worker; warn of workers that did not answer.

    `now` is in seconds since the epoch.
    """
    groups: dict[tuple[str, str], list[tuple[RemoteWorker, JobState]]] = {}
    for outcome in states:
        for state in outcome.value or ():
            groups.setdefault((state.run, outcome.item.slice), []).append((outcome.item, state))
    ordered = sorted(groups.items(), key=lambda item: (_begun(item[1]), item[0]))
    shown = [entry for _, group in ordered for entry in group]
    asked = Counter(outcome.item.slice for outcome in states)
    failed = [outcome for outcome in states if outcome.error]
    document = {
        "jobs": [{**place(worker), **state.document()} for worker, state in shown],
        "unreachable": [place(outcome.item) for outcome in failed],
    }
    return View(
        document,
        ("RUN", "SLICE", *(("WORKER",) if run else ()), "STATE", "STARTED", "COMMAND"),
        [[run, entry[0].slice, entry[0].index, *_job([entry], 0, now)] for entry in shown]
        if run
        else [[*place, *_job(group, asked[place[1]], now)] for place, group in ordered],
        warnings=[
            *(outcome.error.summary() for outcome in failed if outcome.error),
            *(_dropped(worker, state) for worker, state in shown if state.dropped),
        ],
        status=worst(states),
    )


def beside_failed(view: View, failed: Mapping[str, TpukitError]) -> View:
    """Add the slices that could not be asked: a warning, a fix and an exit status for each."""
    errors = failed.values()
    return replace(
        view,
        document={
            **view.document,
            "failed": [{"slice": name, "error": failed[name].document()} for name in failed],
        },
        warnings=[*view.warnings, *(error.summary() for error in errors)],
        next=[*view.next, *(error.fix for error in errors if error.fix)],
        status=max([view.status, *(error.exit_code for error in errors)]),
    )


def started(name: str, run: str, workers: Sequence[RemoteWorker]) -> View:
    """Show the id of a detached run, and suggest the command that follows its log."""
    document = {"run": run, "workers": [place(worker) for worker in workers]}
    follow = Fix.command("tpukit", "logs", name, run, "-f")
    return View({"started": document}, rows=[[run]], next=(follow,))


def environments(states: States) -> View:
    """Show a run's command and variables on each worker; secrets are already masked."""
    known = [(outcome.item, state) for outcome in states for state in outcome.value or ()]
    documents = [
        {
            **place(worker),
            "command": state.command,
            "commit": state.commit,
            "environment": dict(state.environment),
        }
        for worker, state in known
    ]
    rows = [
        [worker.slice, worker.index, name, value]
        for worker, state in known
        for name, value in [
            *state.environment.items(),
            *([("COMMIT", state.commit)] if state.commit else []),
            ("COMMAND", state.command),
        ]
    ]
    return View({"environments": documents}, ("SLICE", "WORKER", "NAME", "VALUE"), rows)


def pruned(states: States) -> View:
    """Show the ended runs whose files were removed, and the freed bytes on each worker."""
    gone = [
        {**place(outcome.item), "run": job.run, "state": job.state, "bytes": job.freed}
        for outcome in states
        for job in outcome.value or ()
        if job.freed is not None
    ]
    columns = ("run", "slice", "worker", "state", "bytes")
    return View(
        {"pruned": gone},
        tuple(map(str.upper, columns)),
        [[row[column] for column in columns] for row in gone],
        warnings=[outcome.error.summary() for outcome in states if outcome.error],
        status=worst(states),
    )


def ended(name: str, outcomes: Sequence[Outcome[RemoteWorker, EndReport]]) -> View:
    """Show the number of ended processes on each worker; warn of failures and device holders."""
    from tpukit.jobs.end import stop_runtime

    done = [(outcome.item, outcome.value) for outcome in outcomes if outcome.value]
    failed = [(outcome.item, outcome.error) for outcome in outcomes if outcome.error]
    spared = [
        f"{holder} holds a TPU device of {worker.label}"
        for worker, report in done
        for holder in report.spared
    ]
    uncertain = [
        f"some processes on {worker.label} may still run: the run had no control group"
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
        status=worst(outcomes),
    )


def _dropped(worker: RemoteWorker, state: JobState) -> str:
    dropped = f"{state.dropped} bytes of the output of run {state.run} were dropped"
    return f"{worker.label}: {dropped}: its disk was full"


def _begun(group: Sequence[tuple[RemoteWorker, JobState]]) -> float:
    return min(state.started for _, state in group)


def _job(group: Sequence[tuple[RemoteWorker, JobState]], workers: int, now: float) -> list[object]:
    """Return a run's cells: a state such as `3/4 exited 0, 1/4 lost`, its start and its command.

    If `workers` is 0, the group is one worker, and the state is just `lost`.
    """
    words = Counter(
        f"exited {job.status}" if job.state == "finished" else job.state for _, job in group
    )
    state = ", ".join(f"{n}/{workers} {word}" if workers else word for word, n in words.items())
    started = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(_begun(group)))
    return [state, Cell(started, ago(started, now)), one_line(group[0][1].command)[:200]]


def _ended_row(worker: RemoteWorker, report: EndReport) -> list[object]:
    counts = (report.ended, report.holders_ended, report.forced, len(report.spared))
    return [worker.slice, worker.index, *counts, "removed" if report.lock_removed else ""]

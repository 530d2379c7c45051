"""Plans, results, undos and states of provisioning, as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpukit.console import View
from tpukit.errors import Fix, ProvisionFailed

if TYPE_CHECKING:
    from tpukit.provision.provision_report import ProvisionReport, WorkerUndoReport
    from tpukit.provision.provisioning import WorkerPlan, WorkerStatus


def provision_plan(plans: Sequence[WorkerPlan], name: str, words: Sequence[str]) -> View:
    """Show the planned changes, one step in a row; the exit status is 10 if one is refused."""
    rows = [
        [plan.slice, plan.worker, step.name, step.outcome, step.detail]
        for plan in plans
        for step in plan.steps
    ]
    changes = sum(plan.changes for plan in plans)
    document = {"plan": {"changes": changes, "workers": [plan.document() for plan in plans]}}
    status = ProvisionFailed.exit_code if any(plan.refused for plan in plans) else 0
    apply = Fix.command("tpukit", "provision", "apply", name, *words)
    next = (apply,) if changes and not status else ()
    columns = ("WORKER", "STEP", "OUTCOME", "DETAIL")
    return View(document, *_table(columns, rows), next, status=status)


def undone(reports: Sequence[WorkerUndoReport]) -> View:
    """Show the undone steps, one in a row."""
    rows = [
        [report.slice, report.worker, step, "undone"]
        for report in reports
        for step in report.undone
    ]
    rows = rows or [[report.slice, report.worker, "", "unchanged"] for report in reports]
    document = {"undo": {"workers": [report.document() for report in reports]}}
    return View(document, *_table(("WORKER", "STEP", "OUTCOME"), rows))


def provision_status(workers: Sequence[WorkerStatus]) -> View:
    """Show the provisioned state of each worker, one step or environment in a row."""
    rows: list[list[object]] = []
    for worker in workers:
        place = worker.slice, worker.worker
        for ledger in worker.ledgers:
            holds = "; ".join(worker.needed.get(ledger.step, [])) or "holds"
            rows.append([*place, ledger.step, ledger.by, ledger.at, holds])
        for environment in worker.environments:
            verified = "verified" if environment.verified else "not verified"
            state = f"Python {environment.version}, {verified}"
            rows.append([*place, environment.name, "", "", state])
    document = {"status": {"workers": [worker.document() for worker in workers]}}
    return View(document, *_table(("WORKER", "STEP", "BY", "SINCE", "STATE"), rows))


def provision(report: ProvisionReport) -> View:
    """Show the changes on each worker, one step in a row; the document has all steps."""
    rows: list[list[object]] = []
    for worker in report.workers:
        changed = [step for step in worker.steps if step.outcome != "unchanged"]
        seconds = sum(step.seconds for step in worker.steps)
        place = worker.slice, worker.worker
        same = [*place, "", "unchanged", f"{seconds:.1f} s", worker.python]
        rows += [
            [*place, step.name, step.outcome, f"{step.seconds:.1f} s", step.detail]
            for step in changed
        ] or [same]
    columns = ("WORKER", "STEP", "OUTCOME", "TIME", "DETAIL")
    return View({"provision": report.document()}, *_table(columns, rows))


def _table(
    columns: tuple[str, ...], rows: list[list[object]]
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Return columns and rows; the first cell, a slice's name, only if there are several slices."""
    if len({row[0] for row in rows}) > 1:
        return ("SLICE", *columns), rows
    return columns, [row[1:] for row in rows]

"""What provisioning would do, has taken back, and has brought, as tables and documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpukit.console import View
from tpukit.errors import Fix, ProvisionFailed

if TYPE_CHECKING:
    from tpukit.provision.provision_report import ProvisionReport, WorkerUndoReport
    from tpukit.provision.provisioning import WorkerPlan, WorkerStatus


def provision_plan(plans: Sequence[WorkerPlan], name: str, words: Sequence[str]) -> View:
    """Show what would change, a step a row; the exit status is 10 where something cannot be."""
    rows = [
        [each.slice, each.worker, step.name, step.outcome, step.detail]
        for each in plans
        for step in each.steps
    ]
    changes = sum(each.changes for each in plans)
    document = {"plan": {"changes": changes, "workers": [each.document() for each in plans]}}
    status = ProvisionFailed.exit_code if any(each.refused for each in plans) else 0
    apply = Fix.command("tpukit", "provision", "apply", name, *words)
    next = (apply,) if changes and not status else ()
    columns = ("WORKER", "STEP", "OUTCOME", "DETAIL")
    return View(document, *_table(columns, rows), next, status=status)


def undone(reports: Sequence[WorkerUndoReport]) -> View:
    """Show what was taken back, a step a row."""
    rows = [[each.slice, each.worker, step, "undone"] for each in reports for step in each.undone]
    rows = rows or [[each.slice, each.worker, "", "unchanged"] for each in reports]
    document = {"undo": {"workers": [each.document() for each in reports]}}
    return View(document, *_table(("WORKER", "STEP", "OUTCOME"), rows))


def provision_status(found: Sequence[WorkerStatus]) -> View:
    """Show what was brought to each worker, a step or an environment a row."""
    rows: list[list[object]] = []
    for worker in found:
        place = worker.slice, worker.worker
        for ledger in worker.ledgers:
            holds = "; ".join(worker.needed.get(ledger.step, [])) or "holds"
            rows.append([*place, ledger.step, ledger.by, ledger.at, holds])
        for each in worker.environments:
            verified = "verified" if each.verified else "not verified"
            rows.append([*place, each.name, "", "", f"Python {each.version}, {verified}"])
    document = {"status": {"workers": [each.document() for each in found]}}
    return View(document, *_table(("WORKER", "STEP", "BY", "SINCE", "STATE"), rows))


def provision(report: ProvisionReport) -> View:
    """Show what changed on each worker, a step a row; the document has every step."""
    rows: list[list[object]] = []
    for worker in report.workers:
        told = [step for step in worker.steps if step.outcome != "unchanged"]
        seconds = sum(step.seconds for step in worker.steps)
        place = worker.slice, worker.worker
        same = [*place, "", "unchanged", f"{seconds:.1f} s", worker.python]
        rows += [
            [*place, step.name, step.outcome, f"{step.seconds:.1f} s", step.detail] for step in told
        ] or [same]
    columns = ("WORKER", "STEP", "OUTCOME", "TIME", "DETAIL")
    return View({"provision": report.document()}, *_table(columns, rows))


def _table(
    columns: tuple[str, ...], rows: list[list[object]]
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Return columns and rows, which begin with a slice's name: it is shown where several are."""
    if len({row[0] for row in rows}) > 1:
        return ("SLICE", *columns), rows
    return columns, [row[1:] for row in rows]

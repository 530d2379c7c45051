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
        [each.worker, step.name, step.outcome, step.detail] for each in plans for step in each.steps
    ]
    changes = sum(each.changes for each in plans)
    document = {"plan": {"changes": changes, "workers": [each.document() for each in plans]}}
    status = ProvisionFailed.exit_code if any(each.refused for each in plans) else 0
    apply = Fix.command("tpukit", "provision", "apply", name, *words)
    next = (apply,) if changes and not status else ()
    return View(document, ("WORKER", "STEP", "OUTCOME", "DETAIL"), rows, next, status=status)


def undone(reports: Sequence[WorkerUndoReport]) -> View:
    """Show what was taken back, a step a row."""
    rows = [[each.worker, step, "undone"] for each in reports for step in each.undone]
    rows = rows or [[each.worker, "", "unchanged"] for each in reports]
    document = {"undo": {"workers": [each.document() for each in reports]}}
    return View(document, ("WORKER", "STEP", "OUTCOME"), rows)


def provision_status(found: Sequence[WorkerStatus]) -> View:
    """Show what was brought to each worker, a step or an environment a row."""
    rows: list[list[object]] = []
    for worker in found:
        for ledger in worker.ledgers:
            holds = "; ".join(worker.needed.get(ledger.step, [])) or "holds"
            rows.append([worker.worker, ledger.step, ledger.by, ledger.at, holds])
        for each in worker.environments:
            verified = "verified" if each.verified else "not verified"
            rows.append([worker.worker, each.name, "", "", f"Python {each.version}, {verified}"])
    document = {"status": {"workers": [each.document() for each in found]}}
    return View(document, ("WORKER", "STEP", "BY", "SINCE", "STATE"), rows)


def provision(report: ProvisionReport) -> View:
    """Show what changed on each worker, a step a row; the document has every step."""
    rows: list[list[object]] = []
    for worker in report.workers:
        told = [step for step in worker.steps if step.outcome != "unchanged"]
        seconds = sum(step.seconds for step in worker.steps)
        same = [worker.worker, "", "unchanged", f"{seconds:.1f} s", worker.python]
        rows += [
            [worker.worker, step.name, step.outcome, f"{step.seconds:.1f} s", step.detail]
            for step in told
        ] or [same]
    columns = ("WORKER", "STEP", "OUTCOME", "TIME", "DETAIL")
    return View({"provision": report.document()}, columns, rows)

"""The results of the commands as tables and documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpukit.console import View
from tpukit.models import (
    FirewallRule,
    ProvisionReport,
    Slice,
    SliceList,
    SmokeReport,
    WorkerSmokeReport,
)

if TYPE_CHECKING:
    from tpukit.accelerators import AcceleratorType
    from tpukit.bootstrap import UpReport

_SMOKE_COLUMNS = ("WORKER", "DEVICES", "PLATFORM", "FRAMEWORK", "ALL DEVICES", "RESULT", "NOTE")


def slices(listed: SliceList) -> View:
    """Show slices, one a row."""
    document = {
        "slices": [each.document() for each in listed.slices],
        "unreachable": list(listed.unreachable),
    }
    columns = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "CAPACITY", "OWNER", "CREATED")
    rows = [_slice_row(each) for each in listed.slices]
    silent = [f"{each} did not answer: the list may be incomplete" for each in listed.unreachable]
    return View(document, columns, rows, warnings=silent)


def one_slice(found: Slice, *, extra: dict[str, Any] | None = None, hint: str = "") -> View:
    """Show one slice: its name alone where the caller is a script, its whole document as JSON."""
    return View({"slice": found.document(), **(extra or {})}, rows=[[found.name]], hint=hint)


def described(found: Slice) -> View:
    """Show everything about one slice, a field a row."""
    fields = {
        "name": found.name,
        "zone": found.zone,
        "project": found.project,
        "accelerator type": found.accelerator_type,
        "topology": found.topology,
        "runtime version": found.runtime_version,
        "state": found.state,
        "health": " ".join(filter(None, (found.health, found.health_description))),
        "capacity": found.provisioning,
        "network": found.network,
        "tags": ", ".join(found.tags),
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(found.labels.items())),
        "created": found.created,
        **{
            f"worker {worker.index}": " ".join(
                filter(None, (worker.external_address, worker.internal_address))
            )
            for worker in found.workers
        },
    }
    return View(
        {"slice": found.document()}, ("FIELD", "VALUE"), [list(item) for item in fields.items()]
    )


def up(report: UpReport, bills: bool) -> View:
    """Show the smoke test of a slice that is up, a worker a row."""
    name, costs = report.slice.name, "bills" if bills else "stays"
    hint = f"tpukit ssh {name}   (it {costs} until tpukit delete {name})"
    return replace(smoke(report.smoke), document=report.document(), hint=hint)


def smoke(report: SmokeReport) -> View:
    """Show a smoke test, a worker a row; what contradicts our table is warned of."""
    rows = [_smoke_row(worker, report.stand_in) for worker in report.workers]
    return View({"smoke": report.document()}, _SMOKE_COLUMNS, rows, warnings=report.notes)


def provision(report: ProvisionReport) -> View:
    rows = [
        [str(worker.worker), step.name, step.outcome, f"{step.seconds:.1f} s", step.detail]
        for worker in report.workers
        for step in worker.steps
    ]
    columns = ("WORKER", "STEP", "OUTCOME", "TIME", "DETAIL")
    return View({"provision": report.document()}, columns, rows)


def rules(found: Sequence[FirewallRule]) -> View:
    rows = [
        [
            rule.name,
            rule.network,
            ",".join(rule.allowed),
            ",".join(rule.source_ranges),
            ",".join(rule.target_tags) or "(every worker)",
        ]
        for rule in found
    ]
    columns = ("NAME", "NETWORK", "ALLOWS", "FROM", "TAGS")
    return View({"rules": [rule.document() for rule in found]}, columns, rows)


def rules_and_left_over(found: Sequence[FirewallRule], left: Sequence[FirewallRule]) -> View:
    """Show rules, and warn of those whose slice is gone."""
    shown, names = rules(found), [rule.name for rule in left]
    warnings = [f"the slice of {name} is gone: tpukit firewall remove {name}" for name in names]
    return replace(shown, document={**shown.document, "left_over": names}, warnings=tuple(warnings))


def types(found: Iterable[AcceleratorType]) -> View:
    listed = list(found)
    rows = [
        [
            each.name,
            str(each.chips),
            str(each.cores),
            str(each.workers),
            str(each.devices),
            each.topology,
            each.runtime_version,
            " ".join(each.zones),
        ]
        for each in listed
    ]
    columns = ("TYPE", "CHIPS", "CORES", "WORKERS", "DEVICES", "TOPOLOGY", "RUNTIME", "ZONES")
    return View({"types": [_type_document(each) for each in listed]}, columns, rows)


def _type_document(each: AcceleratorType) -> dict[str, Any]:
    return {
        "name": each.name,
        "generation": each.generation,
        "chips": each.chips,
        "cores": each.cores,
        "workers": each.workers,
        "devices": each.devices,
        "topology": each.topology,
        "runtime_version": each.runtime_version,
        "zones": list(each.zones),
    }


def _slice_row(found: Slice) -> list[str]:
    return [
        found.name,
        found.zone,
        found.accelerator_type,
        found.state,
        found.health,
        str(len(found.workers)),
        found.provisioning,
        found.labels.get("tpukit-owner", ""),
        found.created[:19],
    ]


def _smoke_row(worker: WorkerSmokeReport, stand_in: str) -> list[str]:
    return [
        str(worker.worker),
        f"{worker.devices} of {worker.devices_expected} devices",
        worker.platform,
        f"{worker.framework} {worker.version}",
        f"{worker.global_devices} of {worker.global_devices_expected}",
        "passed" if worker.ok else worker.error,
        stand_in,
    ]

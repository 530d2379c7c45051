"""`tpukit doctor`: checks of the account, the project, this machine and a slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

from typer import Argument

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.doctor.findings import Finding, checked, failed
from tpukit.doctor.project_checks import ProjectChecks
from tpukit.errors import Fix
from tpukit.models import Slice
from tpukit.settings.resolution import Settings
from tpukit.text import counted

Name = Annotated[str, Argument(metavar="[NAME]", help="Also check this slice and its workers.")]


def doctor(
    toolkit: Toolkit,
    name: Name = "",
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Check the account, the project and this machine, and with NAME a slice.

    Each finding is ok, a warning or a failure, with a fix. The checks change nothing. The exit
    status is 1 if one has failed.

    Examples:
      tpukit doctor
      tpukit doctor demo --json
    """
    toolkit = toolkit.by(route)
    findings = project_findings(toolkit)
    if name:
        patience = flag.seconds(timeout)

        def look() -> list[Finding]:
            found = toolkit.slices.find(name, toolkit.deadline(patience))
            return slice_findings(toolkit, found, patience)

        findings += checked(f"slice {name}", look)
    return shown(findings, toolkit.console.complete)


def project_findings(toolkit: Toolkit) -> list[Finding]:
    """Return the findings on the settings, the account, the project and this machine."""
    readable = checked("settings", lambda: [_settings(toolkit.settings)])
    if failed(readable):
        return readable
    cloud = toolkit.cloud
    checks = ProjectChecks(
        toolkit.settings,
        toolkit.environ,
        toolkit.clock,
        account=lambda: cloud.identity.account,
        provider=lambda: cloud.provider,
        firewall=lambda: cloud.firewall,
        key=lambda: toolkit.reach.existing_key,
    )
    return [*readable, *checks.findings()]


def _settings(settings: Settings) -> Finding:
    number = sum(bool(setting.value) for setting in settings.explain())
    return Finding("settings", "ok", f"{counted(number, 'setting')} can be read")


def slice_findings(toolkit: Toolkit, slice_: Slice, patience: float) -> list[Finding]:
    """Return the findings on a slice and its workers; each may take `patience` seconds."""
    from tpukit.doctor.slice_checks import state_findings, worker_findings

    findings = list(state_findings(slice_))
    if slice_.state == "READY":
        workers = toolkit.reach.workers(slice_, "all", patience)
        findings += worker_findings(workers, slice_, toolkit.clock, patience)
    return findings


def shown(findings: Sequence[Finding], complete: Callable[[Fix], Fix]) -> View:
    """Show findings, and their fixes as the next commands; the status is 1 if a check failed.

    `complete` adds the flags to the fixes in the document.
    """
    rows = [(finding.check, finding.outcome, finding.said) for finding in findings]
    documents = [
        replace(finding, fix=complete(finding.fix)).document()
        if finding.fix
        else finding.document()
        for finding in findings
    ]
    return View(
        {"findings": documents},
        ("CHECK", "RESULT", "FINDING"),
        rows,
        next=[finding.fix for finding in findings if finding.fix],
        status=int(failed(findings)),
    )

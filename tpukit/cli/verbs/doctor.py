"""`tpukit doctor`: checks of the account, the project, this machine and a slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpukit.accelerators import AcceleratorType, is_listed, spelled
from tpukit.access.ssh_config import SshConfig
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.doctor.findings import Finding, checked, failed, repair
from tpukit.doctor.project_checks import ProjectChecks
from tpukit.doctor.quota_checks import type_findings
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.models import Slice
from tpukit.settings.resolution import Settings
from tpukit.text import counted, one_line

Name = Annotated[str, Argument(metavar="[NAME]", help="Also check this slice and its workers.")]


@dataclass(frozen=True)
class DoctorFlags:
    """What to check besides, and what to do with the findings."""

    accelerator_type: Annotated[
        str, Option(metavar="TYPE", help="Check the quota of this type; default: of the slice.")
    ] = ""
    clean: Annotated[
        bool,
        Option(
            "--clean", help="Only check that no process holds NAME's devices and all are there."
        ),
    ] = False
    fix: Annotated[bool, Option("--fix", help="Make the safe repairs, and say each in a line.")] = (
        False
    )
    bundle: Annotated[
        str, Option(metavar="FILE", help="Write a .tar.gz for a bug report, without secrets.")
    ] = ""


@flag.connecting
def doctor(
    toolkit: Toolkit,
    name: Name = "",
    how: DoctorFlags = DoctorFlags(),
    timeout: flag.Timeout = "60s",
) -> View:
    """Check the account, the project and this machine, and with NAME a slice.

    Each finding is ok, a warning or a failure, with a fix. The checks change nothing. The exit
    status is 1 if one has failed. With --fix, tpukit restricts the mode of a private key, lets your
    address in by the slice's firewall rule, and removes OpenSSH hosts of slices that are gone.

    Examples:
      tpukit doctor
      tpukit doctor --accelerator-type v6e-8
      tpukit doctor demo --fix
      tpukit doctor demo --clean
      tpukit doctor --bundle doctor.tar.gz
    """
    if how.clean and not name:
        raise BadInput(
            "--clean needs a slice", fix=Fix(note="name one: tpukit doctor NAME --clean")
        )
    bundle = Path(how.bundle)
    if how.bundle and (bundle.exists() or not bundle.parent.is_dir()):
        wrong = "exists" if bundle.exists() else "is in no existing folder"
        raise BadInput(f"{one_line(how.bundle)} {wrong}", fix=Fix(note="name another file"))
    if how.accelerator_type:
        AcceleratorType.parse(spelled(how.accelerator_type))
    if how.bundle:
        _check_settings(toolkit, bundle)
    patience = flag.seconds(timeout)
    findings = _findings(toolkit, name, how, patience)
    if how.fix and (done := repair(findings)):
        for line in done:
            toolkit.console.say(line)
        findings = _findings(toolkit, name, how, patience)
    if how.bundle:
        _write_bundle(toolkit, bundle, findings)
    return shown(findings, toolkit.console.complete)


def _findings(toolkit: Toolkit, name: str, how: DoctorFlags, patience: float) -> list[Finding]:
    if how.clean:
        return checked("clean slice", lambda: _clean_findings(toolkit, name, patience))
    findings = project_findings(toolkit, spelled(how.accelerator_type))
    if not name:
        return findings

    def look() -> list[Finding]:
        found = toolkit.slices.find(name, toolkit.deadline(patience))
        return slice_findings(toolkit, found, patience)

    return findings + checked(f"slice {name}", look)


def _clean_findings(toolkit: Toolkit, name: str, patience: float) -> list[Finding]:
    from tpukit.doctor.slice_checks import clean_findings

    slice_ = toolkit.slices.find(name, toolkit.deadline(patience))
    workers = toolkit.reach.workers(slice_, "all", patience)
    return list(clean_findings(workers, slice_, toolkit.clock, patience))


def _write_bundle(toolkit: Toolkit, path: Path, findings: Sequence[Finding]) -> None:
    from tpukit.doctor.bundle import Redaction, names_of, newest, write_bundle

    paths, settings = toolkit.paths, toolkit.settings
    values = {setting.name: setting.value for setting in settings.explain()}
    accounts = [toolkit.cloud.identity.known_account, values["account"]]
    names = names_of(accounts, [values["project"], values["quota_project"]], values["user"])
    logs = [*newest(paths.state, "crash-*.log"), *newest(paths.state, paths.journal.name)]
    written = write_bundle(
        path,
        [finding.document() for finding in findings],
        settings.explain(),
        [*logs, *newest(paths.logs, "*.log")],
        Redaction(names, toolkit.environ.get("HOME", "")),
    )
    _say_written(toolkit, path, written)


def _check_settings(toolkit: Toolkit, path: Path) -> None:
    """If the settings cannot be read, write a bundle that says why, and raise that error."""
    from tpukit.doctor.bundle import Redaction, write_bundle

    try:
        toolkit.settings  # noqa: B018  it reads them
    except TpukitError as error:
        report = [Finding("settings", "failure", error.summary()).document()]
        redaction = Redaction({}, toolkit.environ.get("HOME", ""))
        _say_written(toolkit, path, write_bundle(path, report, (), (), redaction))
        raise


def _say_written(toolkit: Toolkit, path: Path, written: Sequence[str]) -> None:
    toolkit.console.say(f"{path} has {', '.join(written)}: read them before you send it")


def project_findings(toolkit: Toolkit, accelerator_type: str = "") -> list[Finding]:
    """Return the findings on the settings, the account, the project and this machine.

    They are about the quota of an accelerator type, or of all types of the zone.
    """
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
        project=lambda: cloud.project_provider,
        login=lambda: cloud.login_provider,
        login_user=toolkit.reach.login_user,
        key=lambda: toolkit.reach.existing_key,
        ssh_config=SshConfig(toolkit.paths.ssh),
        accelerator_type=accelerator_type,
    )
    return [*readable, *checks.findings()]


def _settings(settings: Settings) -> Finding:
    number = sum(bool(setting.value) for setting in settings.explain())
    return Finding("settings", "ok", f"{counted(number, 'setting')} can be read")


def slice_findings(toolkit: Toolkit, slice_: Slice, patience: float) -> list[Finding]:
    """Return the findings on a slice and its workers; each may take `patience` seconds."""
    from tpukit.doctor.slice_checks import rule_findings, state_findings, worker_findings

    findings = list(state_findings(slice_))
    findings += checked("quota", lambda: _quota_findings(toolkit, slice_), "not checked")
    if slice_.state == "READY":
        context = toolkit.reach.context()
        findings += checked("firewall", lambda: rule_findings(context, slice_), "not checked")
        workers = toolkit.reach.workers(slice_, "all", patience)
        findings += worker_findings(workers, slice_, toolkit.clock, patience)
    return findings


def _quota_findings(toolkit: Toolkit, slice_: Slice) -> list[Finding]:
    """Return the findings on the quota that the slice counts on; a reserved one needs none."""
    ways = {"on-demand", "spot"} & {slice_.provisioning.replace("preemptible", "spot")}
    if not ways or not is_listed(slice_.accelerator_type):
        return []
    limits = toolkit.cloud.project_provider.limits([slice_.zone])[slice_.zone]
    accelerator = AcceleratorType.parse(slice_.accelerator_type)
    return list(type_findings(limits, slice_.zone, accelerator, ways))


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

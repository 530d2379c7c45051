"""`tpukit init`: the settings for the first slice, and the checks of `tpukit doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Annotated, Any

from typer import Option

from tpukit.accelerators import AcceleratorType, spelled
from tpukit.cli import listings
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.doctor import project_findings, shown
from tpukit.console import View
from tpukit.doctor.quota_checks import most
from tpukit.errors import BadInput, Fix, TpukitError, together
from tpukit.settings import user_file
from tpukit.text import one_line, shown_path

_QUESTIONS = {
    "project": "project for your TPUs (gcloud projects list shows yours)",
    "zone": "zone for your TPUs (tpukit zones lists them)",
}
#: The APIs of slices and firewall rules; and those that show roles and quotas.
_NEEDED = ("tpu.googleapis.com", "compute.googleapis.com")
_HELPFUL = ("cloudresourcemanager.googleapis.com", "cloudquotas.googleapis.com")


@dataclass(frozen=True)
class InitFlags:
    """The answers to questions besides the project and the zone."""

    accelerator_type: Annotated[
        str, Option(metavar="TYPE", help="Show the zones that offer this type, with their quota.")
    ] = ""
    enable_apis: Annotated[
        bool, Option("--enable-apis", help="Enable the APIs that the project lacks.")
    ] = False


def init(toolkit: Toolkit, how: InitFlags = InitFlags()) -> View:
    """Set the project and the zone, and check everything that the first slice needs.

    On a terminal it asks for a project and a zone that are not set, and if it may enable APIs that
    the project lacks. Elsewhere give --project, --zone and --enable-apis; it names everything that
    is missing at once, and ends with 2. It writes the settings to your own config.toml, or to the
    profile of --profile, makes no other change, and ends with 1 if a check fails.

    Examples:
      tpukit init --project my-project --zone us-central2-b
      tpukit init --project my-project --accelerator-type v6e-8 --enable-apis
      tpukit init --profile work --project work-project --zone us-east5-a
    """
    if toolkit.flags.is_local(toolkit.environ):
        fix = Fix.command("tpukit", "up", "v3-8")
        raise BadInput("the emulator needs no settings", fix=fix)
    accelerator = spelled(how.accelerator_type)
    if accelerator:
        AcceleratorType.parse(accelerator)
    file = toolkit.own_file
    toolkit = _answered(replace(toolkit, makes_profile=True), "project")
    zones = _zones(toolkit, accelerator) if accelerator else ""
    toolkit = _answered(toolkit, "zone", zones)
    _check_complete(toolkit, how, zones)
    for name in _QUESTIONS:
        setting = toolkit.settings.values[name]
        if setting.origin.startswith("flag "):
            user_file.set_value(file, name, setting.value)
            toolkit.console.say(f"{name} {setting.value}: written to {shown_path(file)}")
        else:
            toolkit.console.say(f"{name} {setting.value}: from {setting.origin}")
    findings = shown(project_findings(toolkit, accelerator), toolkit.console.complete)
    types = Fix.command("tpukit", "types", "--live", note="shows the types of this zone")
    return findings if findings.status else replace(findings, next=(*findings.next, types))


def _answered(toolkit: Toolkit, name: str, before: str = "") -> Toolkit:
    """Return a toolkit with the answer to a question as its flag, if the setting is missing.

    The line `before` is shown first. Without a terminal it returns the toolkit unchanged.
    """
    if toolkit.settings.get(name) or not toolkit.questions.possible:
        return toolkit
    if before:
        toolkit.console.say(before)
    answer: dict[str, Any] = {name: toolkit.questions.ask(_QUESTIONS[name])}
    return replace(toolkit, flags=replace(toolkit.flags, **answer))


def _check_complete(toolkit: Toolkit, how: InitFlags, zones: str) -> None:
    """Raise one error that names the missing settings and APIs, and missing credentials too.

    Missing credentials alone are a finding of the checks, because the settings need none.
    """
    settings = [
        error for name in _QUESTIONS for error in _errors(partial(toolkit.settings.require, name))
    ]
    for error in settings[-1:] if zones else ():
        error.why = zones
    credentials = list(_errors(lambda: toolkit.cloud.identity.credentials))
    apis = [] if settings or credentials else list(_enabled(toolkit, how))
    if settings or apis:
        raise together("things are missing", [*settings, *credentials, *apis])


def _errors(look: Callable[[], object]) -> Iterator[TpukitError]:
    try:
        look()
    except TpukitError as error:
        yield error


def _enabled(toolkit: Toolkit, how: InitFlags) -> Iterator[TpukitError]:
    """Enable the APIs that the project lacks if the user agrees; else yield an error.

    If the project does not list its APIs, the checks name the missing ones.
    """
    project, provider = toolkit.settings.require("project"), toolkit.cloud.project_provider
    try:
        lacking = provider.disabled((*_NEEDED, *_HELPFUL))
    except TpukitError as error:
        toolkit.console.say(f"APIs: {one_line(error.summary())}")
        return
    needed = [name for name in lacking if name in _NEEDED]
    wanted = lacking if how.enable_apis else needed
    if not wanted:
        return
    names = ", ".join(wanted)
    if not (how.enable_apis or toolkit.flags.yes or toolkit.questions.possible):
        what = f"project {project} has not enabled {names}"
        fix = Fix.command("tpukit", "init", "--enable-apis", "--project", project)
        yield BadInput(what, fix=fix)
        return
    if not how.enable_apis:
        toolkit.questions.confirm(f"enable {names} in project {project}?")
    provider.enable(wanted)
    toolkit.console.say(f"enabled in project {project}: {names}")


def _zones(toolkit: Toolkit, accelerator: str) -> str:
    """Return a line with the zones that offer a type, and the largest size that its quota allows.

    Returns "" if a zone is set, or if the API does not answer.
    """
    if toolkit.settings.get("zone") or not toolkit.settings.get("project"):
        return ""
    kind = AcceleratorType.parse(accelerator)
    try:
        offering = listings.accelerator_types(toolkit.cloud).zones_of(accelerator)
        limits = toolkit.cloud.project_provider.limits(offering)
    except TpukitError as error:
        toolkit.console.say(f"zones of {accelerator}: {one_line(error.summary())}")
        return ""
    sizes = {zone: most(limits[zone], kind) for zone in offering}
    enough = [zone for zone, size in sizes.items() if size is None or size >= kind.size]
    told = ", ".join(f"{zone} ({_size(sizes[zone])})" for zone in enough)
    return f"zones with {accelerator} and its quota: {told or 'none'}"


def _size(size: float | None) -> str:
    if size is None:
        return "quota unknown"
    return "no limit" if size == inf else f"{size:.0f}"

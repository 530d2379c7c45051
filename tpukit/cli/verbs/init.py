"""`tpukit init`: the settings for the first slice, and the checks of `tpukit doctor`."""

from __future__ import annotations

from dataclasses import replace

from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.doctor import project_findings, shown
from tpukit.console import View
from tpukit.errors import BadInput, Fix
from tpukit.settings import user_file
from tpukit.text import shown_path

_QUESTIONS = {
    "project": "project for your TPUs (gcloud projects list shows yours)",
    "zone": "zone for your TPUs (tpukit zones lists them)",
}


def init(toolkit: Toolkit) -> View:
    """Set the project and the zone, and check everything that the first slice needs.

    On a terminal it asks for a project and a zone that are not set; elsewhere give --project and
    --zone. It writes both to your own config.toml, or to the profile of --profile, makes no other
    change, and ends with 1 if a check fails.

    Examples:
      tpukit init --project my-project --zone us-central2-b
      tpukit init --profile work --project work-project --zone us-east5-a
    """
    if toolkit.flags.is_local(toolkit.environ):
        fix = Fix.command("tpukit", "up", "v3-8")
        raise BadInput("the emulator needs no settings", fix=fix)
    file = toolkit.own_file
    if toolkit.flags.chosen_profile(toolkit.environ):
        user_file.make(file)
    toolkit = _answered(toolkit)
    if not all(map(toolkit.settings.get, _QUESTIONS)):
        toolkit.cloud.check_given(*_QUESTIONS)
    for name in _QUESTIONS:
        setting = toolkit.settings.values[name]
        if setting.origin.startswith("flag "):
            user_file.set_value(file, name, setting.value)
            toolkit.console.say(f"{name} {setting.value}: written to {shown_path(file)}")
        else:
            toolkit.console.say(f"{name} {setting.value}: from {setting.origin}")
    findings = shown(project_findings(toolkit), toolkit.console.complete)
    types = Fix.command("tpukit", "types", "--live", note="shows the types of this zone")
    return findings if findings.status else replace(findings, next=(*findings.next, types))


def _answered(toolkit: Toolkit) -> Toolkit:
    """Return a toolkit with the answers on a terminal as its flags."""
    if not toolkit.questions.possible:
        return toolkit
    flags = toolkit.flags
    if not toolkit.settings.get("project"):
        flags = replace(flags, project=toolkit.questions.ask(_QUESTIONS["project"]))
    if not toolkit.settings.get("zone"):
        flags = replace(flags, zone=toolkit.questions.ask(_QUESTIONS["zone"]))
    return replace(toolkit, flags=flags)

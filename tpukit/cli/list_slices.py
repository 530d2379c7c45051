"""`tpukit list`: every slice of the project, in all zones unless one is named."""

from __future__ import annotations

from dataclasses import replace

from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import Fix


def list_slices(toolkit: Toolkit) -> View:
    """List the slices of all zones, or of --zone.

    Examples:
      tpukit list
      tpukit list --zone us-central1-a --json
    """
    listed = toolkit.provider.list(toolkit.flags.zone or "-")
    toolkit.name_hints.saw(each.name for each in listed.slices)
    others = toolkit.journal.other_projects(toolkit.settings.require("project"))
    words = [("tpukit", "list", "--project", project) for project in others]
    made_there = "slices were also made in that project"
    return replace(views.slices(listed), next=tuple(Fix(each, made_there) for each in words))

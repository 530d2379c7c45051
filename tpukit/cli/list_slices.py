"""`tpukit list`: every slice of the project, in all zones unless one is named."""

from __future__ import annotations

from tpukit.cli import views
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View


def list_slices(toolkit: Toolkit) -> View:
    """List the slices of all zones, or of --zone.

    Examples:
      tpukit list
      tpukit list --zone us-central1-a --json
    """
    listed = toolkit.provider.list(toolkit.flags.zone or "-")
    for project in toolkit.journal.other_projects(toolkit.settings.require("project")):
        toolkit.console.say(
            f"slices were also made in project {project}: tpukit list --project {project}"
        )
    return views.slices(listed)

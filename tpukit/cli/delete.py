"""`tpukit delete`: delete slices and wait until they are gone."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from typer import Argument, Option

from tpukit.access import cleanup
from tpukit.access.ssh_config import SshConfig
from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import NotFound
from tpukit.models import Slice

Names = Annotated[list[str], Argument(metavar="NAME…", help="Names of the slices.")]
MissingOk = Annotated[bool, Option("--missing-ok", help="A slice that is not there is no error.")]


def delete(
    toolkit: Toolkit,
    names: Names,
    missing_ok: MissingOk = False,
    force: ownership.Force = False,
    timeout: flag.Timeout = "20m",
) -> View:
    """Delete slices and wait until they are gone.

    Their firewall rules go too. It returns once the API answers "not found". What belongs to
    another owner is asked about, or refused where nobody can answer.

    Examples:
      tpukit delete demo
      tpukit delete demo demo2 --yes
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    found: list[Slice] = []
    for name in names:
        with suppress(*[NotFound] if missing_ok else []):
            found.append(toolkit.find(name))
        toolkit.hints.forget(name)
    ownership.confirm(toolkit, "delete", found, force=force, always=True)
    if found:
        cleanup.delete_all(
            found,
            toolkit.provider,
            toolkit.firewall,
            SshConfig(toolkit.paths.ssh),
            deadline=deadline,
            journal=toolkit.journal,
            on_state=toolkit.say_state,
            on_warning=toolkit.console.warn,
        )
    deleted = [each.name for each in found]
    return View({"deleted": deleted}, rows=[[name] for name in deleted])

"""`tpukit delete`: delete slices and wait until they are gone."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from tpukit.access import cleanup
from tpukit.access.ssh_config import SshConfig
from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import Fix, NotFound, TpukitError
from tpukit.models import Slice
from tpukit.slices import naming

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

    Their firewall rules go too. It returns once the API answers "not found" for each; one that is
    missing or fails does not stop the others. What belongs to another owner is asked about, or
    refused where nobody can answer.

    Examples:
      tpukit delete demo
      tpukit delete demo demo2 --yes
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    found, missing = _sought(toolkit, names, deadline)
    ownership.confirm(toolkit, "delete", found, force=force, always=True)
    done = cleanup.delete_all(
        found,
        toolkit.provider,
        toolkit.firewall,
        SshConfig(toolkit.paths.ssh),
        deadline=deadline,
        journal=toolkit.journal,
        on_state=toolkit.say_state,
        on_warning=toolkit.console.warn,
    )
    toolkit.name_hints.forget([*done.names, *missing])
    failed = {**done.failed, **({} if missing_ok else missing)}
    after = [
        *(Fix.command("tpukit", "firewall", "remove", rule) for rule in done.rules),
        *(_queued(each) for each in found if each.queued_resource and each.name in done.names),
    ]
    if failed:
        for fix in after:
            toolkit.console.suggest(fix)
        raise cleanup.not_deleted(failed, done.names)
    return View(
        {"deleted": done.names},
        rows=[[name] for name in done.names],
        next=after,
        status=1 if done.rules else 0,
    )


def _sought(
    toolkit: Toolkit, names: list[str], deadline: Deadline
) -> tuple[list[Slice], dict[str, TpukitError]]:
    """Return the slices that are there, and what there is to say of each that is not."""
    found: list[Slice] = []
    missing: dict[str, TpukitError] = {}
    for name in dict.fromkeys(map(naming.check_name, names)):
        toolkit.hints.forget(name)
        try:
            found.append(toolkit.find(name, deadline))
        except NotFound as error:
            missing[name] = error
    return found, missing


def _queued(found: Slice) -> Fix:
    """Return what ends the request that a slice came from: it stays, and is Google's to keep."""
    return Fix.command(
        *("gcloud", "compute", "tpus", "queued-resources", "delete", found.queued_resource),
        *("--zone", found.zone, "--project", found.project),
        note=f"{found.name} came from this queued resource, which stays without it",
    )

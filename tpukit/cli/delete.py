"""`tpukit delete`: delete slices and wait until they are gone."""

from __future__ import annotations

from typing import Annotated

import typer

from tpukit import firewall, lifecycle
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import NotAllowed, NotFound
from tpukit.models import Slice
from tpukit.ssh_config import SshConfig

Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of the slices.")]
MissingOk = Annotated[
    bool, typer.Option("--missing-ok", help="A slice that is not there is no error.")
]


def delete(
    toolkit: Toolkit, names: Names, missing_ok: MissingOk = False, timeout: flag.Timeout = "20m"
) -> View:
    """Delete slices and wait until they are gone.

    Their firewall rules go too. It returns once the API answers "not found".

    Examples:
      tpukit delete demo
      tpukit delete demo demo2 --yes
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    found = [each for name in names if (each := _find(toolkit, name, missing_ok))]
    if found:
        toolkit.confirm(f"delete {', '.join(f'{each.name} ({each.zone})' for each in found)}?")
    for each in found:
        lifecycle.delete(
            toolkit.provider,
            each,
            deadline=deadline,
            journal=toolkit.journal,
            on_state=lambda state, each=each: toolkit.console.say(f"{each.name}: {state}"),  # type: ignore[misc]
        )
        _remove_rule(toolkit, each)
        SshConfig(toolkit.paths.ssh).forget(each)
    deleted = [each.name for each in found]
    return View({"deleted": deleted}, rows=[[name] for name in deleted])


def _find(toolkit: Toolkit, name: str, missing_ok: bool) -> Slice | None:
    try:
        return toolkit.find(name)
    except NotFound:
        if missing_ok:
            return None
        raise


def _remove_rule(toolkit: Toolkit, found: Slice) -> None:
    """Remove the slice's own rule; who may not read firewall rules has made none."""
    if firewall.rule_name(found) not in found.tags:
        return
    try:
        firewall.remove(toolkit.firewall, firewall.rule_name(found))
    except NotAllowed as error:
        toolkit.console.warn(f"its firewall rule stays: {error.what}")

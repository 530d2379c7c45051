"""`tpukit delete`: delete slices and wait until they are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated

from typer import Argument, Option

from tpukit.access import cleanup
from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, planned
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.models import ApiCall, Slice
from tpukit.slices import naming
from tpukit.slices.find import chosen, matching
from tpukit.text import one_line

Names = Annotated[
    list[str] | None,
    Argument(metavar="NAME…", help="Names of the slices, or patterns in quotes: 'exp-*'."),
]
Labels = Annotated[
    str, Option("--label", metavar="KEY[=VALUE],…", help="Those with all of these labels.")
]
_PLAIN = re.compile(r"[-a-z0-9]+")
_PATTERN = re.compile(r"(?=.*[*?[])[-a-z0-9*?!\[\]]+")
MissingOk = Annotated[bool, Option("--missing-ok", help="A slice that is not there is no error.")]


def delete(
    toolkit: Toolkit,
    names: Names = None,
    label: Labels = "",
    missing_ok: MissingOk = False,
    force: ownership.Force = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Delete slices and wait until they are gone.

    Their firewall rules go too. It returns once the API answers "not found" for each; one that is
    missing or fails does not stop the others. What belongs to another owner is asked about, or
    refused where nobody can answer. With names and --label, both have to fit.

    Examples:
      tpukit delete demo demo2 --yes
      tpukit delete 'exp-*' --label tpukit-owner=ada
    """
    limit = flag.seconds(timeout)
    sought = partial(_sought, toolkit, names or [], label)
    found, missing = sought(toolkit.deadline(limit))
    ownership.confirm(toolkit, "delete", found, force=force, always=not dry_run)
    if dry_run:
        return _planned(toolkit, found, {} if missing_ok else missing)
    deadline = toolkit.deadline(limit)  # the answer may have taken its time
    if end_watches(toolkit, [*(each.name for each in found), *missing]) & missing.keys():
        found, missing = sought(deadline)  # it was being made again
    done = toolkit.cleanup.delete_all(found, deadline)
    toolkit.name_hints.forget([*done.names, *missing])
    _remove_rules_of(toolkit, missing)
    failed = {**done.failed, **({} if missing_ok else missing)}
    after = [
        *(Fix.command("tpukit", "firewall", "remove", rule) for rule in done.rules),
        *(_queued(each) for each in found if each.queued_resource and each.name in done.names),
    ]
    if failed:
        for fix in after:
            toolkit.console.suggest(fix)
        raise cleanup.not_deleted(failed, done.names)
    rows = [[name] for name in done.names]
    return View({"deleted": done.names}, rows=rows, next=after, status=int(bool(done.rules)))


def _planned(toolkit: Toolkit, found: Sequence[Slice], missing: Mapping[str, TpukitError]) -> View:
    """Show the calls that delete these slices; raise for those that are `missing`."""
    if missing:
        raise cleanup.not_deleted(missing, ())
    calls: list[ApiCall] = []
    note = calls.append
    cleanup.plan(found, toolkit.provider.planning(note), toolkit.firewall.planning(note))
    return planned(calls)


def _remove_rules_of(toolkit: Toolkit, missing: Iterable[str]) -> None:
    """Remove the rules of slices that are gone: a delete that was cut off may have left them."""
    for rule in cleanup.remove_left(
        toolkit.provider,
        toolkit.firewall,
        [each for each in missing if _PLAIN.fullmatch(each)],
        toolkit.settings.get("project"),
        toolkit.console.warn,
    ):
        toolkit.console.say(f"rule {rule}: deleted")


def end_watches(toolkit: Toolkit, names: Iterable[str]) -> set[str]:
    """End the watches of slices on this machine: what is deleted or stopped is not to come back.

    Returns the names of those that were watched.
    """
    if not toolkit.paths.watches.is_dir():
        return set()
    from tpukit.cli import watching

    files = watching.files(toolkit)
    ended = {
        each for each in names if _PLAIN.fullmatch(each) and watching.stop(toolkit, files.of(each))
    }
    for each in sorted(ended):
        toolkit.console.say(f"{each}: watched no longer")
    return ended


def remove(toolkit: Toolkit, name: str, zone: str) -> None:
    """Delete a slice of ours that is not needed any more, with what goes with it."""
    deadline = toolkit.deadline(flag.seconds("20m"))
    found = toolkit.provider.within(deadline).get(zone, name)
    toolkit.cleanup.delete(found, deadline)
    toolkit.name_hints.forget([name])


def _sought(
    toolkit: Toolkit, names: list[str], label: str, deadline: Deadline
) -> tuple[list[Slice], dict[str, TpukitError]]:
    """Return the slices that are there, and what there is to say of each that is not.

    Raises:
        BadInput: nothing says which.
        TpukitError: a zone did not answer, so that not every slice that fits is known.
    """
    if not names and not flag.words(label):
        fix = Fix.command("tpukit", "delete", "--help")
        raise BadInput("which slices to delete is not said", fix=fix)
    plain = [each for each in dict.fromkeys(names) if not _PATTERN.fullmatch(each)]
    found: list[Slice] = []
    missing: dict[str, TpukitError] = {}
    for name in plain:
        toolkit.about(naming.check_name(name))  # all of them, before the first is looked for
    for name in plain:
        toolkit.hints.forget(name)
        try:
            found.append(toolkit.find(name, deadline))
        except NotFound as error:
            missing[name] = error
    if label or len(plain) < len(names):
        patterns = [each for each in names if each not in plain]
        fitting = _fitting(toolkit, (*patterns, *([] if names else ["*"])), deadline)
        here = {(each.zone, each.name): each for each in (*found, *fitting)}
        found = [*chosen(here.values(), flag.words(label), (), "name")]
        for each in (each for each in patterns if not matching(fitting, [each])):
            fix = Fix.command("tpukit", "list", note="shows the slices there are")
            missing[each] = NotFound(f"no slice fits {one_line(each)}", fix=fix)
        if not found and not missing:
            fix = Fix.command("tpukit", "list", "--label", label)
            missing[label] = NotFound(f"no slice has the label {one_line(label)}", fix=fix)
    return found, missing


def _fitting(toolkit: Toolkit, patterns: Sequence[str], deadline: Deadline) -> tuple[Slice, ...]:
    listed = toolkit.provider.within(deadline).list(toolkit.flags.zone or "-")
    if listed.unreachable:
        silent = ", ".join(listed.unreachable)
        fix = Fix(note="name the slices, or add --zone")
        raise TpukitError("which slices fit is not known", why=f"no answer from {silent}", fix=fix)
    fitting = matching(listed.slices, patterns)
    for each in fitting:
        toolkit.hints.forget(each.name)
    return fitting


def _queued(found: Slice) -> Fix:
    """Return what ends the request that a slice came from: it stays, and is Google's to keep."""
    return Fix.command(
        *("gcloud", "compute", "tpus", "queued-resources", "delete", found.queued_resource),
        *("--zone", found.zone, "--project", found.project),
        note=f"{found.name} came from this queued resource, which stays without it",
    )

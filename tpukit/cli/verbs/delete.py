"""`tpukit delete`: delete slices and wait until they are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

from typer import Argument, Option

from tpukit.access import cleanup
from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.models import QueuedResource, Slice
from tpukit.slices import naming
from tpukit.slices.find import chosen, is_pattern, matching
from tpukit.text import one_line

Names = Annotated[
    list[str] | None,
    Argument(
        metavar="NAME…", help="Names of slices, patterns in quotes ('exp-*'), or labels KEY=VALUE."
    ),
]
_PLAIN = re.compile(r"[-a-z0-9]+")
Foreign = Annotated[
    bool, Option("--foreign", help="Patterns and --label also select slices that are not yours.")
]
MissingOk = Annotated[bool, Option("--missing-ok", help="Succeed even if a slice does not exist.")]


def delete(
    toolkit: Toolkit,
    names: Names = None,
    label: flag.Labels = "",
    missing_ok: MissingOk = False,
    force: confirmation.Force = False,
    foreign: Foreign = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Delete slices and wait until they are gone.

    It also deletes their firewall rules, and their queued resource if it has no other slice. The
    name of a multislice stands for all its slices. It returns when the API answers "not found" for
    each. If one slice is missing or fails, the others are still deleted. Before it deletes another
    owner's slice it asks, and it refuses if nobody can answer. Patterns and --label select your
    slices, with --foreign also those of others. If you give names and --label, both must match.

    Examples:
      tpukit delete demo demo2 --yes
      tpukit delete 'exp-*' --label team=vision
    """
    limit = flag.seconds(timeout)
    sought = partial(_sought, toolkit, names or [], label, foreign)
    slices, requests, missing = sought(toolkit.deadline(limit))
    if (slices or requests) and toolkit.questions.possible:
        for error in missing.values():  # before the question, whose answer may depend on it
            toolkit.console.say(error.what)
    _warn_of_others(toolkit, slices, toolkit.deadline(limit))
    confirmation.confirm(toolkit, "delete", slices, force=force, always=not dry_run)
    for request in requests:
        left = f"queued resource {request.name} ({request.zone}, {request.state})"
        if not dry_run:
            toolkit.questions.confirm(f"its slices are gone; delete {left}?")
    if dry_run:
        if missing and not missing_ok:
            raise cleanup.not_deleted(missing, ())
        things = _by_name(slices, requests)
        return rehearse(
            toolkit, lambda by: by.slices.cleanup.end_all(things, by.deadline(limit)).check()
        )
    deadline = toolkit.deadline(limit)  # the questions take no time away from the deletion
    places = [*((slice_.zone, slice_.name) for slice_ in slices)]
    places += [(toolkit.flags.zone, name) for name in missing]
    if end_watches(toolkit, places) & missing.keys():
        slices, requests, missing = sought(deadline)  # its watch may have made it again
    things = _by_name(slices, requests)
    done = toolkit.slices.cleanup.end_all(things, deadline)
    toolkit.slices.name_hints.forget(missing)
    # An interrupted delete may have left their rules.
    plain = [name for name in missing if _PLAIN.fullmatch(name)]
    for rule in toolkit.slices.cleanup.remove_left(plain):
        toolkit.console.say(f"rule {rule}: deleted")
    failed = {**done.failed, **({} if missing_ok else missing)}
    after = [Fix.command("tpukit", "firewall", "remove", rule) for rule in done.rules]
    if failed:
        for fix in after:
            toolkit.console.suggest(fix)
        raise cleanup.not_deleted(failed, done.names)
    # A request that still waits makes a slice later, and that bills.
    after += [
        error.fix for error in missing.values() if error.fix and "queue" in error.fix.arguments
    ]
    rows = [[name] for name in done.names]
    return View({"deleted": done.names}, rows=rows, next=after, status=int(bool(done.rules)))


def _by_name(*things: Sequence[cleanup.Thing]) -> dict[str, cleanup.Thing]:
    return {thing.name: thing for kind in things for thing in kind}


def _warn_of_others(toolkit: Toolkit, slices: Sequence[Slice], deadline: Deadline) -> None:
    """Warn of further slices that a deletion also ends because they share a queued resource."""
    chosen = {(slice_.zone, slice_.name) for slice_ in slices}
    shared = {(slice_.zone, slice_.queued_resource) for slice_ in slices if slice_.queued_resource}
    for zone, name in sorted(shared):
        with suppress(TpukitError):  # without an answer there is nothing to warn of
            request = toolkit.cloud.provider.within(deadline).get_queued(zone, name)
            others = [other for other in request.slices if (zone, other) not in chosen]
            if others and not request.dead:
                lost = f"queued resource {name} loses all its slices with the first one"
                toolkit.console.warn(f"{lost}: also {', '.join(others)}")


def end_watches(toolkit: Toolkit, places: Iterable[tuple[str, str]]) -> set[str]:
    """End this machine's watches of slices, which would otherwise make the slices again.

    Places are pairs of a zone and a name; the zone "" stands for every zone. Returns the names of
    the slices that were watched.
    """
    if not toolkit.paths.watches.is_dir():
        return set()
    from tpukit.cli import attendance
    from tpukit.watch import background

    files = attendance.files(toolkit)
    ended = {
        name
        for zone, name in places
        for file, _ in files.named(name, zone)
        if background.stop(file, toolkit.clock)
    }
    for name in sorted(ended):
        toolkit.console.say(f"{name}: no longer watched")
    return ended


def _sought(
    toolkit: Toolkit, names: list[str], label: str, foreign: bool, deadline: Deadline
) -> tuple[list[Slice], list[QueuedResource], dict[str, TpukitError]]:
    """Return the selected slices, dead queued resources without slices, and errors by name.

    Raises:
        BadInput: neither names nor a label were given.
        TpukitError: a zone did not answer, so some matching slices may be unknown.
    """
    if not names and not flag.words(label):
        fix = Fix.command("tpukit", "delete", "--help")
        raise BadInput("no names of slices were given", fix=fix)
    plain = [name for name in dict.fromkeys(names) if not is_pattern(name)]
    slices: list[Slice] = []
    requests: list[QueuedResource] = []
    missing: dict[str, TpukitError] = {}
    for name in plain:
        toolkit.slices.about(naming.check_name(name))  # check all names before the first search
    for name in plain:
        toolkit.slices.hints.forget(name)
        try:
            slices += toolkit.slices.find_named(name, deadline)
        except NotFound as error:
            request = None if label else _request_of(toolkit, name, deadline)
            if request and request.dead:
                requests.append(request)
                continue
            if request:
                end = ("tpukit", "queue", "delete", name, "--zone", request.zone)
                error.fix = Fix.command(*end, note=f"the queued resource is {request.state}")
            missing[name] = error
    if label or len(plain) < len(names):
        patterns = [pattern for pattern in names if pattern not in plain]
        wanted = (*patterns, *([] if names else ["*"]))
        fitting = toolkit.slices.matching(wanted, foreign=foreign, deadline=deadline)
        for slice_ in fitting:
            toolkit.slices.hints.forget(slice_.name)
        yours = "" if foreign else "of yours "
        here = {(slice_.zone, slice_.name): slice_ for slice_ in (*slices, *fitting)}
        slices = [*chosen(here.values(), flag.words(label), (), "name")]
        for pattern in (pattern for pattern in patterns if not matching(fitting, [pattern])):
            fix = Fix.command("tpukit", "list", note="shows the slices")
            missing[pattern] = NotFound(f"no slice {yours}matches {one_line(pattern)}", fix=fix)
        if not slices and not missing:
            fix = Fix.command("tpukit", "list", "--label", label)
            what = f"no slice {yours}has the label {one_line(label)}"
            missing[label] = NotFound(what, fix=fix)
    return slices, requests, missing


def _request_of(toolkit: Toolkit, name: str, deadline: Deadline) -> QueuedResource | None:
    """Return our queued resource of that name, if there is one and we may read it."""
    from tpukit.slices.queue_requests import find_queued

    with suppress(TpukitError):
        request = find_queued(toolkit.cloud.provider.within(deadline), name, toolkit.flags.zone)
        return request if naming.is_owner(toolkit.cloud.owner, request.labels) else None
    return None

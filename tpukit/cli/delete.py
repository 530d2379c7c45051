"""`tpukit delete`: delete slices and wait until they are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated

from typer import Argument, Option

from tpukit.access import cleanup
from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.models import QueuedResource, Slice
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
Foreign = Annotated[
    bool, Option("--foreign", help="Patterns and --label also select slices that are not yours.")
]
MissingOk = Annotated[bool, Option("--missing-ok", help="A slice that is not there is no error.")]


def delete(
    toolkit: Toolkit,
    names: Names = None,
    label: Labels = "",
    missing_ok: MissingOk = False,
    force: ownership.Force = False,
    foreign: Foreign = False,
    timeout: flag.Timeout = "20m",
    dry_run: DryRun = False,
) -> View:
    """Delete slices and wait until they are gone.

    Their firewall rules go too, and a queued resource that has no other slice; the name of a
    multislice stands for all its slices. It returns once the
    API answers "not found" for each; one that is missing or fails does not stop the others. What
    belongs to another owner is asked about, or refused if nobody can answer. Patterns and --label
    select slices of yours, with --foreign others' too. With names and --label, both have to fit.

    Examples:
      tpukit delete demo demo2 --yes
      tpukit delete 'exp-*' --label team=vision
    """
    limit = flag.seconds(timeout)
    sought = partial(_sought, toolkit, names or [], label, foreign)
    found, requests, missing = sought(toolkit.deadline(limit))
    _warn_of_others(toolkit, found, toolkit.deadline(limit))
    ownership.confirm(toolkit, "delete", found, force=force, always=not dry_run)
    for request in requests:
        left = f"queued resource {request.name} ({request.zone}, {request.state})"
        if not dry_run:
            toolkit.confirm(f"its slices are gone; delete {left}?")
    if dry_run:
        if missing and not missing_ok:
            raise cleanup.not_deleted(missing, ())
        things = _by_name(found, requests)
        return rehearse(toolkit, lambda by: by.cleanup.end_all(things, by.deadline(limit)).check())
    deadline = toolkit.deadline(limit)  # the answer may have taken its time
    places = [*((each.zone, each.name) for each in found)]
    places += [(toolkit.flags.zone, each) for each in missing]
    if end_watches(toolkit, places) & missing.keys():
        found, requests, missing = sought(deadline)  # it was being made again
    things = _by_name(found, requests)
    done = toolkit.cleanup.end_all(things, deadline)
    toolkit.name_hints.forget(missing)
    # A delete that was cut off may have left them.
    for rule in toolkit.cleanup.remove_left([name for name in missing if _PLAIN.fullmatch(name)]):
        toolkit.console.say(f"rule {rule}: deleted")
    failed = {**done.failed, **({} if missing_ok else missing)}
    after = [Fix.command("tpukit", "firewall", "remove", rule) for rule in done.rules]
    if failed:
        for fix in after:
            toolkit.console.suggest(fix)
        raise cleanup.not_deleted(failed, done.names)
    rows = [[name] for name in done.names]
    return View({"deleted": done.names}, rows=rows, next=after, status=int(bool(done.rules)))


def _by_name(*things: Sequence[cleanup.Thing]) -> dict[str, cleanup.Thing]:
    return {thing.name: thing for kind in things for thing in kind}


def _warn_of_others(toolkit: Toolkit, found: Sequence[Slice], deadline: Deadline) -> None:
    """Name the slices that nobody asked to delete and that share a queued resource with these."""
    chosen = {(each.zone, each.name) for each in found}
    shared = {(each.zone, each.queued_resource) for each in found if each.queued_resource}
    for zone, name in sorted(shared):
        with suppress(TpukitError):  # then nobody knows of any
            request = toolkit.provider.within(deadline).get_queued(zone, name)
            others = [each for each in request.slices if (zone, each) not in chosen]
            if others and not request.dead:
                lost = f"queued resource {name} loses all its slices with the first one"
                toolkit.console.warn(f"{lost}: also {', '.join(others)}")


def end_watches(toolkit: Toolkit, places: Iterable[tuple[str, str]]) -> set[str]:
    """End the watches of slices on this machine: a slice that you end must not come back.

    Places are zones and names; the zone "" stands for every zone. Returns the names of those that
    were watched.
    """
    if not toolkit.paths.watches.is_dir():
        return set()
    from tpukit.cli import watching

    files = watching.files(toolkit)
    ended = {
        name
        for zone, name in places
        for file, _ in files.named(name, zone)
        if watching.stop(toolkit, file)
    }
    for each in sorted(ended):
        toolkit.console.say(f"{each}: watched no longer")
    return ended


def _sought(
    toolkit: Toolkit, names: list[str], label: str, foreign: bool, deadline: Deadline
) -> tuple[list[Slice], list[QueuedResource], dict[str, TpukitError]]:
    """Return the slices, the dead queued resources that slices have left, and what is missing.

    Raises:
        BadInput: nothing says which.
        TpukitError: a zone did not answer, so that not every slice that fits is known.
    """
    if not names and not flag.words(label):
        fix = Fix.command("tpukit", "delete", "--help")
        raise BadInput("which slices to delete is not said", fix=fix)
    plain = [each for each in dict.fromkeys(names) if not ownership.is_pattern(each)]
    found: list[Slice] = []
    requests: list[QueuedResource] = []
    missing: dict[str, TpukitError] = {}
    for name in plain:
        toolkit.about(naming.check_name(name))  # all of them, before the first is looked for
    for name in plain:
        toolkit.hints.forget(name)
        try:
            found += toolkit.find_named(name, deadline)
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
        patterns = [each for each in names if each not in plain]
        fitting = ownership.fitting(
            toolkit, (*patterns, *([] if names else ["*"])), foreign, deadline
        )
        yours = "" if foreign else "of yours "
        here = {(each.zone, each.name): each for each in (*found, *fitting)}
        found = [*chosen(here.values(), flag.words(label), (), "name")]
        for each in (each for each in patterns if not matching(fitting, [each])):
            fix = Fix.command("tpukit", "list", note="shows the slices there are")
            missing[each] = NotFound(f"no slice {yours}fits {one_line(each)}", fix=fix)
        if not found and not missing:
            fix = Fix.command("tpukit", "list", "--label", label)
            what = f"no slice {yours}has the label {one_line(label)}"
            missing[label] = NotFound(what, fix=fix)
    return found, requests, missing


def _request_of(toolkit: Toolkit, name: str, deadline: Deadline) -> QueuedResource | None:
    """Return our queued resource of that name, if there is one and we may read it."""
    from tpukit.slices.queue_requests import find_queued

    with suppress(TpukitError):
        request = find_queued(toolkit.provider.within(deadline), name, toolkit.flags.zone)
        return request if naming.is_owner(toolkit.owner, request.labels) else None
    return None

"""`tpukit queue`: requests that wait in Google's queue until it has room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Argument, Option

from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.delete import end_watches
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.request import DEFAULTS, RequestFlags, say_wanted, slice_requests, wanted
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.cli.views import queue_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotAllowed, NotFound, TpukitError
from tpukit.models import QueuedResource, QueueRequest
from tpukit.slices import naming

RequestName = Annotated[str, Argument(metavar="NAME", help="Name of the queued resource.")]
RequestNames = Annotated[list[str], Argument(metavar="NAME…", help="Names of queued resources.")]


@dataclass(frozen=True)
class QueueFlags:
    """What a request in the queue has beside a slice's own flags."""

    count: Annotated[
        int, Option(metavar="N", help="Slices; several are a multislice.", min=1, max=256)
    ] = 1
    best_effort: Annotated[
        bool, Option("--best-effort", help="Capacity that nobody has a right to, below on-demand.")
    ] = False
    valid_until: Annotated[
        str, Option(metavar="DURATION", help="How long Google tries; default: without an end.")
    ] = ""


def application() -> typer.Typer:
    summary = "Wait in Google's queue for slices, one or a multislice."
    return group(summary, create, list_requests, describe, wait, delete)


def create(
    toolkit: Toolkit,
    accelerator_type: flag.AcceleratorTypeName,
    name: flag.OptionalName = "",
    timeout: flag.Timeout = "10m",
    dry_run: DryRun = False,
    queue: QueueFlags = QueueFlags(),
    options: RequestFlags = DEFAULTS,
) -> View:
    """Ask for slices, and return once the request stands in the queue.

    It waits there for minutes to days, whether you watch or not, and its slices bill from the
    moment that they are there. One slice is called NAME, several are NAME-0, NAME-1 and so on, and
    NAME is all of them for run, provision and cp.

    Examples:
      tpukit queue create v5litepod-16 demo --spot --valid-until 12h
      tpukit queue create v6e-8 pair --count 2
    """
    from tpukit.access.key import with_access
    from tpukit.slices.queue_requests import ensure_queued

    accelerator, name = wanted(accelerator_type, name)
    toolkit.check_given("project", "zone")
    zone = toolkit.settings.get("zone")
    (one,) = slice_requests(toolkit, name, [(accelerator, zone)], options)
    say_wanted(toolkit, [one])
    if queue.best_effort and one.provisioning != "on-demand":
        raise BadInput(f"--best-effort and --{one.provisioning} exclude each other")
    if one.provisioning == "preemptible":
        raise BadInput("the queue has no --preemptible", fix=Fix(note="--spot is its newer form"))
    request = QueueRequest(
        with_access(one, toolkit.context()),
        queue.count,
        queue.best_effort,
        flag.seconds(queue.valid_until, "--valid-until") if queue.valid_until else None,
    )
    naming.check_name(request.names[-1])
    if options.ttl:
        toolkit.console.warn("--ttl counts from now on, also while the request waits")
    deadline = toolkit.deadline(flag.seconds(timeout))

    def act(by: Toolkit) -> tuple[QueuedResource, bool]:
        limit, say = by.deadline(deadline.remaining()), by.say_state(one.name)
        return ensure_queued(by.provider, request, deadline=limit, journal=by.journal, on_state=say)

    if dry_run:
        return rehearse(toolkit, act)
    found, made = act(toolkit)
    return queue_views.one_request(found, extra={"created": made}, next=(_wait_for(found),))


def list_requests(toolkit: Toolkit) -> View:
    """List the queued resources of all zones, or of --zone.

    Each stands with what its state means. What is dead keeps its quota: how to delete it is said.

    Examples:
      tpukit queue list
      tpukit queue list --zone us-east5-a --json
    """
    listed = toolkit.provider.list_queued(toolkit.flags.zone or "-")
    return queue_views.requests(listed, toolkit.provider.now())


def describe(toolkit: Toolkit, name: RequestName) -> View:
    """Show one queued resource, what its state means, and what to do.

    Example:
      tpukit queue describe demo
    """
    return queue_views.described(_find(toolkit, name))


def wait(toolkit: Toolkit, name: RequestName, timeout: flag.Timeout = "24h") -> View:
    """Wait until the slices of a queued resource are there.

    When the wait ends early, the request stays in the queue, and nothing is deleted.

    Examples:
      tpukit queue wait demo
      tpukit queue wait demo --timeout 3d
    """
    from tpukit.slices.queue_requests import wait_queued

    deadline = toolkit.deadline(flag.seconds(timeout))
    found = wait_queued(
        toolkit.provider,
        _find(toolkit, name),
        deadline=deadline,
        on_state=toolkit.say_state(name),
    )
    place = (found.name, "--zone", found.zone)
    after = [Fix.command("tpukit", "firewall", "apply", *place)]
    return queue_views.one_request(found, next=(*after, Fix.command("tpukit", "provision", *place)))


def delete(
    toolkit: Toolkit,
    names: RequestNames,
    force: ownership.Force = False,
    dry_run: DryRun = False,
    timeout: flag.Timeout = "30m",
) -> View:
    """Delete queued resources, with the slices that they have, and wait until they are gone.

    One that is missing or fails does not stop the others.

    Examples:
      tpukit queue delete demo
      tpukit queue delete demo pair --yes
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    found, missing = _sought(toolkit, names)
    things = {each.name: each for each in found}
    if dry_run:
        if missing:
            raise _not_deleted(missing, ())
        limit = deadline.remaining()
        return rehearse(toolkit, lambda by: by.cleanup.end_all(things, by.deadline(limit)).check())
    _confirm(toolkit, found, force)
    end_watches(toolkit, [(each.zone, name) for each in found for name in each.slices])
    done = toolkit.cleanup.end_all(things, deadline)
    shown = queue_views.deleted(done.names, done.rules)
    if failed := {**done.failed, **missing}:
        for fix in shown.next:
            toolkit.console.suggest(fix)
        raise _not_deleted(failed, done.names)
    return shown


def _find(toolkit: Toolkit, name: str) -> QueuedResource:
    from tpukit.slices.queue_requests import find_queued

    return find_queued(toolkit.provider, naming.check_request_name(name), toolkit.flags.zone)


def _sought(
    toolkit: Toolkit, names: Sequence[str]
) -> tuple[list[QueuedResource], dict[str, TpukitError]]:
    """Return the requests that are there, and what there is to say of each that is not."""
    found: list[QueuedResource] = []
    missing: dict[str, TpukitError] = {}
    for name in dict.fromkeys(map(naming.check_request_name, names)):
        try:
            found.append(_find(toolkit, name))
        except NotFound as error:
            missing[name] = error
    return found, missing


def _not_deleted(failed: Mapping[str, TpukitError], deleted: Sequence[str]) -> TpukitError:
    from tpukit.access import cleanup

    return cleanup.not_deleted(failed, deleted, things="queued resources", verbs=["queue"])


def _confirm(toolkit: Toolkit, found: Sequence[QueuedResource], force: bool) -> None:
    """Ask, where a request may have slices; refuse another's unless forced."""
    whose = {each.name: each.labels.get(naming.OWNER, "") for each in found}
    others = [
        each
        for each in found
        if whose[each.name] and not naming.is_owner(toolkit.owner, each.labels)
    ]
    if others and not force:
        raise NotAllowed(
            f"queued resource {others[0].name} belongs to {whose[others[0].name]}",
            reason=f"you are {toolkit.owner}",
            fix=Fix.command(
                *("tpukit", "queue", "delete", *[each.name for each in found], "--force")
            ),
        )
    alive = [each for each in found if not each.dead]
    if alive:
        shown = ", ".join(
            f"{each.name} ({each.zone}, {each.state}, with {', '.join(each.slices)})"
            for each in alive
        )
        toolkit.confirm(f"delete {shown}?")


def _wait_for(found: QueuedResource) -> Fix:
    return Fix.command("tpukit", "queue", "wait", found.name, "--zone", found.zone)

"""`tpukit queue`: requests that wait in Google's queue for capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Argument, Option

from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.dry_run import DryRun, rehearse
from tpukit.cli.request import DEFAULTS, RequestFlags, say_wanted, slice_requests, wanted
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import group
from tpukit.cli.verbs.delete import end_watches
from tpukit.cli.verbs.reap import with_room
from tpukit.cli.views import queue_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotAllowed, NotFound, TpukitError
from tpukit.models import QueuedResource, QueueRequest
from tpukit.slices import naming

RequestName = Annotated[str, Argument(metavar="NAME", help="Name of the queued resource.")]
RequestNames = Annotated[list[str], Argument(metavar="NAME…", help="Names of queued resources.")]


@dataclass(frozen=True)
class QueueFlags:
    """The flags of a queued resource, in addition to those of a slice."""

    count: Annotated[
        int, Option(metavar="N", help="Number of slices; several are a multislice.", min=1, max=256)
    ] = 1
    reap_own: flag.ReapOwn = False
    valid_until: Annotated[
        str, Option(metavar="DURATION", help="Let Google try for this time; default: no end.")
    ] = ""


def application() -> typer.Typer:
    summary = "Wait in Google's queue for a slice or a multislice."
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
    """Request slices, and return when the request is in the queue.

    It waits there for minutes to days, and its slices bill from the moment when they exist, even if
    you do not watch. A single slice is called NAME; several are called NAME-0, NAME-1 and so on,
    and run, provision and cp take NAME for all of them.

    Examples:
      tpukit queue create v5litepod-16 demo --spot --valid-until 12h
      tpukit queue create v6e-8 pair --count 2
    """
    from tpukit.access.key import with_access
    from tpukit.slices.queue_requests import ensure_queued

    accelerator, name = wanted(accelerator_type, name)
    limit = flag.seconds(timeout)
    valid = flag.life(queue.valid_until, "--valid-until") if queue.valid_until else None
    toolkit.cloud.check_given("project", "zone")
    zone = toolkit.settings.get("zone")
    (slice_request,) = slice_requests(toolkit, name, [(accelerator, zone, options)])
    if slice_request.provisioning == "preemptible":
        raise BadInput("the queue has no --preemptible", fix=Fix(note="--spot is its newer form"))
    naming.check_name(QueueRequest(slice_request, queue.count).names[-1])
    say_wanted(toolkit.console, [slice_request])
    asked = with_access(slice_request, toolkit.reach.context())
    request = QueueRequest(asked, queue.count, valid)
    if options.ttl:
        toolkit.console.warn("--ttl counts from now on, also while the request waits")
    deadline = toolkit.deadline(limit)

    def act(by: Toolkit) -> tuple[QueuedResource, bool]:
        left, say = by.deadline(deadline.remaining()), by.display.say_state(slice_request.name)
        return ensure_queued(
            by.cloud.provider, request, deadline=left, journal=by.cloud.journal, on_state=say
        )

    if dry_run:
        return rehearse(toolkit, act)
    queued, created = with_room(toolkit, [zone], lambda: act(toolkit), reap_own=queue.reap_own)
    return queue_views.one_request(queued, extra={"created": created}, next=(_wait_for(queued),))


def list_requests(toolkit: Toolkit) -> View:
    """List the queued resources of all zones, or of --zone.

    Each state is explained. Dead requests keep their quota, so it prints the commands that delete
    them.

    Examples:
      tpukit queue list
      tpukit queue list --zone us-east5-a --json
    """
    listed = toolkit.cloud.provider.list_queued(toolkit.flags.zone or "-")
    return queue_views.requests(listed, toolkit.cloud.provider.now())


def describe(toolkit: Toolkit, name: RequestName) -> View:
    """Show one queued resource, the meaning of its state, and advice.

    Example:
      tpukit queue describe demo
    """
    return queue_views.described(_find(toolkit, name))


def wait(toolkit: Toolkit, name: RequestName, timeout: flag.Timeout = "24h") -> View:
    """Wait until the slices of a queued resource exist.

    If the wait ends early, the request stays in the queue.

    Examples:
      tpukit queue wait demo
      tpukit queue wait demo --timeout 3d
    """
    from tpukit.slices.queue_requests import wait_queued

    deadline = toolkit.deadline(flag.seconds(timeout))
    queued = wait_queued(
        toolkit.cloud.provider,
        _find(toolkit, name),
        deadline=deadline,
        on_state=toolkit.display.say_state(name),
    )
    place = (queued.name, "--zone", queued.zone)
    steps = (("firewall", "apply"), ("provision",))
    next = tuple(Fix.command("tpukit", *verb, *place) for verb in steps)
    return queue_views.one_request(queued, next=next)


def delete(
    toolkit: Toolkit,
    names: RequestNames,
    force: confirmation.Force = False,
    dry_run: DryRun = False,
    timeout: flag.Timeout = "30m",
) -> View:
    """Delete queued resources with their slices, and wait until they are gone.

    If one is missing or fails, the others are deleted nevertheless.

    Examples:
      tpukit queue delete demo
      tpukit queue delete demo pair --yes
    """
    deadline = toolkit.deadline(flag.seconds(timeout))
    requests, missing = _find_all(toolkit, names)
    things = {request.name: request for request in requests}
    if dry_run:
        if missing:
            raise _not_deleted(missing, ())
        limit = deadline.remaining()
        return rehearse(
            toolkit, lambda by: by.slices.cleanup.end_all(things, by.deadline(limit)).check()
        )
    _confirm(toolkit, requests, force)
    slices = [(request.zone, name) for request in requests for name in request.slices]
    end_watches(toolkit, slices)
    done = toolkit.slices.cleanup.end_all(things, deadline)
    shown = queue_views.deleted(done.names, done.rules)
    if failed := {**done.failed, **missing}:
        for fix in shown.next:
            toolkit.console.suggest(fix)
        raise _not_deleted(failed, done.names)
    return shown


def _find(toolkit: Toolkit, name: str) -> QueuedResource:
    from tpukit.slices.queue_requests import find_queued

    return find_queued(toolkit.cloud.provider, naming.check_request_name(name), toolkit.flags.zone)


def _find_all(
    toolkit: Toolkit, names: Sequence[str]
) -> tuple[list[QueuedResource], dict[str, TpukitError]]:
    """Return the existing requests, and an error for each missing one."""
    requests: list[QueuedResource] = []
    missing: dict[str, TpukitError] = {}
    for name in dict.fromkeys(map(naming.check_request_name, names)):
        try:
            requests.append(_find(toolkit, name))
        except NotFound as error:
            missing[name] = error
    return requests, missing


def _not_deleted(failed: Mapping[str, TpukitError], deleted: Sequence[str]) -> TpukitError:
    from tpukit.access import cleanup

    return cleanup.not_deleted(failed, deleted, things="queued resources", verbs=["queue"])


def _confirm(toolkit: Toolkit, requests: Sequence[QueuedResource], force: bool) -> None:
    """Ask if a request may have slices.

    Without `force`, raises `NotAllowed` if a request or one of its slices has another owner, and
    the error of the API if a slice cannot be read.
    """
    from tpukit.slices.queued import slices_of

    for request in [] if force else requests:
        _check_owner(toolkit, f"queued resource {request.name}", request.labels, requests)
        # The labels of a slice can be changed, so its owner is not always the request's. The slices
        # of a dead request are not deleted with it.
        for slice_ in [] if request.dead else slices_of(toolkit.cloud.provider, request):
            _check_owner(toolkit, f"slice {slice_.name}", slice_.labels, requests)
    shown = ", ".join(
        f"{request.name} ({request.zone}, {request.state}, with {', '.join(request.slices)})"
        for request in requests
        if not request.dead
    )
    if shown:
        toolkit.questions.confirm(f"delete {shown}?")


def _check_owner(
    toolkit: Toolkit, thing: str, labels: Mapping[str, str], requests: Sequence[QueuedResource]
) -> None:
    """Raise `NotAllowed` if the labels name another owner."""
    owner = labels.get(naming.OWNER, "")
    if owner and not naming.is_owner(toolkit.cloud.owner, labels):
        names = [request.name for request in requests]
        yes = ["--yes"] if toolkit.flags.yes else []
        raise NotAllowed(
            f"{thing} belongs to {owner}",
            reason=f"you are {toolkit.cloud.owner}",
            fix=Fix.command("tpukit", "queue", "delete", *names, "--force", *yes),
        )


def _wait_for(queued: QueuedResource) -> Fix:
    return Fix.command("tpukit", "queue", "wait", queued.name, "--zone", queued.zone)

"""`tpukit extend`: change when a slice expires."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from tpukit.cli import confirmation
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import queue_views, slice_views
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound
from tpukit.models import QueuedResource
from tpukit.slices import lifetime
from tpukit.slices.claim import in_use
from tpukit.slices.find import is_pattern
from tpukit.slices.update import Edits, update

Ttl = Annotated[
    str, Option("--ttl", metavar="DURATION|never", help="How long it may live: 90m, 8h, 3d.")
]

_EXAMPLE = Fix(note="for example: --ttl 8h, or --ttl never")


def extend(
    toolkit: Toolkit,
    name: flag.Name,
    ttl: Ttl = "",
    force: confirmation.Force = False,
    timeout: flag.Timeout = "5m",
) -> View:
    """Change how long a slice may live.

    It also claims a slice that --claim-within would delete; without --ttl, that is all. The time
    counts from now and replaces any earlier end, so it can also end the slice sooner. The name of a
    multislice stands for all its slices, a pattern or a label KEY=VALUE for all your slices that
    match. A request that still waits in the queue is made again and loses its place; tpukit asks
    first.

    Examples:
      tpukit extend demo --ttl 8h
      tpukit extend 'exp-*' --ttl 8h
      tpukit extend demo --ttl never
    """
    seconds = None if ttl in ("", "never") else flag.life(ttl, "--ttl")
    deadline = toolkit.deadline(flag.seconds(timeout))
    try:
        slices = toolkit.slices.find_named(name, deadline)
    except NotFound as error:
        if is_pattern(name) or not ttl:
            raise
        request = _waiting(toolkit, name, error)
        return _extend_request(toolkit, request, ttl, seconds, deadline, force=force)
    if not ttl and not any(lifetime.CLAIM in slice_.labels for slice_ in slices):
        raise BadInput("--ttl is missing", why=f"{name} waits for no claim", fix=_EXAMPLE)
    flags = ("--ttl", ttl) if ttl else ()
    confirmation.confirm(toolkit, "extend", slices, force=force, always=False, flags=flags)
    now = toolkit.cloud.provider.now()
    lifetime.check_run(slices, now + (seconds or 0.0))
    end = None if seconds is None else lifetime.moment(now + seconds)
    ends = {lifetime.EXPIRES: end} if ttl else {}
    done = [
        update(
            toolkit.cloud.provider,
            slice_,
            Edits(labels={**in_use(slice_), **ends}, ours=True),
            deadline=deadline,
            on_state=toolkit.display.say_state(slice_.name),
        )
        for slice_ in slices
    ]
    return slice_views.extended([update_.slice for update_ in done], now)


def _waiting(toolkit: Toolkit, name: str, missing: NotFound) -> QueuedResource:
    """Return the request of that name if it still waits for its slices, else raise `missing`."""
    from tpukit.slices.queue_requests import WAITING, find_queued

    try:
        request = find_queued(toolkit.cloud.provider, name, toolkit.flags.zone)
    except NotFound:
        raise missing from None
    if request.state not in WAITING or request.node is None:
        raise missing
    return request


def _extend_request(
    toolkit: Toolkit,
    request: QueuedResource,
    ttl: str,
    seconds: float | None,
    deadline: Deadline,
    *,
    force: bool,
) -> View:
    from tpukit.slices.queue_requests import extend_queued

    what = [request.node] if request.node else []
    confirmation.confirm(toolkit, "extend", what, force=force, always=False, flags=("--ttl", ttl))
    toolkit.questions.confirm(
        f"make queued resource {request.name} again? (The API cannot change it; it loses its place)"
    )
    now = toolkit.cloud.provider.now()
    made = extend_queued(
        toolkit.cloud.provider,
        request,
        "" if seconds is None else lifetime.moment(now + seconds),
        deadline=deadline,
        journal=toolkit.cloud.journal,
        on_state=toolkit.display.say_state(request.name),
        on_fix=toolkit.console.suggest,
    )
    return queue_views.extended(made, now)

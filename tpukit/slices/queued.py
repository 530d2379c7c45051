"""What becomes of queued resources."""

from __future__ import annotations

from contextlib import suppress

from tpukit.clock import Deadline, polls
from tpukit.cloud.provider import SliceProvider
from tpukit.errors import DeadlinePassed, Fix, NotFound, TpukitError
from tpukit.models import QueuedResource, Slice
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState, passing


def slices_of(provider: SliceProvider, request: QueuedResource) -> list[Slice]:
    """Return the slices that a request has yielded and that are there; raise `TpukitError`."""
    found: list[Slice] = []
    for name in request.slices:
        with suppress(NotFound):
            found.append(provider.get(request.zone, name))
    return [each for each in found if each.queued_resource == request.name]


def delete_queued(
    provider: SliceProvider,
    found: QueuedResource,
    *,
    force: bool,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> None:
    """Delete a request, by `force` with its slices; return once the API has it no longer.

    Another one that has its name now, made at another time, is none of it.

    A delete that was accepted and then failed is asked for again until the deadline.

    Raises:
        DeadlinePassed: it still exists.
        TpukitError: the API refused.
    """
    provider, once = provider.within(deadline), provider.within(deadline).once()
    doing = f"delete queued resource {found.name}"
    operation, told = "", ""
    refusal: TpukitError | None = None
    for _ in polls(deadline):
        try:
            state = _state(once, found)
            if state != told:
                told = state
                on_state(state)
            refusal = (operation and once.failure(operation, doing)) or refusal
            if state != "DELETING" and not (operation and not refusal):
                operation = ""
                operation = provider.delete_queued(found.zone, found.name, force=force)
                refusal = None
        except NotFound:
            for name in found.slices:
                journal.record("delete", found.project, found.zone, name)
            return
        except TpukitError as error:
            if not (passing(error) or error.reason.startswith("FAILED_PRECONDITION")):
                raise
            refusal = error
    raise DeadlinePassed(
        f"queued resource {found.name} is not deleted yet",
        why=refusal.summary() if refusal else "",
        exists=(f"queued resource {found.name} in {found.zone}, {told} when last seen",),
        fix=Fix.command("tpukit", "queue", "delete", found.name, "--zone", found.zone),
    )


def _state(provider: SliceProvider, found: QueuedResource) -> str:
    current = provider.get_queued(found.zone, found.name)
    if current.created != found.created:
        raise NotFound(f"queued resource {found.name} is gone, and another one has its name")
    return current.state

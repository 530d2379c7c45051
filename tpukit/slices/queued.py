"""The slices of queued resources, and the deletion of queued resources."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tpukit.clock import Deadline, polls
from tpukit.errors import DeadlinePassed, Fix, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import QueuedResource, Slice
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import OnState, Refusals, in_list, passing, unless_gone

#: Refusals of a delete that is requested again: it is busy, or the next look tells that it is gone.
_REPEATED = ("FAILED_PRECONDITION", "NOT_FOUND")


def slices_of(provider: SliceProvider, request: QueuedResource) -> list[Slice]:
    """Return the existing slices of a request; raise `TpukitError` if one is unreadable."""
    reads = [partial(provider.get, request.zone, name) for name in request.slices]
    slices = [slice_ for slice_ in map(unless_gone, reads, reads) if slice_]
    return [slice_ for slice_ in slices if slice_.queued_resource == request.name]


def name_left(error: TpukitError, name: str, zone: str, *, doubt: bool = False) -> None:
    """Add to an error the request that it leaves in the queue, and how to delete it.

    With `doubt`, it may not exist, because its create was not confirmed.
    """
    delete = Fix.command("tpukit", "queue", "delete", name, "--zone", zone)
    if doubt:
        may = f"queued resource {name} in {zone} may exist: its create was not confirmed"
        then = "then its slices bill until they are deleted, and the same command continues with it"
        error.why = "\n".join(filter(None, [error.why, may, then]))
        error.fix = error.fix or Fix.command("tpukit", "queue", "describe", name, "--zone", zone)
        error.otherwise = delete
        return
    error.exists = (f"queued resource {name} in {zone}; its slices bill until they are deleted",)
    error.fix, error.otherwise = error.fix or delete, delete if error.fix else None


def delete_queued(
    provider: SliceProvider,
    queued: QueuedResource,
    *,
    force: bool,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
    stays: Callable[[QueuedResource], bool] = lambda current: False,
) -> bool:
    """Delete a request, with `force` also its slices; return True when it no longer exists.

    A newer request of the same name stays. If an accepted delete fails, it is requested again until
    the deadline. `stays` gets the request immediately before each delete: if it returns True, the
    request stays, and the result is False.

    Raises:
        DeadlinePassed: it still exists.
        TpukitError: the API refused.
    """
    provider, once = provider.within(deadline), provider.within(deadline).once()
    doing = f"delete queued resource {queued.name}"
    operation, told = "", ""
    refusal: TpukitError | None = None
    refusals = Refusals(deadline)
    for _ in polls(deadline):
        try:
            place = queued.zone, queued.name
            current = unless_gone(
                partial(once.get_queued, *place),
                partial(in_list, once.list_queued, once.get_queued, *place),
            )
            if current is None or current.created != queued.created:
                break  # if it is another one, that request has its name now
            if current.state != told:
                told = current.state
                on_state(told)
            refusal = (operation and once.failure(operation, doing)) or refusal
            refusals.end()
            if told != "DELETING" and not (operation and not refusal):
                operation = ""
                if stays(current):
                    return False
                operation = provider.delete_queued(queued.zone, queued.name, force=force)
                refusal = None
        except TpukitError as error:
            refused = operation and refusals.may_pass(error)
            if not (passing(error) or refused or error.reason.startswith(_REPEATED)):
                name_left(error, queued.name, queued.zone)
                raise
            refusal = error
    else:
        raise DeadlinePassed(
            f"queued resource {queued.name} is not deleted yet",
            why=refusal.summary() if refusal else "",
            exists=(f"queued resource {queued.name} in {queued.zone}, {told} when last seen",),
            fix=Fix.command("tpukit", "queue", "delete", queued.name, "--zone", queued.zone),
        )
    for name in queued.slices:
        journal.record("delete", queued.project, queued.zone, name)
    return True

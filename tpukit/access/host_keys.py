"""The host keys of a slice's workers, as their guest attributes publish them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tpukit.access.os_login import WorkerLogin
from tpukit.clock import Deadline, polls
from tpukit.cloud.provider import SliceProvider
from tpukit.errors import Fix, NotAllowed, SecurityRefusal, TpukitError
from tpukit.models import Slice, WorkerIdentity
from tpukit.remote.connection.target import Target
from tpukit.slices.find import check_still_there

#: Seconds for guest attributes of a slice that is already READY: its agent writes them at boot.
IDENTITY_SECONDS = 120.0
_ACCEPT = Fix(
    note="where an organisation hides guest attributes for good, --accept-new-host-keys takes what "
    "a worker shows first, and holds it to that"
)


def published(
    provider: SliceProvider,
    found: Slice,
    deadline: Deadline,
    chosen: Collection[int] | None = None,
    *,
    pinned: Mapping[int, str] | None = None,
    accept_new: bool = False,
) -> dict[int, WorkerIdentity]:
    """Return the identities that workers have published, by number, once every chosen one has.

    `chosen` are workers by number, None all: nobody waits for the host keys of the others. The
    number of workers is what `networkEndpoints` says. For those that publish none, `pinned` has the
    host keys that were seen before; with `accept_new`, the rest get identities without host keys.

    Raises:
        SliceLost: the slice was preempted meanwhile, or is gone.
        SecurityRefusal: a worker has not published its host keys by the deadline.
        NotAllowed, TpukitError: the guest attributes may not be read.
    """
    wanted = [each.index for each in found.workers if chosen is None or each.index in chosen]
    silent: list[int] = []
    for _ in polls(deadline):
        identities = {each: WorkerIdentity(each, (key,)) for each, key in (pinned or {}).items()}
        try:
            answers = provider.identities(found.zone, found.name)
        except TpukitError as error:
            if not (_forbidden(error) and (accept_new or set(wanted) <= set(identities))):
                error.fix = _ACCEPT if _forbidden(error) else error.fix
                raise
            answers = ()
        identities |= {each.index: each for each in answers if each.host_keys}
        silent = [index for index in wanted if index not in identities]
        if accept_new:
            known = {each.index: each for each in answers}
            silent, rest = [], silent
            identities |= {each: known.get(each, WorkerIdentity(each, ())) for each in rest}
        if wanted and not silent:
            return identities
        check_still_there(provider, found)
    named = ", ".join(map(str, silent)) or "all"
    raise SecurityRefusal(
        f"no host keys from worker {named} of slice {found.name}",
        why="the workers' guest attributes do not hold them yet, or an organisation policy "
        "(constraints/compute.disableGuestAttributesAccess) hides them",
        fix=Fix(note=f"type the same command again in a minute; {_ACCEPT.note}"),
    )


def _forbidden(error: TpukitError) -> bool:
    """Tell whether guest attributes may not be read, rather than that nobody answered."""
    return isinstance(error, NotAllowed) or error.reason.startswith("FAILED_PRECONDITION")


def targets(
    slice_: Slice,
    login: WorkerLogin,
    identities: Mapping[int, WorkerIdentity],
    *,
    internal: bool = False,
) -> dict[int, Target]:
    """Return a target for each worker whose identity is known, by number.

    With `internal`, the addresses are those inside the network.
    """
    return {
        worker.index: Target(
            label=f"{slice_.name} worker {worker.index}",
            worker=worker.index,
            address=worker.internal_address if internal else worker.address,
            port=identity.ssh_port,
            user=login.user,
            host_keys=identity.host_keys,
            hostname=identity.hostname,
            zone=slice_.zone,
            alias=alias(slice_, worker.index),
            accept_new=not identity.host_keys,
            identity_file=login.identity_file,
            internal_address=worker.internal_address,
        )
        for worker in slice_.workers
        if (identity := identities.get(worker.index))
    }


def alias(slice_: Slice, worker: int) -> str:
    """Return the name under which a worker's host keys are pinned for OpenSSH."""
    return f"tpukit.{slice_.project}.{slice_.zone}.{slice_.name}.{worker}".lower()

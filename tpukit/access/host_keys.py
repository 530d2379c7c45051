"""The host keys of a slice's workers, which guest attributes publish."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tpukit.access.os_login import WorkerLogin
from tpukit.clock import Deadline, polls
from tpukit.errors import Fix, NotAllowed, NotFound, SecurityRefusal, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.models import Slice, WorkerIdentity
from tpukit.slices.losses import check_still_there
from tpukit.ssh.target import Target

#: Seconds to wait for the guest attributes of a READY slice; its agent writes them at boot.
IDENTITY_SECONDS = 120.0
_ACCEPT = Fix(
    note="if your organisation hides guest attributes, --accept-new-host-keys trusts a worker's "
    "first host key, and only that key later"
)


def published(
    provider: SliceProvider,
    slice_: Slice,
    deadline: Deadline,
    chosen: Collection[int] | None = None,
    *,
    pinned: Mapping[int, str] | None = None,
    accept_new: bool = False,
) -> dict[int, WorkerIdentity]:
    """Return the published identities of workers by number; wait for those of every chosen one.

    `chosen` are numbers of workers; None means all workers in `networkEndpoints`. `pinned` has
    earlier host keys for workers that publish none. With `accept_new`, the remaining workers get
    identities without host keys. One refusal does not end the wait, nor does NOT_FOUND.

    Raises:
        SliceLost: the slice was preempted or deleted during the wait.
        SecurityRefusal: a chosen worker has not published its host keys by the deadline.
        NotAllowed, TpukitError: the guest attributes may not be read.
    """
    wanted = [worker.index for worker in slice_.workers if chosen is None or worker.index in chosen]
    silent: list[int] = []
    refused = False
    for _ in polls(deadline):
        identities = {
            number: WorkerIdentity(number, (key,)) for number, key in (pinned or {}).items()
        }
        try:
            answers = provider.identities(slice_.zone, slice_.name)
        except TpukitError as error:
            enough = accept_new or set(wanted) <= set(identities)
            first = _forbidden(error) and not refused
            if not (isinstance(error, NotFound) or first or (_forbidden(error) and enough)):
                error.fix = _ACCEPT if _forbidden(error) else error.fix
                raise
            refused, answers = refused or _forbidden(error), ()
        identities |= {answer.index: answer for answer in answers if answer.host_keys}
        silent = [index for index in wanted if index not in identities]
        if accept_new:
            known = {answer.index: answer for answer in answers}
            silent, rest = [], silent
            identities |= {number: known.get(number, WorkerIdentity(number, ())) for number in rest}
        if wanted and not silent:
            return identities
        check_still_there(provider, slice_)
    named = ", ".join(map(str, silent)) or "all"
    raise SecurityRefusal(
        f"no host keys from worker {named} of slice {slice_.name}",
        why="the workers' guest attributes do not have them yet, or an organisation policy "
        "(constraints/compute.disableGuestAttributesAccess) hides them",
        fix=Fix(note=f"run the same command again in a minute; {_ACCEPT.note}"),
    )


def _forbidden(error: TpukitError) -> bool:
    """Return True if reading guest attributes is forbidden, False if the API did not answer."""
    return isinstance(error, NotAllowed) or error.reason.startswith("FAILED_PRECONDITION")


def targets(
    slice_: Slice,
    login: WorkerLogin,
    identities: Mapping[int, WorkerIdentity],
    *,
    internal: bool = False,
) -> dict[int, Target]:
    """Return the targets of the workers with known identities, by number.

    With `internal`, they have internal addresses.
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
    """Return the name of a worker in OpenSSH's file of known hosts."""
    return f"tpukit.{slice_.project}.{slice_.zone}.{slice_.name}.{worker}".lower()

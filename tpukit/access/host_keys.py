"""The host keys of a slice's workers, as their guest attributes publish them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tpukit.clock import Deadline, polls
from tpukit.cloud.provider import SliceProvider
from tpukit.errors import Fix, SecurityRefusal
from tpukit.models import Slice, Worker, WorkerIdentity
from tpukit.remote.connection.target import Target

#: Seconds for guest attributes of a slice that is already READY: its agent writes them at boot.
IDENTITY_SECONDS = 120.0


def published(
    provider: SliceProvider, found: Slice, deadline: Deadline, chosen: Collection[int] | None = None
) -> dict[int, WorkerIdentity]:
    """Return the identities that workers have published, by number, once every chosen one has.

    `chosen` are workers by number, None all: nobody waits for the host keys of the others. The
    number of workers is what `networkEndpoints` says.

    Raises `SecurityRefusal` where a worker has not published its host keys by the deadline.
    """
    wanted = [each.index for each in found.workers if chosen is None or each.index in chosen]
    silent: list[int] = []
    for _ in polls(deadline):
        answers = provider.identities(found.zone, found.name)
        identities = {each.index: each for each in answers if each.host_keys}
        silent = [index for index in wanted if index not in identities]
        if wanted and not silent:
            return identities
    named = ", ".join(map(str, silent)) or "all"
    raise SecurityRefusal(
        f"no host keys from worker {named} of slice {found.name}",
        why="the workers' guest attributes do not hold them yet, or an organisation policy "
        "(constraints/compute.disableGuestAttributesAccess) hides them",
        fix=Fix(note="type the same command again in a minute"),
    )


def targets(
    found: Slice, user: str, identities: Mapping[int, WorkerIdentity], *, internal: bool = False
) -> dict[int, Target]:
    """Return a target for each worker whose identity is known, by number.

    With `internal`, the addresses are those inside the network.
    """
    return {
        each.index: _target(found, user, each, identities[each.index], internal)
        for each in found.workers
        if each.index in identities
    }


def alias(found: Slice, worker: int) -> str:
    """Return the name under which a worker's host keys are pinned for OpenSSH."""
    return f"tpukit.{found.project}.{found.zone}.{found.name}.{worker}".lower()


def _target(
    found: Slice, user: str, worker: Worker, identity: WorkerIdentity, internal: bool
) -> Target:
    return Target(
        label=f"{found.name} worker {worker.index}",
        worker=worker.index,
        address=worker.internal_address if internal else worker.address,
        port=identity.ssh_port,
        user=user,
        host_keys=identity.host_keys,
        hostname=identity.hostname,
        zone=found.zone,
        alias=alias(found, worker.index),
        internal_address=worker.internal_address,
    )

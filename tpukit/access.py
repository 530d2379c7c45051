"""Reach the workers of a slice: pinned host keys, our key in its metadata, a proved connection."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpukit import firewall
from tpukit.clock import Deadline, polls
from tpukit.errors import (
    AuthenticationFailed,
    BadInput,
    DeadlinePassed,
    SecurityRefusal,
    SliceLost,
    TpukitError,
    TransportFailed,
)
from tpukit.models import Slice, Worker, WorkerIdentity
from tpukit.provider import Doubtful, FirewallProvider, SliceProvider
from tpukit.remote.keys import KeyPair
from tpukit.remote.ssh import Connection, Connector, Target
from tpukit.remote.worker import RemoteWorker

#: Seconds of trying after which the firewall rules are looked at, once.
SUSPICION_SECONDS = 8.0
#: Seconds for guest attributes of a slice that is already READY: its agent writes them at boot.
IDENTITY_SECONDS = 120.0


def check_reachable(found: Slice) -> None:
    """Raise unless the slice's state lets its workers answer."""
    if found.lost:
        raise SliceLost(
            f"slice {found.name} is {found.state}: its workers are gone",
            exists=(f"slice {found.name} in {found.zone}, {found.state}; it keeps its quota",),
            fix=f"tpukit delete {found.name} --zone {found.zone}",
        )
    if found.state in ("STOPPED", "STOPPING", "DELETING"):
        fix = f"tpukit start {found.name} --zone {found.zone}" if found.state == "STOPPED" else ""
        raise TpukitError(f"slice {found.name} is {found.state}", fix=fix)
    if not found.workers:
        raise TpukitError(
            f"slice {found.name} is {found.state} and has no workers yet",
            fix=f"tpukit wait {found.name} --zone {found.zone}",
        )


def install_key(
    provider: SliceProvider, found: Slice, user: str, key: KeyPair, deadline: Deadline
) -> bool:
    """Make sure that the slice's metadata admits our key for `user`; return whether it was added.

    The API has no etag, so a key of another user's that is written at the same time can replace
    ours: the metadata is read again right before each write, and after it until the key was seen
    twice, a pause apart. That outlasts whoever had read the metadata before our write.

    Raises:
        AuthenticationFailed: OS Login is on, and no key of the metadata is used.
    """
    _check_login(found, provider.bills)
    line = key_line(user, key)
    if line in _keys(found):
        return False
    seen = 0
    for _ in polls(deadline):
        current = provider.get(found.zone, found.name)
        seen = seen + 1 if line in _keys(current) else 0
        if seen == 2:
            return True
        if not seen:
            _write_key(provider, current, line)
    raise DeadlinePassed(f"the SSH key was not accepted into the metadata of slice {found.name}")


def _check_login(found: Slice, real: bool) -> None:
    # OS Login documentation: where it is on, keys in metadata are not used. The project's metadata
    # can turn it on as well, but not everybody who may use a slice may read that.
    if found.metadata.get("enable-oslogin", "").upper() == "TRUE":
        there = "" if real else 'eval "$(tpukit emulator env)"; '
        raise AuthenticationFailed(
            f"slice {found.name} lets people in by OS Login, which tpukit does not use",
            why="keys in its metadata are not used there",
            fix=f"{there}gcloud compute tpus tpu-vm ssh {found.name} --zone {found.zone} "
            f"--project {found.project}",
        )


def _keys(found: Slice) -> list[str]:
    return found.metadata.get("ssh-keys", "").splitlines()


def _write_key(provider: SliceProvider, current: Slice, line: str) -> None:
    """Ask once, whatever comes of it: the caller looks again before it asks again."""
    merged = {**current.metadata, "ssh-keys": "\n".join([*_keys(current), line])}
    with contextlib.suppress(Doubtful):
        provider.replace_metadata(current.zone, current.name, merged)


def key_line(user: str, key: KeyPair) -> str:
    """Return the entry of the `ssh-keys` metadata: `user:ssh-ed25519 AAAA… comment`."""
    return f"{user}:{key.public}"


def targets(
    provider: SliceProvider, found: Slice, user: str, deadline: Deadline, internal: bool = False
) -> list[Target]:
    """Return one target a worker, with the host keys that its guest attributes publish.

    With `internal`, their addresses are those inside the network. The number of workers is what
    `networkEndpoints` says.

    Raises:
        SecurityRefusal: a worker has not published its host keys by the deadline.
    """
    identities: dict[int, WorkerIdentity] = {}
    silent: list[int] = []
    for _ in polls(deadline):
        identities = {each.index: each for each in provider.identities(found.zone, found.name)}
        silent = [
            worker.index
            for worker in found.workers
            if worker.index not in identities or not identities[worker.index].host_keys
        ]
        if found.workers and not silent:
            return [
                _target(found, user, each, identities[each.index], internal)
                for each in found.workers
            ]
    named = ", ".join(map(str, silent)) or "all"
    raise SecurityRefusal(
        f"no host keys from worker {named} of slice {found.name}",
        why="the workers' guest attributes do not hold them yet, or an organisation policy "
        "(constraints/compute.disableGuestAttributesAccess) hides them",
        fix=f"try again in a minute: tpukit ssh {found.name} --zone {found.zone}",
    )


def alias(found: Slice, worker: int) -> str:
    """Return the name under which a worker's host keys are pinned for OpenSSH."""
    return f"tpukit.{found.project}.{found.zone}.{found.name}.{worker}".lower()


@dataclass(frozen=True)
class Access:
    """Everything that connecting to the workers of one slice needs."""

    slice: Slice
    connector: Connector
    firewall: FirewallProvider
    source_address: Callable[[str], str]

    def connect(self, target: Target, deadline: Deadline) -> Connection:
        """Connect to one worker; where nothing answers, find out whether a firewall rule is
        missing.

        Raises:
            TransportFailed: nothing answered by the deadline, or at once where no rule admits us.
            HostKeyMismatch: the worker is not who its guest attributes say.
        """
        try:
            return self.connector.connect(target, deadline.within(SUSPICION_SECONDS))
        except TransportFailed as error:
            self._raise_missing_rule(target, error)
            if deadline.passed():
                raise
        return self.connector.connect(target, deadline)

    def _raise_missing_rule(self, target: Target, error: TransportFailed) -> None:
        try:
            missing = firewall.missing(
                self.firewall, self.slice, self.source_address(target.address)
            )
        except TpukitError:  # not allowed to read the rules, or our address is unknown
            return
        if missing:
            fix = firewall.apply_command(self.slice)
            raise TransportFailed(error.what, why=missing, fix=fix) from error


def select(workers: Sequence[RemoteWorker], words: str) -> list[RemoteWorker]:
    """Return the workers that `words` selects in each slice.

    Raises `BadInput` for words that select nothing, and for a worker that one of the slices lacks.
    """
    found: list[RemoteWorker] = []
    for name in dict.fromkeys(each.slice for each in workers):
        present = [each for each in workers if each.slice == name]
        chosen = set(parse_workers(words, [each.index for each in present]))
        found += [each for each in present if each.index in chosen]
    return found


def parse_workers(words: str, present: Sequence[int]) -> list[int]:
    """Return the worker numbers that `words` selects out of those `present`."""
    if words == "all":
        return list(present)
    chosen: set[int] = set()
    for part in words.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise BadInput(f"{words!r} does not select workers", fix="--worker all, 0 or 0,2-5")
        chosen |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    absent = sorted(chosen - set(present))
    if absent:
        there = f"0 to {max(present)}" if present else "none"
        raise BadInput(f"there is no worker {absent[0]}", why=f"the slice's workers: {there}")
    return sorted(chosen)


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
    )

"""What the way in, and the main job, work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpukit.access.hints import Hints
from tpukit.access.os_login import OsLogins
from tpukit.access.pinned_keys import PinnedKeys
from tpukit.clock import Clock, Deadline
from tpukit.cloud.provider import FirewallProvider, SliceProvider
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.models import Slice
from tpukit.remote.connection.client import Connector
from tpukit.remote.connection.keys import KeyPair
from tpukit.slices import find
from tpukit.slices.journal import Journal


@dataclass(frozen=True)
class Context:
    """The clouds, the SSH client, and who we are."""

    provider: SliceProvider
    firewall: FirewallProvider
    connector: Connector
    key: KeyPair
    user: str
    source_ranges: tuple[str, ...]  #: as given, else the caller's own address is found out
    source_address: Callable[[str], str]
    clock: Clock
    journal: Journal
    own_addresses: Path  #: of the file with the range that each rule admits, if we found it out
    hints: Hints  #: where slices that are found are remembered
    pinned: PinnedKeys
    route: Sequence[str] = ()  #: the flags of the way in
    internal: bool = False  #: whether workers are reached at their internal addresses
    proxied: bool = False  #: whether they are reached through something that answers for them
    os_logins: OsLogins | None = None
    accept_new: bool = False  #: whether workers that publish no host key are believed once

    def within(self, deadline: Deadline, *, patient: bool = False) -> Context:
        """Return the same, but that all calls of the clouds are over by a deadline.

        With `patient`, they are repeated in an outage until then.
        """
        provider = self.provider.within(deadline, patient=patient)
        firewall = self.firewall.within(deadline, patient=patient)
        logins = self.os_logins.within(deadline) if self.os_logins else None
        return replace(self, provider=provider, firewall=firewall, os_logins=logins)

    def check_reachable(self, found: Slice) -> None:
        """Raise unless the slice's workers can answer, and have the addresses that we go to.

        Raises:
            BadInput: they have no external addresses, and no other route was asked for.
            SliceLost, TpukitError: as `find.check_reachable` raises.
        """
        find.check_reachable(found)
        if self.internal or all(each.external_address for each in found.workers):
            return
        if found.external_addresses:
            raise TpukitError(
                f"the workers of slice {found.name} have no external addresses yet",
                fix=Fix.command("tpukit", "wait", found.name, "--zone", found.zone),
            )
        raise BadInput(
            f"the workers of slice {found.name} have no external addresses",
            fix=Fix(note="add --iap, --jump with what is inside, or --internal-ips from there"),
        )

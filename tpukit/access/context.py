"""The clients and settings for access to workers and for the main job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpukit.access.hints import Hints
from tpukit.access.os_login import OsLogins
from tpukit.access.pinned_keys import PinnedKeys
from tpukit.clock import Clock, Deadline
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.google.provider import FirewallProvider, SliceProvider
from tpukit.models import Slice
from tpukit.slices import losses
from tpukit.slices.journal import Journal
from tpukit.ssh.client import Connector
from tpukit.ssh.keys import KeyPair

if TYPE_CHECKING:
    from tpukit.slices.capacity_memory import CapacityMemory


@dataclass(frozen=True)
class Context:
    """The clients of the APIs and of SSH, our user and key, and the route to workers."""

    provider: SliceProvider
    firewall: FirewallProvider
    connector: Connector
    key: KeyPair
    user: str
    source_ranges: tuple[str, ...]  #: as given; if empty, `source_address` is used
    source_address: Callable[[str], str]
    clock: Clock
    journal: Journal
    capacity: CapacityMemory
    own_addresses: Path  #: a file with this machine's address in each rule, if we found it out
    hints: Hints  #: the recent slices
    pinned: PinnedKeys
    route: Sequence[str] = ()  #: the flags of the route
    internal: bool = False  #: True if connections go to internal addresses
    proxied: bool = False  #: True if connections go through a proxy or another host
    os_logins: OsLogins | None = None
    others: Callable[[], Sequence[SliceProvider]] = tuple  #: of the APIs that settings leave out
    accept_new: bool = False  #: True if a worker's first host key is trusted when none is published

    def within(self, deadline: Deadline, *, patient: bool = False) -> Context:
        """Return the same context with a deadline for all API calls.

        With `patient`, calls are repeated during an outage until then.
        """
        provider = self.provider.within(deadline, patient=patient)
        firewall = self.firewall.within(deadline, patient=patient)
        logins = self.os_logins.within(deadline) if self.os_logins else None
        return replace(self, provider=provider, firewall=firewall, os_logins=logins)

    def check_reachable(self, slice_: Slice) -> None:
        """Raise unless the slice's workers can answer, and have addresses for this route.

        Raises:
            BadInput: they have no external addresses, which this route needs.
            SliceLost, TpukitError: the errors of `losses.check_reachable`.
        """
        losses.check_reachable(slice_)
        if self.internal or all(worker.external_address for worker in slice_.workers):
            return
        if slice_.external_addresses:
            raise TpukitError(
                f"the workers of slice {slice_.name} have no external addresses yet",
                fix=Fix.command("tpukit", "wait", slice_.name, "--zone", slice_.zone),
            )
        raise BadInput(
            f"the workers of slice {slice_.name} have no external addresses",
            fix=Fix(note="add --iap, --jump with a host inside, or --internal-ips from inside"),
        )

"""Whether a firewall may be why nobody answers: looked for only where packets may be dropped."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.clock import Deadline
from tpukit.errors import AuthenticationFailed, Fix, TpukitError, TransportFailed, Unanswered
from tpukit.models import Slice

#: Seconds for which one look at the firewall rules serves all workers.
_FRESH_SECONDS = 30.0


@dataclass(frozen=True)
class Suspicion:
    """Why a firewall may be what keeps packets from coming back: a hint, beside the real error.

    `certain` where no firewall policy of the network or organisation may decide otherwise.
    """

    why: str
    fix: Fix
    certain: bool


def may_be_filtered(error: TransportFailed, proxied: bool) -> bool:
    """Tell whether an error leaves open that packets were dropped.

    Any answer, a reset too, shows that they arrive. Through a proxy nobody can tell.
    """
    through = proxied and not isinstance(error, AuthenticationFailed)
    return through or isinstance(error, Unanswered)


class Suspicions:
    """What the firewall rules of one slice say, read at most every half a minute."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._last: Suspicion | None = None
        self._fresh_until = 0.0
        self._lock = threading.Lock()

    def of(self, found: Slice, address: str, deadline: Deadline) -> Suspicion | None:
        """Return what the rules have to do with it that nobody answers there, where they can."""
        now = self._context.clock.monotonic()
        with self._lock:
            if now >= self._fresh_until:
                self._fresh_until = now + _FRESH_SECONDS
                self._last = self._read(found, address, deadline)
            return self._last

    def _read(self, found: Slice, address: str, deadline: Deadline) -> Suspicion | None:
        context = self._context
        firewall = context.firewall.of(found.network_project).within(deadline)
        try:
            missing = ssh_rule.missing(firewall, found, context.source_address(address))
        except TpukitError:  # not allowed to read the rules, or our address is unknown
            return None
        if not missing:
            return None
        try:
            certain = not firewall.has_policies(found.network or "default")
        except TpukitError:
            certain = False
        return Suspicion(missing, ssh_rule.apply_command(found, context.route), certain)

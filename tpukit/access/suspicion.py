"""Possible causes if workers do not answer: the slice's health, or a missing firewall rule."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import inf

from tpukit.access import ssh_rule
from tpukit.access.context import Context
from tpukit.clock import Deadline
from tpukit.errors import AuthenticationFailed, Fix, TpukitError, TransportFailed, Unanswered
from tpukit.models import Slice

#: Seconds for which one reading of the firewall rules serves all workers.
_FRESH_SECONDS = 30.0


@dataclass(frozen=True)
class Suspicion:
    """A possible cause of the silence, shown with the real error.

    `certain` is True if a firewall rule is missing and no policy of the network or organisation can
    replace it.
    """

    why: str
    fix: Fix
    certain: bool


def may_be_filtered(error: TransportFailed, proxied: bool) -> bool:
    """Return True if a firewall may have dropped packets.

    Any answer, even a reset, shows that packets arrive. Through a proxy we cannot know.
    """
    through = proxied and not isinstance(error, AuthenticationFailed)
    return through or isinstance(error, Unanswered)


class Suspicions:
    """Finds possible causes for the workers of one slice; they share one reading of the rules."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._missing: Suspicion | None = None
        self._read_at = -inf
        self._lock = threading.Lock()

    def of(self, slice_: Slice, address: str, deadline: Deadline, began: float) -> Suspicion | None:
        """Return the slice's bad health or the missing rule for `address` as a cause, or None.

        Without an address, rules are not checked. One reading serves for half a minute, and for
        every search that `began` before it.
        """
        with self._lock:
            now = self._context.clock.monotonic()
            if address and self._read_at < min(began, now - _FRESH_SECONDS):
                self._read_at = now
                self._missing = _missing_rule(self._context, slice_, address, deadline)
            missing = self._missing if address else None
        health = _health(slice_)
        if not health or not missing:
            return health or missing
        first = missing if missing.certain else health  # its fix comes first
        return Suspicion(f"{health.why}; {missing.why}", first.fix, first.certain)


def _health(slice_: Slice) -> Suspicion | None:
    """Return the health of a slice as a possible cause of its silence; None if it is healthy.

    The health proves nothing: under UNHEALTHY_MAINTENANCE, one READY slice was out of reach and
    another worked (docs/reference/real-workers.md).
    """
    if slice_.health in ("", "HEALTHY"):
        return None
    described = f" ({slice_.health_description})" if slice_.health_description else ""
    health = f"{slice_.health}{described}"
    why = f"the API says that the slice is {health}: its workers may be out of reach"
    command = ("tpukit", "wait", slice_.name, "--zone", slice_.zone, "--for", "ssh")
    return Suspicion(why, Fix.command(*command, note="waits until every worker answers"), False)


def _missing_rule(
    context: Context, slice_: Slice, address: str, deadline: Deadline
) -> Suspicion | None:
    firewall = context.firewall.of(slice_.network_project).within(deadline)
    try:
        missing = ssh_rule.missing(firewall, slice_, context.source_address(address))
    except TpukitError:  # not allowed to read the rules, or our address is unknown
        return None
    if not missing:
        return None
    try:
        certain = not firewall.has_policies(slice_.network or "default")
    except TpukitError:
        certain = False
    command = ("tpukit", "firewall", "apply", slice_.name, *context.route, "--zone", slice_.zone)
    return Suspicion(missing, Fix.command(*command), certain)

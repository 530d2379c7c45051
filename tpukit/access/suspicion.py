"""Why nobody answers: the slice's health, or a firewall if packets may have been dropped."""

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
    """A possible cause of the silence: a hint, beside the real error.

    `certain` if a firewall rule is missing that no policy of the network or organisation replaces.
    """

    why: str
    fix: Fix
    certain: bool


def of_health(found: Slice) -> Suspicion | None:
    """Return the health of a slice as a possible cause of its silence; None if it is healthy.

    Under UNHEALTHY_MAINTENANCE a READY slice was seen out of reach, and another at work: the health
    proves neither (docs/reference/real-workers.md).
    """
    if found.health in ("", "HEALTHY"):
        return None
    described = f" ({found.health_description})" if found.health_description else ""
    why = (
        f"the API says that the slice is {found.health}{described}: its workers may be out of reach"
    )
    command = ("tpukit", "wait", found.name, "--zone", found.zone, "--for", "ssh")
    return Suspicion(why, Fix.command(*command, note="waits until every worker answers"), False)


def combined(health: Suspicion | None, rules: Suspicion | None) -> Suspicion | None:
    """Return both as one suspicion; a rule that is certainly missing decides what to do first."""
    if not health or not rules:
        return health or rules
    first = rules if rules.certain else health
    return Suspicion(f"{health.why}; {rules.why}", first.fix, first.certain)


def may_be_filtered(error: TransportFailed, proxied: bool) -> bool:
    """Return True if an error leaves open that packets were dropped.

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

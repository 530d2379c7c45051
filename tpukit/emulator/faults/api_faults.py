"""Faults of the API on request: rules for chosen calls, with counts of the faults served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import inf
from random import Random
from threading import Event
from typing import Any

from tpukit.emulator.core.api_errors import (
    CODES,
    Json,
    Status,
    invalid,
    read_number,
    read_text,
    read_whole,
)
from tpukit.emulator.faults.presets import PRESETS

KINDS = ("status", "operation", "wait", "reset", "stall", "truncate", "unreachable", "roles")
PHASES = ("before", "after")
#: The kinds with a duration, and the methods that some kinds are limited to.
_LASTING = ("stall", "wait")
_CHANGES = (
    *("nodes.create", "nodes.delete", "nodes.start"),
    *("queuedResources.create", "queuedResources.delete"),
    *("instances.insert", "instances.delete", "instances.start"),
    *("instanceGroupManagers.insert", "instanceGroupManagers.delete"),
)
_METHODS = {
    "operation": _CHANGES,
    "wait": ("queuedResources.create", "instances.insert", "instanceGroupManagers.insert"),
    "unreachable": (
        *("nodes.list", "queuedResources.list", "*.list"),
        *("instances.aggregatedList", "instanceGroupManagers.aggregatedList"),
    ),
    "roles": ("*",),
}
#: The kinds that change answers; they make no call fail by their method.
_QUIET = ("unreachable", "roles")
_KEYS = frozenset(
    "preset method name zone accelerator_type phase kind status"  # noqa: SIM905
    " message details http seconds times probability seed permissions".split()
)
#: The longest stall in seconds: Python's threads cannot wait for more than some centuries.
_LONGEST = 1e9
#: A count that no test reaches: a rule with a probability but without `times` never ends.
_ALWAYS = 10**9


@dataclass
class FaultRule:
    """One rule, and how often it matched and was served.

    A fault with phase "after" affects the answer, when the call has been carried out. The kind
    "operation" accepts the call and makes its operation fail; "wait" leaves a queued resource
    without capacity for `seconds`; "unreachable" leaves its zone out of a list of all zones;
    "roles" takes the `permissions` (patterns, separated by blanks) from every caller. A rule with
    an accelerator type applies only to creates that ask for the type.
    """

    method: str
    kind: str
    name: str = "*"
    zone: str = "*"
    accelerator_type: str = "*"
    phase: str = "before"
    status: Status | None = None
    seconds: float = 0.0
    times: int = 1
    probability: float = 1.0
    seed: int = 0
    permissions: str = ""
    matched: int = 0
    served: int = 0
    random: Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def serve(
        self, method: str, name: str, phase: str, zone: str = "", accelerator_type: str = ""
    ) -> bool:
        """Return True if the rule affects this call, and count it."""
        texts = (method, name, zone, accelerator_type)
        patterns = (self.method, self.name, self.zone, self.accelerator_type)
        fits = phase == self.phase and all(map(_fits, texts, patterns))
        fits = fits and self.kind not in _QUIET
        if not fits or self.served >= self.times:
            return False
        self.matched += 1
        if self.random.random() >= self.probability:
            return False
        self.served += 1
        return True

    def silences(self, method: str) -> bool:
        """Return True if the rule leaves its zone out of this list of all zones, and count it."""
        fits = self.kind == "unreachable" and _fits(method, self.method)
        if not fits or self.served >= self.times:
            return False
        self.matched, self.served = self.matched + 1, self.served + 1
        return True

    def document(self) -> Json:
        """Return the rule in the control plane's form."""
        return {
            "method": self.method,
            "name": self.name,
            "zone": self.zone,
            "accelerator_type": self.accelerator_type,
            "phase": self.phase,
            "kind": self.kind,
            **(self.status.operation_error() if self.status else {}),
            **({"seconds": self.seconds} if self.kind in _LASTING else {}),
            **({"permissions": self.permissions} if self.permissions else {}),
            "times": None if self.times == _ALWAYS else self.times,
            "probability": self.probability,
            "seed": self.seed,
            "matched": self.matched,
            "served": self.served,
        }


class ApiFaults:
    """The rules in force; the first rule that fits a call affects it."""

    def __init__(self) -> None:
        self._rules: list[FaultRule] = []
        self._stalls = Event()  #: set to end the present stalls

    def add(self, documents: Sequence[Json]) -> None:
        """Add rules, all or none."""
        self._rules += [parse_rule(document) for document in documents]

    def clear(self) -> None:
        self._rules = []

    def stall(self, seconds: float) -> bool:
        """Wait in real time; return True if `end_stalls` was called meanwhile."""
        return self._stalls.wait(seconds)

    def end_stalls(self) -> None:
        self._stalls.set()
        self._stalls = Event()

    def take(
        self, method: str, name: str, phase: str, zone: str = "", accelerator_type: str = ""
    ) -> FaultRule | None:
        call = method, name, phase, zone, accelerator_type
        return next((rule for rule in self._rules if rule.serve(*call)), None)

    def silent(self, method: str) -> tuple[str, ...]:
        """Return the zones to leave out of this list of all zones, and count their rules."""
        return tuple(rule.zone for rule in self._rules if rule.silences(method))

    def denied(self) -> tuple[str, ...]:
        """Return the patterns of the permissions that no caller has; rules last until cleared."""
        roles = [rule for rule in self._rules if rule.kind == "roles"]
        return tuple(pattern for rule in roles for pattern in rule.permissions.split())

    def documents(self) -> list[Json]:
        return [rule.document() for rule in self._rules]


def _fits(text: str, patterns: str) -> bool:
    """Return True if a text matches one of several patterns, separated by blanks."""
    return any(fnmatchcase(text, pattern) for pattern in patterns.split() or [""])


def parse_rule(document: Any) -> FaultRule:
    """Return the rule that a JSON object describes; raise `ApiError` if it can never apply."""
    if not isinstance(document, dict) or document.keys() - _KEYS:
        raise invalid(f"A fault is an object with keys of {', '.join(sorted(_KEYS))}.")
    preset = PRESETS.get(read_text(document, "preset", ""))
    if "preset" in document and preset is None:
        raise invalid(f"The presets are {', '.join(PRESETS)}.")
    kind = read_text(document, "kind", preset.kind if preset else "status")
    unlimited = "probability" in document or kind == "roles"
    rule = FaultRule(
        method=read_text(document, "method", preset.method if preset else "*"),
        kind=kind,
        name=read_text(document, "name", "*"),
        zone=read_text(document, "zone", "*"),
        accelerator_type=read_text(document, "accelerator_type", "*"),
        phase=read_text(document, "phase", "after" if kind == "truncate" else "before"),
        status=preset.status if preset else _status(document, kind),
        seconds=read_number(document, "seconds", 0),
        times=read_whole(document, "times", _ALWAYS if unlimited else 1, least=1),
        probability=read_number(document, "probability", 1, most=1),
        seed=read_whole(document, "seed", 0, least=-inf),
        permissions=read_text(document, "permissions", ""),
    )
    _check(rule)
    return rule


def _check(rule: FaultRule) -> None:
    if rule.kind not in KINDS or rule.phase not in PHASES:
        raise invalid(f"A fault's kind is one of {', '.join(KINDS)}; its phase before or after.")
    methods = _METHODS.get(rule.kind)
    if methods and (not {*rule.method.split()} <= {*methods} or rule.phase != "before"):
        raise invalid(
            f"A fault of kind {rule.kind} belongs to {' or '.join(methods)}, phase before."
        )
    if rule.kind == "unreachable" and rule.zone == "*":
        raise invalid("A fault of kind unreachable needs its zone.")
    if (rule.kind == "roles") != bool(rule.permissions.split()):
        raise invalid("A fault of kind roles, and no other one, needs permissions.")
    if rule.kind == "truncate" and rule.phase != "after":
        raise invalid("An answer can be truncated only after the call.")
    if rule.kind in _LASTING and not 0 < rule.seconds <= _LONGEST:
        raise invalid(f"A {rule.kind} needs its seconds, {_LONGEST:.0f} at most.")


def _status(document: Json, kind: str) -> Status | None:
    if kind not in ("status", "operation"):
        return None
    name = read_text(document, "status", "UNAVAILABLE")
    details, http = document.get("details", []), read_whole(document, "http", 0)
    if name not in CODES:
        raise invalid(f"A status is one of {', '.join(CODES)}.")
    if not isinstance(details, list) or not all(isinstance(detail, dict) for detail in details):
        raise invalid("details must be a list of objects.")
    if http and not 400 <= http <= 599:
        raise invalid("http must be the status of an error, from 400 to 599.")
    message = read_text(document, "message", "The service is currently unavailable.")
    return Status(name, message, tuple(details), http)

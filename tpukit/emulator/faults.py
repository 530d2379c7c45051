"""Faults on request: rules that spoil chosen calls, and the count of what was really served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import Any

from tpukit.emulator.errors import CODES, Json, Status, invalid
from tpukit.emulator.presets import PRESETS

KINDS = ("status", "operation", "reset", "stall", "truncate")
PHASES = ("before", "after")
_KEYS = frozenset(
    "preset method name phase kind status message details"  # noqa: SIM905
    " http seconds times probability seed".split()
)
#: A count no test gets to: a rule with a probability and no `times` goes on.
_ALWAYS = 10**9


@dataclass
class Rule:
    """One rule and its account.

    `phase` says whether the call has been carried out when the fault strikes; an "operation" fault
    lets a create be accepted and its operation fail.
    """

    method: str
    kind: str
    name: str = "*"
    phase: str = "before"
    status: Status | None = None
    seconds: float = 0.0
    times: int = 1
    probability: float = 1.0
    seed: int = 0
    matched: int = 0
    served: int = 0
    random: Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def strikes(self, method: str, name: str, phase: str) -> bool:
        """Return whether the rule applies to this call now, and account for it."""
        fits = phase == self.phase and fnmatchcase(method, self.method)
        if not fits or not fnmatchcase(name, self.name) or self.served >= self.times:
            return False
        self.matched += 1
        if self.random.random() >= self.probability:
            return False
        self.served += 1
        return True

    def document(self) -> Json:
        """Return the rule as the control plane shows it."""
        return {
            "method": self.method,
            "name": self.name,
            "phase": self.phase,
            "kind": self.kind,
            **(self.status.operation_error() if self.status else {}),
            **({"seconds": self.seconds} if self.kind == "stall" else {}),
            "times": None if self.times == _ALWAYS else self.times,
            "probability": self.probability,
            "seed": self.seed,
            "matched": self.matched,
            "served": self.served,
        }


class Faults:
    """The rules in force; the first one that strikes a call is served."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, documents: Sequence[Json]) -> None:
        """Add rules, all or none."""
        self._rules += [parse_rule(document) for document in documents]

    def clear(self) -> None:
        self._rules = []

    def take(self, method: str, name: str, phase: str) -> Rule | None:
        return next((rule for rule in self._rules if rule.strikes(method, name, phase)), None)

    def documents(self) -> list[Json]:
        return [rule.document() for rule in self._rules]


def parse_rule(document: Any) -> Rule:
    """Return the rule that a JSON object describes; raise for one that could never be served."""
    if not isinstance(document, dict) or document.keys() - _KEYS:
        raise invalid(f"A fault is an object with keys of {', '.join(sorted(_KEYS))}.")
    preset = PRESETS.get(document.get("preset", ""))
    if "preset" in document and preset is None:
        raise invalid(f"The presets are {', '.join(PRESETS)}.")
    kind = str(document.get("kind", preset.kind if preset else "status"))
    unlimited = "probability" in document
    rule = Rule(
        method=str(document.get("method", preset.method if preset else "*")),
        kind=kind,
        name=str(document.get("name", "*")),
        phase=str(document.get("phase", "after" if kind == "truncate" else "before")),
        status=preset.status if preset else _status(document, kind),
        seconds=float(_number(document, "seconds", 0)),
        times=int(_number(document, "times", _ALWAYS if unlimited else 1)),
        probability=float(_number(document, "probability", 1)),
        seed=int(_number(document, "seed", 0)),
    )
    _check(rule)
    return rule


def _check(rule: Rule) -> None:
    if rule.kind not in KINDS or rule.phase not in PHASES:
        raise invalid(f"A fault's kind is one of {', '.join(KINDS)}; its phase before or after.")
    if rule.kind == "operation" and (rule.method, rule.phase) != ("nodes.create", "before"):
        raise invalid("An operation fault belongs to nodes.create, phase before.")
    if rule.kind == "truncate" and rule.phase != "after":
        raise invalid("An answer can be truncated only after the call.")
    if rule.kind == "stall" and rule.seconds <= 0:
        raise invalid("A stall needs its seconds.")
    if not 0 <= rule.probability <= 1 or rule.times < 1:
        raise invalid("A probability is between 0 and 1, and times at least 1.")


def _status(document: Json, kind: str) -> Status | None:
    if kind not in ("status", "operation"):
        return None
    name = str(document.get("status", "UNAVAILABLE"))
    details = document.get("details", [])
    if name not in CODES or not isinstance(details, list):
        raise invalid(f"A status is one of {', '.join(CODES)}; details are a list.")
    message = str(document.get("message", "The service is currently unavailable."))
    return Status(name, message, tuple(details), int(_number(document, "http", 0)))


def _number(document: Json, key: str, default: float) -> float:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(f"{key} must be a number.")
    return value

"""A scenario: the faults of a whole story, and what befalls nodes once they are READY."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import isfinite
from typing import Any

from tpukit.emulator import faults, worker_faults
from tpukit.emulator.errors import Json, invalid

#: What can befall a node: `Node.Health` of the Cloud TPU API beside the two ends of a spot slice.
ENDS = ("preempt", "vanish")
HEALTHS = (
    "HEALTHY",
    "TIMEOUT",
    "UNHEALTHY_TENSORFLOW",
    "UNHEALTHY_MAINTENANCE",
)
_KEYS = frozenset({"title", "create_seconds", "faults", "workers", "events"})
_EVENT_KEYS = frozenset({"node", "after", "do", "times"})


@dataclass
class Event:
    """`do` befalls the first `times` nodes that fit, `after` seconds after each was READY."""

    node: str
    do: str  #: one of `ENDS`, or a health
    after: float = 0.0
    times: int = 1
    #: Nodes that fit, by name and id, and when they became READY.
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    served: set[tuple[str, str]] = field(default_factory=set)

    def due(self, nodes: Mapping[str, Json], now: float) -> list[str]:
        """Return the nodes that it befalls now, and account for them."""
        for name, record in nodes.items():
            place = name, str(record["node"].get("id", ""))
            fits = fnmatchcase(name.rsplit("/", 1)[-1], self.node)
            room = place in self.ready or len(self.ready) < self.times
            if fits and room and record["node"]["state"] == "READY":
                self.ready.setdefault(place, now)
        struck = [
            place
            for place, since in self.ready.items()
            if place not in self.served and now >= since + self.after
        ]
        self.served.update(struck)
        return [name for name, _ in struck if name in nodes]

    def document(self) -> Json:
        """Return the event as the control plane shows it."""
        return {
            "node": self.node,
            "do": self.do,
            "after": self.after,
            "times": self.times,
            "served": len(self.served),
        }


@dataclass(frozen=True)
class Scenario:
    """A story, checked but not begun."""

    faults: Sequence[Json] = ()
    workers: Sequence[Json] = ()
    events: Sequence[Event] = ()


def parse_scenario(document: Any) -> Scenario:
    """Return the scenario that a JSON object describes; raise for one that could not be played."""
    if not isinstance(document, dict) or document.keys() - _KEYS:
        raise invalid(f"A scenario is an object with keys of {', '.join(sorted(_KEYS))}.")
    _seconds(document, "create_seconds")
    rules, workers, events = (_list(document, name) for name in ("faults", "workers", "events"))
    for rule in rules:
        faults.parse_rule(rule)
    for rule in workers:
        worker_faults.parse_rule(rule)
    return Scenario(rules, workers, [parse_event(event) for event in events])


def parse_event(document: Any) -> Event:
    if not isinstance(document, dict) or document.keys() - _EVENT_KEYS:
        raise invalid(f"An event is an object with keys of {', '.join(sorted(_EVENT_KEYS))}.")
    do, times, after = document.get("do"), document.get("times", 1), _seconds(document, "after")
    if do not in (*ENDS, *HEALTHS):
        raise invalid(f"What an event does is one of {', '.join((*ENDS, *HEALTHS))}.")
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise invalid("times must be a whole number, 1 at least.")
    return Event(str(document.get("node", "*")), do, after, times)


def _seconds(document: Json, name: str) -> float:
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise invalid(f"{name} must be a number of seconds.")
    if value < 0:
        raise invalid(f"{name} must not be negative.")
    return float(value)


def _list(document: Json, name: str) -> list[Json]:
    found = document.get(name, [])
    if not isinstance(found, list):
        raise invalid(f"{name} must be a list.")
    return found

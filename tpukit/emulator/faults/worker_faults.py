"""Faults of workers on request: the rules in force, with counts of the faults served.

Workers ask for rules at every connection, and the service refreshes workers when a rule changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tpukit.emulator.core.api_errors import Json, invalid, is_whole, read_number, read_text

#: The kinds of faults, and their effects.
KINDS: Mapping[str, str] = {
    "dead": "packets are dropped and nothing runs; it comes back as after a reboot",
    "frozen": "connections are accepted and nothing answers, every process stands still",
    "refusing": "connections are refused, those that exist are reset",
    "slow": "new connections carry --rate bytes a second",
    "cut": "new connections are reset after --bytes bytes",
    "late-key": "keys of the metadata are not accepted yet",
    "swapped-host-key": "another host key than the one in the guest attributes",
    "reused-address": "a new slice gets the addresses of the one deleted last, with new host keys",
    "apt-lock": "another process holds the package lock",
    "disk-full": "no space is left in the home folder and for temporary files",
    "hostile-output": "commands and the login banner send escape sequences and markup",
    "missing-device": "commands find one device less",
    "wrong-device": "a float32 matrix that JAX reads from --device has one wrong bit",
    "slow-device": "a computation of JAX on --device takes a fifth longer than on the others",
}
#: The kinds that affect the devices of each new command.
DEVICE_KINDS = ("missing-device", "wrong-device", "slow-device")
_KEYS = frozenset({"node", "worker", "fault", "seconds", "times", "bytes", "rate", "device"})
#: A count that nothing reaches: the rule applies until it is cleared.
_ALWAYS = 10**9

Place = tuple[str, int]  #: full name of the node, index of the worker


@dataclass
class WorkerFault:
    """One rule for the workers of `node`, for `seconds` from its first use on each worker.

    `served` counts connections, offered keys, commands or addresses. For the kinds dead, refusing
    and apt-lock it counts workers.
    """

    kind: str
    node: str = "*"
    worker: int | None = None
    seconds: float = 0.0
    times: int = _ALWAYS
    bytes: int = 0
    rate: int = 0
    device: int = 0
    served: int = 0
    since: dict[Place, float] = field(default_factory=dict)

    def applies(self, place: Place, now: float) -> bool:
        """Return True if the rule is in force there; the first call starts its time."""
        name, index = place
        fits = fnmatchcase(name.rsplit("/", 1)[-1], self.node) or fnmatchcase(name, self.node)
        if not fits or self.worker not in (None, index) or self.served >= self.times:
            return False
        began = self.since.setdefault(place, now)
        return not self.seconds or now < began + self.seconds

    def document(self) -> Json:
        """Return the rule in the control plane's form."""
        return {
            "node": self.node,
            "worker": self.worker,
            "fault": self.kind,
            "seconds": self.seconds or None,
            "times": None if self.times == _ALWAYS else self.times,
            **({"bytes": self.bytes} if self.kind == "cut" else {}),
            **({"rate": self.rate} if self.kind == "slow" else {}),
            **({"device": self.device} if self.kind in DEVICE_KINDS else {}),
            "served": self.served,
        }


class WorkerFaults:
    """The rules in force. Safe to call from any thread; `now` is the emulator's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._rules: list[WorkerFault] = []
        self._applied: list[list[Place]] = []

    def add(self, documents: Sequence[Json]) -> None:
        """Add rules, all or none."""
        rules = [parse_rule(document) for document in documents]
        with self._lock:
            self._rules = [*self._rules, *rules]

    def clear(self, node: str = "*", worker: int | None = None) -> None:
        """Remove the rules with exactly this node pattern and worker; "*" and None mean all."""
        with self._lock:
            self._rules = [
                rule
                for rule in self._rules
                if node not in ("*", rule.node) or worker not in (None, rule.worker)
            ]

    def find(self, place: Place, kind: str) -> WorkerFault | None:
        """Return the rule of a kind that is in force at a place, or None."""
        with self._lock:
            return self._find(place, kind)

    def take(self, place: Place, kind: str) -> WorkerFault | None:
        """Return the rule of a kind that is in force at a place, and count it, or None."""
        with self._lock:
            rule = self._find(place, kind)
            if rule:
                rule.served += 1
            return rule

    def changed(self) -> bool:
        """Return True if a rule started or stopped to apply since the last call."""
        with self._lock:
            now = self._now()
            applied = [
                [place for place in rule.since if rule.applies(place, now)] for rule in self._rules
            ]
            before, self._applied = self._applied, applied
            return before != applied

    def restart(self, place: Place) -> None:
        """Start the time of every rule again at a place, for a new worker."""
        with self._lock:
            for rule in self._rules:
                rule.since.pop(place, None)

    def documents(self) -> list[Json]:
        with self._lock:
            return [rule.document() for rule in self._rules]

    def _find(self, place: Place, kind: str) -> WorkerFault | None:
        now = self._now()
        return next((r for r in self._rules if r.kind == kind and r.applies(place, now)), None)


def parse_rule(document: Any) -> WorkerFault:
    """Return the rule that a JSON object describes; raise `ApiError` if it is bad."""
    if not isinstance(document, dict) or document.keys() - _KEYS:
        raise invalid(f"A worker's fault is an object with keys of {', '.join(sorted(_KEYS))}.")
    kind = read_text(document, "fault", "")
    if kind not in KINDS:
        raise invalid(f"A worker's fault is one of {', '.join(KINDS)}.")
    worker = document.get("worker")
    if worker is not None and not is_whole(worker):
        raise invalid("worker must be a number, or null for every worker.")
    given = {key: value for key, value in document.items() if value is not None}
    return WorkerFault(
        kind=kind,
        node=read_text(document, "node", "*"),
        worker=worker,
        seconds=read_number(given, "seconds", 0),
        times=int(read_number(given, "times", _ALWAYS, least=1)),
        bytes=int(read_number(given, "bytes", 10_000)),
        rate=int(read_number(given, "rate", 10_000, least=1)),
        device=int(read_number(given, "device", 0)),
    )

"""The emulator's own methods: faults, clock, preemption, status, request log."""

from __future__ import annotations

from collections import Counter, deque
from math import isfinite

from tpukit.emulator.context import Call
from tpukit.emulator.errors import Json, invalid
from tpukit.emulator.faults import Faults
from tpukit.emulator.presets import PRESETS
from tpukit.emulator.service import Service

#: Requests that the log remembers.
LOGGED = 1000


class Control:
    """What a user does to the emulated world from outside of it."""

    def __init__(self, service: Service, faults: Faults) -> None:
        self._service = service
        self._faults = faults
        self.log: deque[Json] = deque(maxlen=LOGGED)

    def add_faults(self, call: Call) -> Json:
        """Add `{"faults": [rule, …]}` or one rule."""
        documents = call.body.get("faults", [call.body])
        if not isinstance(documents, list):
            raise invalid("faults must be a list.")
        self._faults.add(documents)
        return self.list_faults(call)

    def list_faults(self, call: Call) -> Json:
        """Return every rule with the number of times it was served."""
        return {"faults": self._faults.documents(), "presets": list(PRESETS)}

    def clear_faults(self, call: Call) -> Json:
        """Drop the rules; the answer is their last account."""
        account = self.list_faults(call)
        self._faults.clear()
        return account

    def advance_clock(self, call: Call) -> Json:
        seconds = call.body.get("advance")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise invalid("advance must be a number of seconds.")
        if not 0 <= seconds <= 10**9 or not isfinite(seconds):
            raise invalid("advance must be a number of seconds from 0 to a thousand million.")
        self._service.advance_clock(seconds)
        return {"time": self._service.context.stamp()}

    def preempt(self, call: Call) -> Json:
        return self._service.nodes.preempt(call.path["path"])

    def status(self, call: Call) -> Json:
        context = self._service.context
        records = context.state.nodes.values()
        return {
            "time": context.stamp(),
            "create_seconds": context.timing.create,
            "nodes": dict(Counter(record["node"]["state"] for record in records)),
            "workers": sum(len(record["workers"]) for record in records),
            "firewalls": len(context.state.firewalls),
            "faults": len(self._faults.documents()),
        }

    def show_log(self, call: Call) -> Json:
        """Return the last requests, the oldest first."""
        return {"requests": list(self.log)}

"""The emulator's own methods: faults, clock, preemption, status, request log."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict

from tpukit.emulator.api.service import Service
from tpukit.emulator.core.api_errors import Json, invalid, not_found, read_number
from tpukit.emulator.core.emulator_clock import LATEST, parse_timestamp, timestamp
from tpukit.emulator.core.service_context import Call, Timing
from tpukit.emulator.faults.api_faults import ApiFaults
from tpukit.emulator.faults.presets import PRESETS
from tpukit.emulator.faults.scenario import HEALTHS, parse_scenario

#: The number of requests in the log.
LOGGED = 1000
#: The number of faults and events, with the used-up ones, which remain as a record.
MOST_FAULTS = 1000
#: Bounds of the clock: seconds of one step, and its speed.
_FARTHEST, _FASTEST = 1e9, 1e6


class ControlPlane:
    """The methods by which a user controls the emulator itself."""

    def __init__(self, service: Service, faults: ApiFaults) -> None:
        self._service = service
        self._faults = faults
        self.log: deque[Json] = deque(maxlen=LOGGED)

    def add_faults(self, call: Call) -> Json:
        """Add `{"faults": [rule, …]}` or one rule."""
        documents = call.body.get("faults", [call.body])
        if not isinstance(documents, list):
            raise invalid("faults must be a list.")
        self._make_sure_of_room(call, len(documents))
        self._faults.add(documents)
        return self.list_faults(call)

    def list_faults(self, call: Call) -> Json:
        """Return every rule with the number of times it was served."""
        return {
            "faults": self._faults.documents(),
            "workers": self._service.worker_faults.documents(),
            "events": [event.document() for event in self._service.events],
            "presets": list(PRESETS),
        }

    def clear_faults(self, call: Call) -> Json:
        """Remove all rules of all kinds, and return their last counts."""
        account = self.list_faults(call)
        self._faults.clear()
        self._service.events.clear()
        self._service.worker_faults.clear()
        self._service.advance()
        return account

    def play(self, call: Call) -> Json:
        """Add all faults and events of a scenario, or none if one of them is bad."""
        scenario = parse_scenario(call.body)
        added = scenario.faults, scenario.workers, scenario.events
        self._make_sure_of_room(call, sum(map(len, added)))
        self._faults.add(scenario.faults)
        self._service.worker_faults.add(scenario.workers)
        self._service.events.extend(scenario.events)
        if scenario.create_seconds is not None:
            self._service.context.timing = Timing.for_create(scenario.create_seconds)
        self._service.advance()
        return self.list_faults(call)

    def _make_sure_of_room(self, call: Call, more: int) -> None:
        """Raise `ApiError` if there is no room for `more`: only the user removes old rules."""
        account = self.list_faults(call)
        if sum(len(account[kind]) for kind in ("faults", "workers", "events")) + more > MOST_FAULTS:
            raise invalid(
                f"The emulator keeps at most {MOST_FAULTS} faults, with the used-up ones: "
                "`tpukit emulator fault clear` prints their counts and removes them."
            )

    def add_worker_fault(self, call: Call) -> Json:
        """Add a fault of workers, which is in force when the answer comes."""
        self._make_sure_of_room(call, 1)
        self._service.worker_faults.add([call.body])
        self._service.advance()
        return self.list_faults(call)

    def clear_worker_faults(self, call: Call) -> Json:
        """Remove the workers' rules with one node pattern, or those of one of its workers."""
        account = self.list_faults(call)
        worker = call.query.get("worker", "")
        if worker and not worker.isdecimal():
            raise invalid("worker must be a number.")
        number = int(worker) if worker else None
        self._service.worker_faults.clear(call.query.get("node", "*"), number)
        self._service.advance()
        return account

    def show_clock(self, call: Call) -> Json:
        clock = self._service.context.clock
        return {"time": timestamp(clock.time()), "speed": clock.speed}

    def change_clock(self, call: Call) -> Json:
        """Apply `{"advance": seconds}`, `{"set": time}`, `{"speed": factor}`, or several of them.

        `set` is an RFC 3339 text, not in the clock's past. Speed 0 stops the clock.
        """
        clock = self._service.context.clock
        if call.body.keys() - {"advance", "set", "speed"} or not call.body:
            raise invalid("Change the clock with advance, set or speed.")
        steps = read_number(call.body, "advance", 0, most=_FARTHEST)
        speed = read_number(call.body, "speed", clock.speed, most=_FASTEST)
        target = _time(call.body["set"], clock.time()) if "set" in call.body else None
        if max(clock.time(), target or 0.0) + steps >= LATEST:
            raise invalid("The clock ends with the year 8999.")
        if speed != clock.speed:
            clock.speed = speed
        if target is not None:
            steps += max(0.0, target - clock.time())
        self._service.advance_clock(steps)
        return self.show_clock(call)

    def change_timing(self, call: Call) -> Json:
        """Apply `{"realistic": true}` or `{"create_seconds": n}`, which scales all times."""
        body, context = call.body, self._service.context
        if body == {"realistic": True}:
            context.timing = Timing.realistic()
        elif body.keys() == {"create_seconds"}:
            seconds = read_number(body, "create_seconds", 0, most=_FARTHEST)
            context.timing = Timing.for_create(seconds)
        else:
            raise invalid("Give either realistic: true or create_seconds.")
        return asdict(context.timing)

    def preempt(self, call: Call) -> Json:
        """Preempt a node, or make it vanish with `{"vanish": true}`; return the node."""
        name = self._node(call.path["path"])
        node = self._view(name)
        self._service.apply_event(name, "vanish" if call.body.get("vanish") is True else "preempt")
        return self._view(name) if not call.body.get("vanish") else node

    def set_health(self, call: Call) -> Json:
        name, health = self._node(call.path["path"]), call.body.get("health")
        if health not in HEALTHS:
            raise invalid(f"A health is one of {', '.join(HEALTHS)}.")
        self._service.apply_event(name, health)
        return self._view(name)

    def _view(self, name: str) -> Json:
        """Return a node, or an instance with its status as `state` too."""
        if name in self._service.node_store:
            return self._service.node_store.view(name)
        instance = self._service.instances.view(name)
        return {**instance, "state": instance["status"]}

    def _node(self, text: str) -> str:
        """Return the full name of a node or an instance, given it or a short one of only one.

        The name of a managed instance group means its first instance.
        """
        state = self._service.context.state
        names = [*state.nodes, *state.instances]
        ends = (f"/nodes/{text}", f"/instances/{text}")
        matches = [text] if text in names else [name for name in names if name.endswith(ends)]
        matches = matches or list(filter(None, [self._service.groups.first_instance(text)]))
        if not matches:
            raise not_found(text)
        if len(matches) > 1:
            raise invalid(f"Several nodes have this name: {', '.join(matches)}")
        return matches[0]

    def set_state(self, call: Call) -> Json:
        """Put a node in a state of the API."""
        name, state = self._node(call.path["path"]), str(call.body.get("state"))
        known = self._service.store_of(name).states
        if state not in known:
            raise invalid(f"A state is one of {', '.join(known)}.")
        self._service.apply_event(name, state)
        return self._view(name)

    def reset(self, call: Call) -> Json:
        """Remove all resources, faults and log entries, and reset the clock and the times."""
        self._faults.clear()
        self._faults.end_stalls()
        self._service.reset()
        self.log.clear()
        return self.status(call)

    def status(self, call: Call) -> Json:
        context = self._service.context
        records, requests = context.state.nodes.values(), context.state.queued_resources.values()
        instances = context.state.instances.values()
        return {
            "time": context.stamp(),
            "speed": context.clock.speed,
            "create_seconds": context.timing.create,
            "operation_metadata": context.operation_metadata,
            "nodes": dict(Counter(record["node"]["state"] for record in records)),
            "queued_resources": dict(Counter(record["state"] for record in requests)),
            "instances": dict(Counter(i["instance"]["status"] for i in instances)),
            "workers": sum(len(record["workers"]) for record in [*records, *instances]),
            "firewalls": len(context.state.firewalls),
            "faults": len(self._faults.documents()),
        }

    def show_log(self, call: Call) -> Json:
        """Return the last requests, the oldest first."""
        return {"requests": list(self.log)}


def _time(text: object, now: float) -> float:
    """Return a time given as RFC 3339 text, in seconds since the epoch."""
    try:
        seconds = parse_timestamp(text) if isinstance(text, str) else -1.0
    except ValueError:
        seconds = -1.0
    if not now <= seconds <= now + _FARTHEST:
        raise invalid("set must be a time like 2030-01-01T00:00:00Z, and not in the clock's past.")
    return seconds

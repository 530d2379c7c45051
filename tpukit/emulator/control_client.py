"""A client of the emulator's control plane, which is plain HTTP with a bearer token."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote, urlencode

from tpukit.emulator.core.places import PROJECT
from tpukit.errors import BadInput, NotFound, TpukitError
from tpukit.text import one_line

Json = dict[str, Any]

#: Path and version of the control plane.
CONTROL = "/_emulator/v1"

_SECONDS = 30.0  #: limit of an answer; only a fault on a slow machine takes more than 1 s


class EmulatorClient:
    """A client that adds faults, moves the clock and reads the log of one running emulator."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.strip().rstrip("/")  # variables for gcloud end in a slash
        self.token = token.strip()

    def status(self) -> Json:
        """Return the time, the speed of the clock, and the number of resources of each kind."""
        return self.call("GET", "status")

    def log(self) -> list[Json]:
        """Return the served requests, the oldest first."""
        return list(self.call("GET", "log")["requests"])

    def faults(self) -> Json:
        """Return the rules with their counts (`faults`, `workers`, `events`) and the `presets`."""
        return self.call("GET", "faults")

    def add_fault(self, rule: Mapping[str, Any]) -> Json:
        """Add a fault of the API; raise `BadInput` for a rule that can never apply."""
        return self.call("POST", "faults", rule)

    def clear_faults(self) -> Json:
        """Remove all rules of all kinds, and return their last counts."""
        return self.call("DELETE", "faults")

    def add_worker_fault(self, rule: Mapping[str, Any]) -> Json:
        """Add a fault of workers, which is in force on return."""
        return self.call("POST", "workers", rule)

    def clear_worker_faults(self, node: str = "*", worker: int | None = None) -> Json:
        """Remove the workers' rules with exactly this node and worker; return their counts."""
        query = {"node": node, **({} if worker is None else {"worker": worker})}
        return self.call("DELETE", f"workers?{urlencode(query)}")

    def play(self, scenario: Mapping[str, Any]) -> Json:
        """Start a scenario."""
        return self.call("POST", "scenario", scenario)

    def move_clock(self, **change: float) -> Json:
        """Change the emulator's clock: `advance` it by seconds, or set its `speed` (1 is real)."""
        return self.call("POST", "clock", change)

    def take_realistic_times(self) -> None:
        """Let every change take as long as it does on the real service."""
        self.call("POST", "timing", {"realistic": True})

    def grpc_addresses(self) -> dict[str, str]:
        """Return host and port of the open gRPC listeners, by `grpc` and `grpc_tls`."""
        answer = self.call("GET", "grpc")
        names = {"plain": "grpc", "secure": "grpc_tls"}
        return {name: str(answer[key]["address"]) for key, name in names.items() if key in answer}

    def open_grpc(self, port: int = 0) -> str:
        """Open gRPC without TLS on `port` or a free one, and return its host and port.

        Raises `TpukitError` if it is open on another port or cannot be opened.
        """
        address = str(self.call("POST", "grpc", {"port": port})["address"])
        if port and not address.endswith(f":{port}"):
            raise TpukitError(f"gRPC is served on {one_line(address)} already")
        return address

    def impersonate(self) -> Json:
        """Serve Google's own host names over TLS, and return the same as `impersonation`.

        Raises `TpukitError` with the reason if the emulator cannot listen on port 443.
        """
        return self.call("POST", "impersonation", {})

    def impersonation(self) -> Json:
        """Return address, port, names and files of the TLS listener, or {} if it is not open."""
        return self.call("GET", "impersonation")

    def preempt(self, node: str, vanish: bool = False) -> Json:
        """Preempt a node, or make it vanish, and return the node."""
        return self.call("POST", f"nodes/{quote(node)}:preempt", {"vanish": vanish})

    def set_health(self, node: str, health: str) -> Json:
        """Set the health of a READY node; raise `BadInput` if the API lacks this health."""
        return self.call("POST", f"nodes/{quote(node)}:setHealth", {"health": health})

    def set_state(self, node: str, state: str) -> Json:
        """Put a node and its workers in a state; raise `BadInput` if the API lacks the state."""
        return self.call("POST", f"nodes/{quote(node)}:setState", {"state": state})

    def catalogue(self) -> Json:
        """Return the catalogue's `changes`, `reservations`, and `quotas` with their use."""
        return self.call("GET", "catalogue")

    def add_zone(self, name: str) -> None:
        """Add a zone, which offers every accelerator type."""
        self._offer("zones", name=name)

    def remove_zone(self, name: str) -> None:
        """Remove an empty zone; raise `NotFound` if it does not exist."""
        self._withdraw("zones", name=name)

    def add_accelerator_type(self, name: str, zone: str = "-") -> None:
        """Offer an accelerator type in a zone, or in all zones."""
        self._offer("acceleratorTypes", name=name, zone=zone)

    def remove_accelerator_type(self, name: str, zone: str = "-") -> None:
        """Withdraw an accelerator type from a zone, or from all; existing slices remain."""
        self._withdraw("acceleratorTypes", name=name, zone=zone)

    def add_runtime_version(self, name: str) -> None:
        """Add a runtime version to every zone."""
        self._offer("runtimeVersions", name=name)

    def remove_runtime_version(self, name: str) -> None:
        """Remove a runtime version; raise `NotFound` if it does not exist."""
        self._withdraw("runtimeVersions", name=name)

    def add_network(self, name: str, project: str = PROJECT) -> None:
        """Add a network without firewall rules to a project."""
        self._offer("networks", name=name, project=project)

    def remove_network(self, name: str, project: str = PROJECT) -> None:
        """Remove a network without slices, and its rules; raise `NotFound` if it does not exist."""
        self._withdraw("networks", name=name, project=project)

    def add_reservation(
        self, name: str, zone: str, generation: str, chips: int, project: str = PROJECT
    ) -> None:
        """Reserve chips of a generation in a zone for a project."""
        place = {"name": name, "zone": zone, "project": project}
        self._offer("reservations", **place, resourceType=generation, size=chips)

    def remove_reservation(self, name: str, zone: str, project: str = PROJECT) -> None:
        """Remove a reservation; raise `NotFound` if it does not exist."""
        self._withdraw("reservations", name=name, zone=zone, project=project)

    def set_quota(self, accelerator_type: str, zone: str, limit: int, spot: bool = False) -> None:
        """Set every project's quota in a zone for slices of a type.

        `limit` counts like the type's name: cores, or chips for v5litepod and v6e.
        """
        self._offer("quotas", name=accelerator_type, zone=zone, limit=limit, spot=spot)

    def remove_quota(self, accelerator_type: str, zone: str, spot: bool = False) -> None:
        """Remove a quota; raise `NotFound` if it does not exist."""
        spots = {"spot": "true"} if spot else {}
        self._withdraw("quotas", name=accelerator_type, zone=zone, **spots)

    def _offer(self, kind: str, **given: object) -> None:
        self.call("POST", f"catalogue/{kind}", given)

    def _withdraw(self, kind: str, **given: str) -> None:
        self.call("DELETE", f"catalogue/{kind}?{urlencode(given)}")

    def reset(self) -> None:
        """Remove all resources and changes; only the ports and the token remain."""
        self.call("POST", "reset", {})

    def requests(self, method: str) -> list[Json]:
        """Return the served requests of one method ("nodes.create"), the oldest first."""
        return [request for request in self.log() if request["method"] == method]

    def call(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """Send one request below `CONTROL` and return the answer.

        Raises `BadInput` for HTTP 400, `NotFound` for 404, and `TpukitError` for another failure.
        """
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            data = None if body is None else json.dumps(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadInput("this is not a JSON object", reason=one_line(str(error))) from error
        try:
            address = self.url.removeprefix("http://")
            with closing(http.client.HTTPConnection(address, timeout=_SECONDS)) as connection:
                connection.request(verb, f"{CONTROL}/{path}", data, headers)
                answer = connection.getresponse()
                text = answer.read()
            document = json.loads(text) if answer.status == 200 else _read(text)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise TpukitError(
                "the emulator does not answer", reason=one_line(str(error))
            ) from error
        if answer.status != 200:
            raise _refusal(answer.status, document)
        return dict(document)

    def served(self) -> int:
        """Return how many faults have been served in all."""
        account = self.faults()
        return sum(rule["served"] for name in ACCOUNTS for rule in account[name])


ACCOUNTS: Sequence[str] = ("faults", "workers", "events")


def _read(text: bytes) -> Any:
    """Return the JSON of an error; None if it is a page, as for an unknown path."""
    with suppress(ValueError):
        return json.loads(text)
    return None


def _refusal(status: int, document: Any) -> TpukitError:
    error = document.get("error", {}) if isinstance(document, dict) else {}
    message = one_line(str(error.get("message", "")))
    kinds = {400: BadInput, 404: NotFound}
    return kinds.get(status, TpukitError)(
        message or "the emulator refuses", reason=f"HTTP {status}"
    )

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

#: Where the control plane is, and its version.
CONTROL = "/_emulator/v1"

_SECONDS = 30.0  #: how long an answer may take; only a fault on a slow machine needs more than one


class EmulatorClient:
    """Adds faults, moves the clock and reads the state and log of one running emulator."""

    def __init__(self, url: str, token: str, seconds: float = _SECONDS) -> None:
        self.url = url.strip().rstrip("/")  # as variables for gcloud, and files of a token, end
        self.token = token.strip()
        self._seconds = seconds

    def status(self) -> Json:
        """Return the time, the speed of the clock, and the number of resources of each kind."""
        return self.call("GET", "status")

    def log(self) -> list[Json]:
        """Return the requests that were served, the oldest first."""
        return list(self.call("GET", "log")["requests"])

    def faults(self) -> Json:
        """Return every rule with its count: `faults`, `workers`, `events`; and the `presets`."""
        return self.call("GET", "faults")

    def add_fault(self, rule: Mapping[str, Any]) -> Json:
        """Add a fault of the API; raise `BadInput` for a rule that could never be served."""
        return self.call("POST", "faults", rule)

    def clear_faults(self) -> Json:
        """Drop every rule of every kind, and return their last counts."""
        return self.call("DELETE", "faults")

    def add_worker_fault(self, rule: Mapping[str, Any]) -> Json:
        """Add a fault of workers; it is in force on return."""
        return self.call("POST", "workers", rule)

    def clear_worker_faults(self, node: str = "*", worker: int | None = None) -> Json:
        """Drop the workers' rules of a node pattern, as it was given; return their last counts."""
        query = {"node": node, **({} if worker is None else {"worker": worker})}
        return self.call("DELETE", f"workers?{urlencode(query)}")

    def play(self, scenario: Mapping[str, Any]) -> Json:
        """Begin a scenario."""
        return self.call("POST", "scenario", scenario)

    def move_clock(self, **change: float) -> Json:
        """Change the emulator's clock: `advance` by seconds, or `speed` it up."""
        return self.call("POST", "clock", change)

    def take_realistic_times(self) -> None:
        """Let every change take as long as it does on the real service."""
        self.call("POST", "timing", {"realistic": True})

    def grpc_addresses(self) -> dict[str, str]:
        """Return the host and port of gRPC, `grpc` and `grpc_tls`, where they are open."""
        found = self.call("GET", "grpc")
        names = {"plain": "grpc", "secure": "grpc_tls"}
        return {name: str(found[key]["address"]) for key, name in names.items() if key in found}

    def open_grpc(self, port: int = 0) -> str:
        """Return the host and port of gRPC without TLS, opened on `port` or a free one.

        Raises `TpukitError` where it is open elsewhere or cannot be opened.
        """
        address = str(self.call("POST", "grpc", {"port": port})["address"])
        if port and not address.endswith(f":{port}"):
            raise TpukitError(f"gRPC is served on {one_line(address)} already")
        return address

    def impersonate(self) -> Json:
        """Serve Google's own names over TLS, and return what `impersonation` does.

        Raises `TpukitError` that says what is missing where port 443 cannot be listened on.
        """
        return self.call("POST", "impersonation", {})

    def impersonation(self) -> Json:
        """Return address, port and names of the TLS listener and its files; {} where it is none."""
        return self.call("GET", "impersonation")

    def preempt(self, node: str, vanish: bool = False) -> Json:
        """Preempt a node, or let it vanish; return it as it was last."""
        return self.call("POST", f"nodes/{quote(node)}:preempt", {"vanish": vanish})

    def set_health(self, node: str, health: str) -> Json:
        """Give a READY node a health; raise `BadInput` for one that the API does not have."""
        return self.call("POST", f"nodes/{quote(node)}:setHealth", {"health": health})

    def set_state(self, node: str, state: str) -> Json:
        """Put a node in a state, with its workers; raise `BadInput` for one that the API lacks."""
        return self.call("POST", f"nodes/{quote(node)}:setState", {"state": state})

    def catalogue(self) -> Json:
        """Return `changes`, `reservations`, and `quotas` with what is used of them."""
        return self.call("GET", "catalogue")

    def add_zone(self, name: str) -> None:
        """Add a zone, which offers every accelerator type."""
        self._offer("zones", name=name)

    def remove_zone(self, name: str) -> None:
        """Remove a zone in which nothing is; raise `NotFound` for one that there is not."""
        self._withdraw("zones", name=name)

    def add_accelerator_type(self, name: str, zone: str = "-") -> None:
        """Offer an accelerator type in a zone, or in all."""
        self._offer("acceleratorTypes", name=name, zone=zone)

    def remove_accelerator_type(self, name: str, zone: str = "-") -> None:
        """Offer an accelerator type no more in a zone, or in any; slices that are there stay."""
        self._withdraw("acceleratorTypes", name=name, zone=zone)

    def add_runtime_version(self, name: str) -> None:
        """Add a runtime version to every zone."""
        self._offer("runtimeVersions", name=name)

    def remove_runtime_version(self, name: str) -> None:
        """Remove a runtime version; raise `NotFound` for one that there is not."""
        self._withdraw("runtimeVersions", name=name)

    def add_network(self, name: str, project: str = PROJECT) -> None:
        """Add a network without firewall rules to a project."""
        self._offer("networks", name=name, project=project)

    def remove_network(self, name: str, project: str = PROJECT) -> None:
        """Remove a network that no slice is on, with its rules; raise `NotFound` for none."""
        self._withdraw("networks", name=name, project=project)

    def add_reservation(
        self, name: str, zone: str, generation: str, chips: int, project: str = PROJECT
    ) -> None:
        """Let a project have reserved chips of a generation in a zone."""
        place = {"name": name, "zone": zone, "project": project}
        self._offer("reservations", **place, resourceType=generation, size=chips)

    def remove_reservation(self, name: str, zone: str, project: str = PROJECT) -> None:
        """Remove a reservation; raise `NotFound` for one that there is not."""
        self._withdraw("reservations", name=name, zone=zone, project=project)

    def set_quota(self, accelerator_type: str, zone: str, limit: int, spot: bool = False) -> None:
        """Limit the quota that slices of a type count with in a zone, for each project.

        `limit` is in what the type's name counts: cores, or chips for v5litepod and v6e.
        """
        self._offer("quotas", name=accelerator_type, zone=zone, limit=limit, spot=spot)

    def remove_quota(self, accelerator_type: str, zone: str, spot: bool = False) -> None:
        """Remove a limit; raise `NotFound` where there is none."""
        spots = {"spot": "true"} if spot else {}
        self._withdraw("quotas", name=accelerator_type, zone=zone, **spots)

    def _offer(self, kind: str, **given: object) -> None:
        self.call("POST", f"catalogue/{kind}", given)

    def _withdraw(self, kind: str, **given: str) -> None:
        self.call("DELETE", f"catalogue/{kind}?{urlencode(given)}")

    def reset(self) -> None:
        """Forget all that was made or changed; nothing of it is left but ports and the token."""
        self.call("POST", "reset", {})

    def requests(self, method: str) -> list[Json]:
        """Return what was asked of one method, such as `nodes.create`, the oldest first."""
        return [each for each in self.log() if each["method"] == method]

    def call(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Json:
        """Return the answer to one request below `CONTROL`.

        Raises `BadInput` for HTTP 400, `NotFound` for 404, `TpukitError` for others and no answer.
        """
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            data = None if body is None else json.dumps(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadInput("this is no JSON object", reason=one_line(str(error))) from error
        try:
            address = self.url.removeprefix("http://")
            with closing(http.client.HTTPConnection(address, timeout=self._seconds)) as connection:
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
    """Return what a refusal says; nothing where it is a page, as for a path that is none."""
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

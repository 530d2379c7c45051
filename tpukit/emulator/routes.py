"""Every method the emulator serves, as the APIs' reference pages list them.

Cloud TPU API v2 (v2alpha1 has the same), its v1 locations, Compute Engine API v1, control plane.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from tpukit.emulator.context import Call
from tpukit.emulator.control import Control
from tpukit.emulator.errors import Json
from tpukit.emulator.service import Service

Handler = Callable[[Call], Json]

_PLACE = "/{version}/projects/{project}/locations/{zone}"
_GLOBAL = "/compute/v1/projects/{project}/global"
#: What a placeholder of a template matches. Project ids of a domain have a colon in them.
_PATTERNS = {"version": "v2|v2alpha1", "project": "[^/]+", "path": ".+"}


@dataclass(frozen=True)
class Route:
    """One method: its name in the API, the HTTP verb, the path template, who answers."""

    name: str
    verb: str
    template: str
    handler: Handler

    @property
    def is_compute(self) -> bool:
        return self.template.startswith("/compute/")

    @property
    def is_control(self) -> bool:
        return self.template.startswith("/_emulator/")

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", self.template)
        names = parts[1::2]
        groups = [f"(?P<{name}>{_PATTERNS.get(name, '[^/:]+')})" for name in names]
        literals = [re.escape(text) for text in parts[::2]]
        return re.compile("".join(a + b for a, b in zip(literals, [*groups, ""], strict=True)))


def tpu_routes(service: Service) -> tuple[Route, ...]:
    nodes, operations, catalogue = service.nodes, service.operations, service.catalogue
    return (
        Route("nodes.create", "POST", f"{_PLACE}/nodes", nodes.create),
        Route("nodes.list", "GET", f"{_PLACE}/nodes", nodes.list),
        Route("nodes.get", "GET", f"{_PLACE}/nodes/{{node}}", nodes.get),
        Route("nodes.patch", "PATCH", f"{_PLACE}/nodes/{{node}}", nodes.patch),
        Route("nodes.delete", "DELETE", f"{_PLACE}/nodes/{{node}}", nodes.delete),
        Route("nodes.start", "POST", f"{_PLACE}/nodes/{{node}}:start", nodes.start),
        Route("nodes.stop", "POST", f"{_PLACE}/nodes/{{node}}:stop", nodes.stop),
        Route(
            "nodes.getGuestAttributes",
            "POST",
            f"{_PLACE}/nodes/{{node}}:getGuestAttributes",
            nodes.get_guest_attributes,
        ),
        Route("operations.list", "GET", f"{_PLACE}/operations", operations.list),
        Route("operations.get", "GET", f"{_PLACE}/operations/{{operation}}", operations.get),
        Route(
            "operations.delete", "DELETE", f"{_PLACE}/operations/{{operation}}", operations.delete
        ),
        Route("acceleratorTypes.list", "GET", f"{_PLACE}/acceleratorTypes", catalogue.list_types),
        Route(
            "acceleratorTypes.get", "GET", f"{_PLACE}/acceleratorTypes/{{type}}", catalogue.get_type
        ),
        Route(
            "runtimeVersions.list",
            "GET",
            f"{_PLACE}/runtimeVersions",
            catalogue.list_runtime_versions,
        ),
        Route(
            "runtimeVersions.get",
            "GET",
            f"{_PLACE}/runtimeVersions/{{runtime}}",
            catalogue.get_runtime_version,
        ),
        *_location_routes(service, "{version}"),
        *_location_routes(service, "v1"),
    )


def _location_routes(service: Service, version: str) -> tuple[Route, ...]:
    places = f"/{version}/projects/{{project}}/locations"
    catalogue = service.catalogue
    return (
        Route("locations.list", "GET", places, catalogue.list_locations),
        Route("locations.get", "GET", f"{places}/{{zone}}", catalogue.get_location),
    )


def compute_routes(service: Service) -> tuple[Route, ...]:
    firewalls, operations = service.firewalls, service.compute_operations
    project = "/compute/v1/projects/{project}"
    return (
        Route("firewalls.insert", "POST", f"{_GLOBAL}/firewalls", firewalls.insert),
        Route("firewalls.list", "GET", f"{_GLOBAL}/firewalls", firewalls.list),
        Route("firewalls.get", "GET", f"{_GLOBAL}/firewalls/{{firewall}}", firewalls.get),
        Route("firewalls.patch", "PATCH", f"{_GLOBAL}/firewalls/{{firewall}}", firewalls.patch),
        Route("firewalls.update", "PUT", f"{_GLOBAL}/firewalls/{{firewall}}", firewalls.update),
        Route("firewalls.delete", "DELETE", f"{_GLOBAL}/firewalls/{{firewall}}", firewalls.delete),
        Route("globalOperations.list", "GET", f"{_GLOBAL}/operations", operations.list),
        Route("globalOperations.get", "GET", f"{_GLOBAL}/operations/{{operation}}", operations.get),
        Route(
            "globalOperations.wait",
            "POST",
            f"{_GLOBAL}/operations/{{operation}}/wait",
            operations.get,
        ),
        Route("networks.list", "GET", f"{_GLOBAL}/networks", service.networks.list),
        Route("networks.get", "GET", f"{_GLOBAL}/networks/{{network}}", service.networks.get),
        Route("projects.get", "GET", project, service.projects.get),
        Route(
            "projects.setCommonInstanceMetadata",
            "POST",
            f"{project}/setCommonInstanceMetadata",
            service.projects.set_common_instance_metadata,
        ),
    )


def control_routes(control: Control) -> tuple[Route, ...]:
    return (
        Route("faults.add", "POST", "/_emulator/faults", control.add_faults),
        Route("faults.list", "GET", "/_emulator/faults", control.list_faults),
        Route("faults.clear", "DELETE", "/_emulator/faults", control.clear_faults),
        Route("clock.advance", "POST", "/_emulator/clock", control.advance_clock),
        Route("nodes.preempt", "POST", "/_emulator/nodes/{path}:preempt", control.preempt),
        Route("status", "GET", "/_emulator/status", control.status),
        Route("log", "GET", "/_emulator/log", control.show_log),
    )


def find(routes: Iterable[Route], verb: str, path: str) -> tuple[Route, Mapping[str, str]] | None:
    """Return the route of a request and the values of its placeholders."""
    for route in routes:
        found = route.pattern.fullmatch(path) if route.verb == verb else None
        if found:
            return route, {name: unquote(text) for name, text in found.groupdict().items()}
    return None

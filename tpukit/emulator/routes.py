"""Every method the emulator serves, as the APIs' reference pages list them.

Cloud TPU API v2 and v2alpha1, its v1 locations, Compute Engine API v1, OS Login API v1, control
plane.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from tpukit.emulator.context import Call
from tpukit.emulator.control import Control
from tpukit.emulator.doors import Doors
from tpukit.emulator.errors import Json
from tpukit.emulator.service import Service

Handler = Callable[[Call], Json]

_PLACE = "/{version}/projects/{project}/locations/{zone}"
_GLOBAL = "/compute/v1/projects/{project}/global"
#: What a placeholder of a template matches. Project ids of a domain have a colon in them.
_PATTERNS = {
    "version": "v2|v2alpha1",
    "alpha": "v2alpha1",
    # gcloud's alpha track asks for the alpha versions of these two.
    "legacy": "v1|v1alpha1",
    "login": "v1|v1alpha",
    "project": "[^/]+",
    "path": ".+",
    "user": "[^/]+",
}


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
        *_alpha_routes(service),
        *_queued_routes(service),
        Route(
            "generateServiceIdentity",
            "POST",
            f"{_PLACE}:generateServiceIdentity",
            service.accounts.generate_service_identity,
        ),
        Route("operations.list", "GET", f"{_PLACE}/operations", operations.list),
        Route("operations.get", "GET", f"{_PLACE}/operations/{{operation}}", operations.get),
        Route(
            "operations.delete", "DELETE", f"{_PLACE}/operations/{{operation}}", operations.delete
        ),
        Route(
            "operations.cancel",
            "POST",
            f"{_PLACE}/operations/{{operation}}:cancel",
            service.cancel_operation,
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
        *_tpu_node_routes(service),
    )


def _alpha_routes(service: Service) -> tuple[Route, ...]:
    """Return what v2alpha1 has and v2 has not."""
    place = _PLACE.replace("{version}", "{alpha}")
    node = f"{place}/nodes/{{node}}"
    nodes, queued = service.nodes, service.queued_resources
    return (
        Route(
            "nodes.simulateMaintenanceEvent",
            "POST",
            f"{node}:simulateMaintenanceEvent",
            nodes.simulate_maintenance_event,
        ),
        Route(
            "nodes.performMaintenance",
            "POST",
            f"{node}:performMaintenance",
            nodes.perform_maintenance,
        ),
        Route(
            "queuedResources.performMaintenanceQueuedResource",
            "POST",
            f"{place}/queuedResources/{{queued}}:performMaintenanceQueuedResource",
            queued.perform_maintenance,
        ),
        Route(
            "queuedResources.getMaintenanceInfo",
            "GET",
            f"{place}/queuedResources/{{queued}}:getMaintenanceInfo",
            queued.get_maintenance_info,
        ),
        Route("reservations.list", "GET", f"{place}/reservations", service.reservations.list),
    )


def _queued_routes(service: Service) -> tuple[Route, ...]:
    every, queued = f"{_PLACE}/queuedResources", service.queued_resources
    one = f"{every}/{{queued}}"
    return (
        Route("queuedResources.create", "POST", every, queued.create),
        Route("queuedResources.list", "GET", every, queued.list),
        Route("queuedResources.get", "GET", one, queued.get),
        Route("queuedResources.delete", "DELETE", one, queued.delete),
        Route("queuedResources.reset", "POST", f"{one}:reset", queued.reset),
    )


def _location_routes(service: Service, version: str) -> tuple[Route, ...]:
    places = f"/{version}/projects/{{project}}/locations"
    catalogue = service.catalogue
    return (
        Route("locations.list", "GET", places, catalogue.list_locations),
        Route("locations.get", "GET", f"{places}/{{zone}}", catalogue.get_location),
    )


def _tpu_node_routes(service: Service) -> tuple[Route, ...]:
    """Return the v1 methods of the TPU Node architecture; faults of `nodes.*` leave them alone."""
    place, legacy, catalogue = (
        _PLACE.replace("{version}", "{legacy}"),
        service.tpu_nodes,
        service.catalogue,
    )
    node = f"{place}/nodes/{{node}}"
    versions, types = f"{place}/tensorflowVersions", f"{place}/acceleratorTypes"
    return (
        Route("v1.nodes.create", "POST", f"{place}/nodes", legacy.create),
        Route("v1.nodes.list", "GET", f"{place}/nodes", legacy.list),
        Route("v1.nodes.get", "GET", node, legacy.find),
        Route("v1.nodes.delete", "DELETE", node, legacy.find),
        Route("v1.nodes.start", "POST", f"{node}:start", legacy.find),
        Route("v1.nodes.stop", "POST", f"{node}:stop", legacy.find),
        Route("v1.nodes.reimage", "POST", f"{node}:reimage", legacy.find),
        Route("v1.tensorflowVersions.list", "GET", versions, legacy.list_versions),
        Route("v1.tensorflowVersions.get", "GET", f"{versions}/{{runtime}}", legacy.get_version),
        Route("v1.acceleratorTypes.list", "GET", types, catalogue.list_types),
        Route("v1.acceleratorTypes.get", "GET", f"{types}/{{type}}", catalogue.get_type),
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


def oslogin_routes(service: Service) -> tuple[Route, ...]:
    user, accounts = "/{login}/users/{user}", service.accounts
    return (
        Route("users.getLoginProfile", "GET", f"{user}/loginProfile", accounts.get_login_profile),
        Route(
            "users.importSshPublicKey",
            "POST",
            f"{user}:importSshPublicKey",
            accounts.import_ssh_public_key,
        ),
    )


def control_routes(control: Control, doors: Doors) -> tuple[Route, ...]:
    return (
        Route("grpc.show", "GET", "/_emulator/grpc", doors.show),
        Route("grpc.open", "POST", "/_emulator/grpc", doors.open),
        Route("clock.show", "GET", "/_emulator/clock", control.show_clock),
        Route("clock.change", "POST", "/_emulator/clock", control.change_clock),
        Route("timing.change", "POST", "/_emulator/timing", control.change_timing),
        Route("reservations.add", "POST", "/_emulator/reservations", control.add_reservation),
        Route("faults.add", "POST", "/_emulator/faults", control.add_faults),
        Route("faults.list", "GET", "/_emulator/faults", control.list_faults),
        Route("faults.clear", "DELETE", "/_emulator/faults", control.clear_faults),
        Route("nodes.preempt", "POST", "/_emulator/nodes/{path}:preempt", control.preempt),
        Route("nodes.setHealth", "POST", "/_emulator/nodes/{path}:setHealth", control.set_health),
        Route("workers.addFault", "POST", "/_emulator/workers", control.add_worker_fault),
        Route("workers.clearFaults", "DELETE", "/_emulator/workers", control.clear_worker_faults),
        Route("scenario.play", "POST", "/_emulator/scenario", control.play),
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

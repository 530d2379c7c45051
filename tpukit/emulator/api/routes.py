"""Every method that the emulator serves, by its name in the APIs' reference pages.

Cloud TPU API v2 and v2alpha1, parts of its v1, and parts of OS Login API v1, Service Usage API v1,
Cloud Resource Manager API v1 and v3, IAM API v1 and Cloud Quotas API v1; the control plane. Those
of Compute Engine API v1 are in `compute_routes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from tpukit.emulator.api.control_plane import ControlPlane
from tpukit.emulator.api.discovery.documents import shape
from tpukit.emulator.api.grpc_listeners import GrpcListeners
from tpukit.emulator.api.impersonation import Impersonation
from tpukit.emulator.api.service import Service
from tpukit.emulator.core.api_errors import Json
from tpukit.emulator.core.service_context import Call

Handler = Callable[[Call], Json]

_PLACE = "/{VERSION}/projects/{project}/locations/{zone}"
#: The pattern of each placeholder. Project ids of a domain contain a colon.
_PATTERNS = {
    "version": "v2|v2alpha1",
    "alpha": "v2alpha1",
    # gcloud's alpha track asks for the alpha versions of these two.
    "legacy": "v1|v1alpha1",
    "login": "v1|v1alpha",
    "manager": "v1|v3",
    "parent": "projects",
    "project": "[^/]+",
    "path": ".+",
    "user": "[^/]+",
}


@dataclass(frozen=True)
class ApiRoute:
    """One method: its name in the API, the HTTP verb, the path template and its handler."""

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

    @cached_property
    def shapes(self) -> Mapping[str, str]:
        """The shape of the path in each API version, for look-ups in discovery documents."""
        _, first, rest = self.template.split("/", 2)
        versions = _PATTERNS[first.strip("{}")].split("|") if first.startswith("{") else [first]
        return {version: shape(f"{version}/{rest}") for version in versions}


#: The API's name for a method with each verb; a GET of one resource is a `get`.
_STANDARD = {"POST": "create", "GET": "list", "PATCH": "patch", "DELETE": "delete"}


def routes_below(prefix: str, *methods: tuple[str, str, str, Handler]) -> tuple[ApiRoute, ...]:
    """Return routes, given their names, verbs, paths below a prefix, and handlers."""
    return tuple(
        ApiRoute(name, verb, prefix + path, handler) for name, verb, path, handler in methods
    )


def _named(parent: str, handlers: Mapping[str, Handler], prefix: str = "") -> Iterator[ApiRoute]:
    """Yield a route for each "VERB /collection/{id}:custom", with its name in the API reference."""
    for request, handler in handlers.items():
        verb, _, path = request.partition(" ")
        resource, _, custom = path.partition(":")
        _, collection, *one = (resource or "/").split("/")
        method = custom or ("get" if one and verb == "GET" else _STANDARD[verb])
        name = f"{prefix}{collection}.{method}" if collection else method
        yield ApiRoute(name, verb, parent + path, handler)


def tpu_routes(service: Service) -> tuple[ApiRoute, ...]:
    """Return the Cloud TPU API: v2, v2alpha1, and the methods that v1 still has."""
    nodes, operations, catalogue = service.nodes, service.operations, service.catalogue
    queued, legacy = service.queued_resources, service.tpu_nodes
    types: dict[str, Handler] = {
        "GET /acceleratorTypes": catalogue.list_types,
        "GET /acceleratorTypes/{type}": catalogue.get_type,
    }
    both: dict[str, Handler] = {
        "POST /nodes": nodes.create,
        "GET /nodes": nodes.list,
        "GET /nodes/{node}": nodes.get,
        "PATCH /nodes/{node}": nodes.patch,
        "DELETE /nodes/{node}": nodes.delete,
        "POST /nodes/{node}:start": nodes.start,
        "POST /nodes/{node}:stop": nodes.stop,
        "POST /nodes/{node}:getGuestAttributes": nodes.get_guest_attributes,
        "POST /queuedResources": queued.create,
        "GET /queuedResources": queued.list,
        "GET /queuedResources/{queued}": queued.get,
        "DELETE /queuedResources/{queued}": queued.delete,
        "POST /queuedResources/{queued}:reset": queued.reset,
        "GET /operations": operations.list,
        "GET /operations/{operation}": operations.get,
        "DELETE /operations/{operation}": operations.delete,
        "POST /operations/{operation}:cancel": service.cancel_operation,
        "POST :generateServiceIdentity": service.accounts.generate_service_identity,
        **types,
        "GET /runtimeVersions": catalogue.list_runtime_versions,
        "GET /runtimeVersions/{runtime}": catalogue.get_runtime_version,
    }
    performed = "POST /queuedResources/{queued}:performMaintenanceQueuedResource"
    alpha: dict[str, Handler] = {
        "POST /nodes/{node}:simulateMaintenanceEvent": nodes.simulate_maintenance_event,
        "POST /nodes/{node}:performMaintenance": nodes.perform_maintenance,
        performed: queued.perform_maintenance,
        "GET /queuedResources/{queued}:getMaintenanceInfo": queued.get_maintenance_info,
        "GET /reservations": service.reservations.list,
    }
    locations: dict[str, Handler] = {
        "GET /locations": catalogue.list_locations,
        "GET /locations/{zone}": catalogue.get_location,
    }
    # The TPU Node architecture; faults of `nodes.*` do not affect it.
    v1: dict[str, Handler] = {
        "POST /nodes": legacy.create,
        "GET /nodes": legacy.list,
        "GET /nodes/{node}": legacy.find,
        "DELETE /nodes/{node}": legacy.find,
        "POST /nodes/{node}:start": legacy.find,
        "POST /nodes/{node}:stop": legacy.find,
        "POST /nodes/{node}:reimage": legacy.find,
        "GET /tensorflowVersions": legacy.list_versions,
        "GET /tensorflowVersions/{runtime}": legacy.get_version,
        **types,
    }
    return (
        *_named(_PLACE.replace("VERSION", "version"), both),
        *_named(_PLACE.replace("VERSION", "alpha"), alpha),
        *_named("/{version}/projects/{project}", locations),
        *_named("/v1/projects/{project}", locations),
        *_named(_PLACE.replace("VERSION", "legacy"), v1, "v1."),
    )


def oslogin_routes(service: Service) -> tuple[ApiRoute, ...]:
    """Return the part of the OS Login API that gcloud uses."""
    accounts = service.accounts
    return routes_below(
        "/{login}/users/{user}",
        ("users.getLoginProfile", "GET", "/loginProfile", accounts.get_login_profile),
        ("users.importSshPublicKey", "POST", ":importSshPublicKey", accounts.import_ssh_public_key),
    )


def project_routes(service: Service) -> tuple[ApiRoute, ...]:
    """Return the methods about projects that clients use.

    They belong to Service Usage, Cloud Resource Manager, IAM and Cloud Quotas.
    """
    usage, manager, quotas = service.service_usage, service.resource_manager, service.quota_infos
    return (
        *routes_below(
            "/v1/{parent}/{project}/services",
            ("services.list", "GET", "", usage.list),
            ("services.batchEnable", "POST", ":batchEnable", usage.batch_enable),
            ("services.get", "GET", "/{service}", usage.get),
            ("services.enable", "POST", "/{service}:enable", usage.enable),
            ("services.disable", "POST", "/{service}:disable", usage.disable),
        ),
        *routes_below(
            "/v1", ("services.getOperation", "GET", "/operations/{operation}", usage.get_operation)
        ),
        *routes_below(
            "/v1/projects",
            ("cloudresourcemanager.projects.list", "GET", "", manager.list),
            (
                "iam.serviceAccounts.list",
                "GET",
                "/{project}/serviceAccounts",
                service.accounts.list_service_accounts,
            ),
        ),
        *routes_below(
            "/v1/projects/{project}/locations/{location}/services/{service}/quotaInfos",
            ("quotaInfos.list", "GET", "", quotas.list),
            ("quotaInfos.get", "GET", "/{quota}", quotas.get),
        ),
        *routes_below(
            "/{manager}/projects/{project}",
            ("cloudresourcemanager.projects.get", "GET", "", manager.get),
            (
                "projects.testIamPermissions",
                "POST",
                ":testIamPermissions",
                manager.test_permissions,
            ),
        ),
    )


def control_routes(
    control: ControlPlane, grpc: GrpcListeners, impersonation: Impersonation, service: Service
) -> tuple[ApiRoute, ...]:
    """Return the emulator's own methods."""
    return routes_below(
        "/_emulator/v1",
        ("grpc.show", "GET", "/grpc", grpc.show),
        ("grpc.open", "POST", "/grpc", grpc.open),
        ("impersonation.show", "GET", "/impersonation", impersonation.show),
        ("impersonation.open", "POST", "/impersonation", impersonation.open),
        ("clock.show", "GET", "/clock", control.show_clock),
        ("clock.change", "POST", "/clock", control.change_clock),
        ("timing.change", "POST", "/timing", control.change_timing),
        ("projects.attach", "POST", "/projects/{project}:attach", service.projects.attach),
        ("catalogue.show", "GET", "/catalogue", service.changes.show),
        ("catalogue.add", "POST", "/catalogue/{kind}", service.changes.add),
        ("catalogue.remove", "DELETE", "/catalogue/{kind}", service.changes.remove),
        ("faults.add", "POST", "/faults", control.add_faults),
        ("faults.list", "GET", "/faults", control.list_faults),
        ("faults.clear", "DELETE", "/faults", control.clear_faults),
        ("nodes.preempt", "POST", "/nodes/{path}:preempt", control.preempt),
        ("nodes.setHealth", "POST", "/nodes/{path}:setHealth", control.set_health),
        ("nodes.setState", "POST", "/nodes/{path}:setState", control.set_state),
        ("workers.addFault", "POST", "/workers", control.add_worker_fault),
        ("workers.clearFaults", "DELETE", "/workers", control.clear_worker_faults),
        ("scenario.play", "POST", "/scenario", control.play),
        ("reset", "POST", "/reset", control.reset),
        ("status", "GET", "/status", control.status),
        ("log", "GET", "/log", control.show_log),
    )


def find(
    routes: Iterable[ApiRoute], verb: str, path: str
) -> tuple[ApiRoute, Mapping[str, str]] | None:
    """Return the route of a request and the values of its placeholders, or None."""
    for route in routes:
        match = route.pattern.fullmatch(path) if route.verb == verb else None
        if match:
            return route, {name: unquote(text) for name, text in match.groupdict().items()}
    return None

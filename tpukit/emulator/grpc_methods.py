"""Every gRPC method the emulator serves, and the REST request that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2

#: Loaded for its effect: the details of errors are packed in types that have to be known.
KNOWN_DETAILS = error_details_pb2


@dataclass(frozen=True)
class Method:
    """One RPC: its messages, and its REST form.

    `path` names the request field that fills it; `body` the field that is the body, "*" for all
    that is left. Every other field is a query parameter.
    """

    request: Any
    response: Any
    verb: str
    path: str
    body: str = ""


#: RPC: (verb, path, body, response; none is an operation). The http rules of google.cloud.tpu.v2.
_TPU: Mapping[str, tuple[str, str, str, str]] = {
    "ListNodes": ("GET", "{parent}/nodes", "", "ListNodesResponse"),
    "GetNode": ("GET", "{name}", "", "Node"),
    "CreateNode": ("POST", "{parent}/nodes", "node", ""),
    "DeleteNode": ("DELETE", "{name}", "", ""),
    "StopNode": ("POST", "{name}:stop", "*", ""),
    "StartNode": ("POST", "{name}:start", "*", ""),
    "UpdateNode": ("PATCH", "{node.name}", "node", ""),
    "GetGuestAttributes": ("POST", "{name}:getGuestAttributes", "*", "GetGuestAttributesResponse"),
    "ListQueuedResources": ("GET", "{parent}/queuedResources", "", "ListQueuedResourcesResponse"),
    "GetQueuedResource": ("GET", "{name}", "", "QueuedResource"),
    "CreateQueuedResource": ("POST", "{parent}/queuedResources", "queuedResource", ""),
    "DeleteQueuedResource": ("DELETE", "{name}", "", ""),
    "ResetQueuedResource": ("POST", "{name}:reset", "*", ""),
    "GenerateServiceIdentity": (
        "POST",
        "{parent}:generateServiceIdentity",
        "*",
        "GenerateServiceIdentityResponse",
    ),
    "ListAcceleratorTypes": (
        "GET",
        "{parent}/acceleratorTypes",
        "",
        "ListAcceleratorTypesResponse",
    ),
    "GetAcceleratorType": ("GET", "{name}", "", "AcceleratorType"),
    "ListRuntimeVersions": ("GET", "{parent}/runtimeVersions", "", "ListRuntimeVersionsResponse"),
    "GetRuntimeVersion": ("GET", "{name}", "", "RuntimeVersion"),
}
_ALPHA = {
    **_TPU,
    "SimulateMaintenanceEvent": ("POST", "{name}:simulateMaintenanceEvent", "*", ""),
    "PerformMaintenance": ("POST", "{name}:performMaintenance", "*", ""),
    "PerformMaintenanceQueuedResource": (
        "POST",
        "{name}:performMaintenanceQueuedResource",
        "*",
        "",
    ),
    "ListReservations": ("GET", "{parent}/reservations", "", "ListReservationsResponse"),
}


def methods() -> dict[str, Method]:
    """Return the methods by their paths on the wire."""
    return {
        **_of_package(tpu_v2, "v2", _TPU),
        **_of_package(tpu_v2alpha1, "v2alpha1", _ALPHA),
        **_operations(),
        **_locations(),
    }


def _of_package(
    package: Any, version: str, table: Mapping[str, tuple[str, str, str, str]]
) -> dict[str, Method]:
    found = {}
    for name, (verb, path, body, response) in table.items():
        request = getattr(package, f"{name}Request").pb()
        answer = getattr(package, response).pb() if response else operations_pb2.Operation
        method = Method(request, answer, verb, f"/{version}/{path}", body)
        found[f"/google.cloud.tpu.{version}.Tpu/{name}"] = method
    return found


def _operations() -> dict[str, Method]:
    """Return the mixin's methods. It has one path for all API versions: operations know theirs."""
    pb, empty = operations_pb2, empty_pb2.Empty
    service = "/google.longrunning.Operations"
    return {
        f"{service}/GetOperation": Method(
            pb.GetOperationRequest, pb.Operation, "GET", "/v2/{name}"
        ),
        f"{service}/ListOperations": Method(
            pb.ListOperationsRequest, pb.ListOperationsResponse, "GET", "/v2/{name}/operations"
        ),
        f"{service}/DeleteOperation": Method(
            pb.DeleteOperationRequest, empty, "DELETE", "/v2/{name}"
        ),
        f"{service}/CancelOperation": Method(
            pb.CancelOperationRequest, empty, "POST", "/v2/{name}:cancel", "*"
        ),
    }


def _locations() -> dict[str, Method]:
    pb, service = locations_pb2, "/google.cloud.location.Locations"
    return {
        f"{service}/ListLocations": Method(
            pb.ListLocationsRequest, pb.ListLocationsResponse, "GET", "/v2/{name}/locations"
        ),
        f"{service}/GetLocation": Method(pb.GetLocationRequest, pb.Location, "GET", "/v2/{name}"),
    }

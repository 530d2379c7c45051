"""Every gRPC method that the emulator serves, with its REST form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2

#: Imported for its effect: protobuf can pack an error's details only in types that it knows.
KNOWN_DETAILS = error_details_pb2


@dataclass(frozen=True)
class GrpcMethod:
    """One RPC: its messages, and its REST form.

    `path` names the request fields that fill it. `body` names the field that becomes the body, or
    "*" for all remaining fields. The other fields become query parameters.
    """

    request: Any
    response: Any
    verb: str
    path: str
    body: str = ""
    any_version: bool = False  #: True if its answers concern all API versions


#: The http rules of google.cloud.tpu.v2: verb, path, body.
_TPU: Mapping[str, tuple[str, str, str]] = {
    "ListNodes": ("GET", "{parent}/nodes", ""),
    "GetNode": ("GET", "{name}", ""),
    "CreateNode": ("POST", "{parent}/nodes", "node"),
    "DeleteNode": ("DELETE", "{name}", ""),
    "StopNode": ("POST", "{name}:stop", "*"),
    "StartNode": ("POST", "{name}:start", "*"),
    "UpdateNode": ("PATCH", "{node.name}", "node"),
    "GetGuestAttributes": ("POST", "{name}:getGuestAttributes", "*"),
    "ListQueuedResources": ("GET", "{parent}/queuedResources", ""),
    "GetQueuedResource": ("GET", "{name}", ""),
    "CreateQueuedResource": ("POST", "{parent}/queuedResources", "queuedResource"),
    "DeleteQueuedResource": ("DELETE", "{name}", ""),
    "ResetQueuedResource": ("POST", "{name}:reset", "*"),
    "GenerateServiceIdentity": ("POST", "{parent}:generateServiceIdentity", "*"),
    "ListAcceleratorTypes": ("GET", "{parent}/acceleratorTypes", ""),
    "GetAcceleratorType": ("GET", "{name}", ""),
    "ListRuntimeVersions": ("GET", "{parent}/runtimeVersions", ""),
    "GetRuntimeVersion": ("GET", "{name}", ""),
}
_PERFORM = "{name}:performMaintenanceQueuedResource"
_ALPHA = {
    **_TPU,
    "SimulateMaintenanceEvent": ("POST", "{name}:simulateMaintenanceEvent", "*"),
    "PerformMaintenance": ("POST", "{name}:performMaintenance", "*"),
    "PerformMaintenanceQueuedResource": ("POST", _PERFORM, "*"),
    "ListReservations": ("GET", "{parent}/reservations", ""),
}
#: These have one path for all API versions: an operation knows its version.
_OPERATIONS = {
    "GetOperation": ("GET", "{name}", ""),
    "ListOperations": ("GET", "{name}/operations", ""),
    "DeleteOperation": ("DELETE", "{name}", ""),
    "CancelOperation": ("POST", "{name}:cancel", "*"),
}
_LOCATIONS = {
    "ListLocations": ("GET", "{name}/locations", ""),
    "GetLocation": ("GET", "{name}", ""),
}


def methods() -> dict[str, GrpcMethod]:
    """Return the methods by their gRPC paths, "/google.cloud.tpu.v2.Tpu/GetNode"."""
    operation, empty = operations_pb2.Operation, empty_pb2.Empty
    return {
        **dict(_of("google.cloud.tpu.v2.Tpu", "v2", _TPU, tpu_v2, operation)),
        **dict(_of("google.cloud.tpu.v2alpha1.Tpu", "v2alpha1", _ALPHA, tpu_v2alpha1, operation)),
        **dict(_of("google.longrunning.Operations", "v2", _OPERATIONS, operations_pb2, empty)),
        **dict(_of("google.cloud.location.Locations", "v2", _LOCATIONS, locations_pb2, empty)),
    }


def _of(
    service: str, version: str, table: Mapping[str, tuple[str, str, str]], types: Any, other: Any
) -> Iterator[tuple[str, GrpcMethod]]:
    """Yield a service's methods; `other` is the response of methods without a type for it."""
    for rpc, (verb, path, body) in table.items():
        names = f"{rpc}Response", rpc.removeprefix("Get")
        own = [getattr(types, name) for name in names if hasattr(types, name)]
        messages = getattr(types, f"{rpc}Request"), own[0] if own else other
        # google.cloud.tpu wraps its messages, the common services do not.
        request, response = (
            message.pb() if hasattr(message, "pb") else message for message in messages
        )
        shared, path = service == "google.longrunning.Operations", f"/{version}/{path}"
        yield f"/{service}/{rpc}", GrpcMethod(request, response, verb, path, body, shared)

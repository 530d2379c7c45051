"""Every gRPC method the emulator serves, and the REST request that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
class GrpcMethod:
    """One RPC: its messages, and its REST form.

    `path` names the request field that fills it; `body` the field that is the body, "*" for all
    that is left. Every other field is a query parameter.
    """

    request: Any
    response: Any
    verb: str
    path: str
    body: str = ""
    any_version: bool = False  #: whether it answers of every version of the API


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
#: These have one path for all API versions: operations know theirs.
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
    """Return the methods by their paths on the wire."""
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
    """Yield a service's methods; what has no response of its own name answers `other`."""
    for rpc, (verb, path, body) in table.items():
        names = f"{rpc}Response", rpc.removeprefix("Get")
        found = [getattr(types, name) for name in names if hasattr(types, name)]
        request, response = getattr(types, f"{rpc}Request"), found[0] if found else other
        # google.cloud.tpu wraps its messages, the common services do not.
        asked, answered = (
            each.pb() if hasattr(each, "pb") else each for each in (request, response)
        )
        shared, path = service == "google.longrunning.Operations", f"/{version}/{path}"
        yield f"/{service}/{rpc}", GrpcMethod(asked, answered, verb, path, body, shared)

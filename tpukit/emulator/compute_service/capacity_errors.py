"""The errors of requests for hosts that cannot be fulfilled, in Compute Engine's form."""

from __future__ import annotations

from tpukit.accelerators import region_of
from tpukit.emulator.compute_service.machine_types import MACHINE_TYPES, MachineType
from tpukit.emulator.core.api_errors import Json, Status
from tpukit.emulator.core.service_context import Call, ServiceContext
from tpukit.emulator.tpu_service.quotas import COMPUTE_QUOTAS


def quota_error(context: ServiceContext, call: Call, instance: Json, count: int = 1) -> Json | None:
    """Return the error of a request for hosts that exceeds a quota of their region, or None."""
    region = region_of(call.path["zone"])
    name = quota_name(instance)
    record = context.state.quotas.get(f"{region}/{name}") if name else None
    if record is None:
        return None
    used = sum(
        machine_of(other["instance"]).accelerator.chips
        for full, other in context.state.instances.items()
        if full.split("/")[1] == call.project
        and region_of(full.split("/")[3]) == region
        and quota_name(other["instance"]) == name
    )
    limit = record["limit"]
    if used + count * machine_of(instance).accelerator.chips <= limit:
        return None
    details = {
        "metricName": f"compute.googleapis.com/{name.removesuffix('-per-project-region')}",
        "limitName": name,
        "dimensions": {"region": region},
        "limit": float(limit),
    }
    return {
        "code": "QUOTA_EXCEEDED",
        "message": f"Quota '{name}' exceeded.  Limit: {float(limit)} in region {region}.",
        "errorDetails": [{"quotaInfo": details}],
        "httpErrorStatusCode": 403,
        "httpErrorMessage": "FORBIDDEN",
    }


def quota_name(instance: Json) -> str:
    """Return the quota that an instance uses, or "" if a reservation covers it."""
    model = instance["scheduling"]["provisioningModel"]
    if model == "RESERVATION_BOUND":
        return ""
    standard, preemptible = COMPUTE_QUOTAS[machine_of(instance).name.partition("-")[0]]
    return preemptible if model in ("SPOT", "FLEX_START") else standard


def machine_of(instance: Json) -> MachineType:
    """Return the machine type of a recorded instance."""
    return MACHINE_TYPES[instance["machineType"].rsplit("/", 1)[1]]


def failed(call: Call, failure: Status, machine: MachineType) -> Json:
    """Return an injected fault as the error of an operation, in Compute Engine's form."""
    if failure.reason == "stockout":
        return stockout(call, machine)
    return {"code": failure.status, "message": failure.message}


def stockout(call: Call, machine: MachineType) -> Json:
    """Return a stockout's error: its form is from kubernetes/k8s.io#9834 and ai-on-gke#849.

    The reason of a TPU is "stockout": ../shared/reference/compute-engine.md, 2.1.
    """
    zone = call.path["zone"]
    help_ = {
        "description": "Troubleshooting documentation",
        "url": "https://cloud.google.com/compute/docs/resource-error",
    }
    text = (
        f"A {machine.name} VM instance is currently unavailable in the {zone} zone. "
        "Alternatively, you can try your request again with a different VM hardware configuration "
        "or at a later time. For more information, see the troubleshooting documentation."
    )
    metadatas = {
        "attachment": "",
        "vmType": machine.name,
        "zone": zone,
        "zonesAvailable": "",
    }
    return {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "message": (
            f"The zone 'projects/{call.project}/zones/{zone}' does not have enough resources "
            "available to fulfill the request.  '(resource type:compute)'."
        ),
        "errorDetails": [
            {"help": {"links": [help_]}},
            {"localizedMessage": {"locale": "en-US", "message": text}},
            {
                "errorInfo": {
                    "reason": "stockout",
                    "domain": "compute.googleapis.com",
                    "metadatas": metadatas,
                }
            },
        ],
        "httpErrorStatusCode": 503,
        "httpErrorMessage": "SERVICE UNAVAILABLE",
    }

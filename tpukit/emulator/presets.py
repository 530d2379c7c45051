"""Refusals of the real service that a user can ask for by name, in its own words.

Codes and texts are as reported in public; where only the sentence is known, there are no details.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tpukit.emulator.errors import Json, Status, error_info, quota_failure, retry_info


@dataclass(frozen=True)
class Preset:
    """What is served, on which method, and whether the call or its operation fails.

    `{project}`, `{zone}`, `{region}`, `{name}` and `{type}` in the message are the request's own.
    """

    method: str
    kind: str  #: "status" or "operation"
    status: Status


_RATE_METRIC = "Maximum number of CreateNode requests per minute"
_QUOTA = "TPUV2sPodPerProjectPerZoneForTPUAPI"
_TPU = "tpu.googleapis.com"


def _quota_details() -> tuple[Json, ...]:
    subject, text = "project:{project}", f"Quota limit '{_QUOTA}' has been exceeded."
    return (error_info("RATE_LIMIT_EXCEEDED", quota_limit=_QUOTA), quota_failure(subject, text))


PRESETS: Mapping[str, Preset] = {
    # hashicorp/terraform-provider-google#21243, thevasudevgupta/gsoc-wav2vec2#11
    "stockout": Preset(
        "nodes.create",
        "operation",
        Status(
            "RESOURCE_EXHAUSTED",
            'There is no more capacity in the zone "{zone}"; you can try in another zone where '
            "Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) "
            "[EID: 0x1b3c5d7e9f]",
        ),
    ),
    # skypilot-org/skypilot#4579, seen with the codes 8 and 9
    "stockout-reserved": Preset(
        "nodes.create",
        "operation",
        Status(
            "FAILED_PRECONDITION",
            "Insufficient reserved capacity. Contact customer support to increase your "
            "reservation. [EID: 0x2ff49afa9c]",
        ),
    ),
    # A stockout in disguise, code 13: a public report on queued resources
    "stockout-internal": Preset(
        "nodes.create", "operation", Status("INTERNAL", "an internal error has occurred")
    ),
    # The same on a queued resource: PROVISIONING, SUSPENDING, FAILED, by the service
    "queued-stockout-internal": Preset(
        "queuedResources.create", "operation", Status("INTERNAL", "an internal error has occurred")
    ),
    # A public report of a queue that is closed to a project, which says so in the request's error
    "queue-closed": Preset(
        "queuedResources.create",
        "operation",
        Status(
            "PERMISSION_DENIED",
            "User does not have permission to submit requests into this queue for accelerator "
            "type {type} in location {zone}",
        ),
    ),
    # A public report: force-deleting while PROVISIONING is accepted and fails a little later
    "queued-delete-fails": Preset(
        "queuedResources.delete",
        "operation",
        Status("FAILED_PRECONDITION", "The queued resource '{name}' cannot be deleted now."),
    ),
    # marin-community/marin#1612; the details are those that AIP-193 prescribes
    "quota": Preset(
        "nodes.create",
        "status",
        Status(
            "RESOURCE_EXHAUSTED",
            f"Quota limit '{_QUOTA}' has been exceeded. Limit: 0 in zone {{zone}}.",
            _quota_details(),
        ),
    ),
    # marin-community/marin#6198
    "rate-limit": Preset(
        "nodes.create",
        "status",
        Status(
            "RESOURCE_EXHAUSTED",
            f"Quota exceeded for quota metric '{_RATE_METRIC}' and limit '{_RATE_METRIC} per "
            f"project' of service '{_TPU}'",
            (error_info("RATE_LIMIT_EXCEEDED", service=_TPU), retry_info(1)),
        ),
    ),
    # tensorflow/tpu#296
    "permission-denied": Preset(
        "nodes.create",
        "status",
        Status(
            "PERMISSION_DENIED",
            "Permission 'tpu.nodes.create' denied on 'projects/{project}/locations/{zone}'",
            (
                error_info(
                    "IAM_PERMISSION_DENIED", "iam.googleapis.com", permission="tpu.nodes.create"
                ),
            ),
        ),
    ),
    # tensorflow/tpu#296 has the form of the sentence
    "firewall-permission-denied": Preset(
        "firewalls.insert",
        "status",
        Status(
            "PERMISSION_DENIED",
            "Required 'compute.firewalls.create' permission for "
            "'projects/{project}/global/firewalls/{name}'",
        ),
    ),
    # A public report; reason and domain are those of AIP-193's example
    "api-disabled": Preset(
        "nodes.*",
        "status",
        Status(
            "PERMISSION_DENIED",
            "Cloud TPU API has not been used in project {project} before or it is disabled. Enable "
            "it by visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/"
            "overview?project={project} then retry.",
            (error_info("SERVICE_DISABLED", service=_TPU, consumer="projects/{project}"),),
        ),
    ),
    # AIP-151: a deletion is an operation, which can fail like any other
    "delete-fails": Preset(
        "nodes.delete", "operation", Status("INTERNAL", "an internal error has occurred")
    ),
    # A public report: the first reads after a create answer so
    "not-found-yet": Preset(
        "nodes.get",
        "status",
        Status(
            "NOT_FOUND", "Resource 'projects/{project}/locations/{zone}/nodes/{name}' was not found"
        ),
    ),
    "unavailable": Preset(
        "*", "status", Status("UNAVAILABLE", "The service is currently unavailable.")
    ),
}


def filled(status: Status, words: Mapping[str, str]) -> Status:
    """Return the status with its placeholders replaced, in the message and in the details."""
    return replace(
        status,
        message=_fill(status.message, words),
        details=tuple(_fill_detail(detail, words) for detail in status.details),
    )


def _fill(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace("{" + word + "}", value)
    return text


def _fill_detail(value: Json, words: Mapping[str, str]) -> Json:
    return {key: _fill_any(entry, words) for key, entry in value.items()}


def _fill_any(value: object, words: Mapping[str, str]) -> object:
    if isinstance(value, str):
        return _fill(value, words)
    if isinstance(value, dict):
        return _fill_detail(value, words)
    return [_fill_any(entry, words) for entry in value] if isinstance(value, list) else value

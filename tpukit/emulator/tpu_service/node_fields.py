"""Checks of a Node's fields, and of fields that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from tpukit.emulator.core.api_errors import ApiError, Json, field_violation, invalid
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext

#: Google Cloud documentation, "Requirements for labels": lower case, digits, _, -, 63 characters.
_LABEL_KEY = re.compile(r"[^\W\dA-Z_][\w-]{0,62}")
_LABEL_VALUE = re.compile(r"[\w-]{0,63}")
_MOST_LABELS = 64
#: VPC documentation, "Network tags", limits: tags of one VM.
_MOST_TAGS = 64
#: The discovery document on `description`.
_LONGEST_DESCRIPTION = 512
#: Compute Engine's discovery document on the keys and values of metadata, sizes in bytes.
_METADATA_KEY = re.compile(r"[a-zA-Z0-9-_]{1,128}")
_LARGEST_VALUE = 262_144
_LARGEST_METADATA = 524_288
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
#: OAuth 2.0 scopes of Google APIs are URLs: developers.google.com/identity/protocols/oauth2/scopes.
_SCOPE = re.compile(r"https://[\w.-]+/\S*")
#: The discovery document on `sourceDisk`: the full path of a disk; a link ends in it too.
_DISK = re.compile(r"(https://\S+/)?projects/[^/\s]+/(zones|regions)/([^/\s]+)/disks/([^/\s]+)")
#: The ways to buy capacity: a node may name only one.
_WAYS = ("spot", "preemptible", "reserved")
#: The older fields that each provisioning model allows; with STANDARD, gcloud alpha sends any.
_MODELS = {
    "SPOT": frozenset({"spot"}),
    "RESERVATION_BOUND": frozenset({"reserved", "reservation_name"}),
    "FLEX_START": frozenset[str](),
}


def check_fields(call: Call, given: Json) -> None:
    """Raise `ApiError` if a field of a create or an update has a bad value."""
    check_labels(given.get("labels", {}))
    check_tags(given.get("tags", []))
    check_metadata("node.metadata", given.get("metadata", {}).items())
    _check_disks(call.path["zone"], given.get("dataDisks", []))
    if len(given.get("description", "")) > _LONGEST_DESCRIPTION:
        raise bad("node.description", f"is longer than {_LONGEST_DESCRIPTION} characters")
    try:
        ip_network(given.get("cidrBlock") or "0.0.0.0/0", strict=False)
    except ValueError as error:
        raise bad("node.cidr_block", "is not a CIDR block") from error


def check_metadata(field: str, items: Iterable[tuple[str, str]]) -> None:
    """Raise `ApiError` for a key, a value or a size that Compute Engine's metadata refuses."""
    size = 0
    for key, value in items:
        size += len(key.encode()) + len(value.encode())
        if not _METADATA_KEY.fullmatch(key):
            raise bad(f"{field}[{key}]", f"has a key that does not match {_METADATA_KEY.pattern}")
        if len(value.encode()) > _LARGEST_VALUE:
            raise bad(f"{field}[{key}]", f"is larger than {_LARGEST_VALUE} bytes")
    if size > _LARGEST_METADATA:
        raise bad(field, f"is larger than {_LARGEST_METADATA} bytes in all")


def check_account(account: Json) -> None:
    """Raise `ApiError` if a service account is not an email address, or a scope not a URL."""
    email = account.get("email")
    if email and not is_address(email):
        raise bad("node.service_account.email", f"is {email!r}, not an e-mail address")
    wrong = [scope for scope in account.get("scope", ()) if not _SCOPE.fullmatch(scope)]
    if wrong:
        # Compute Engine's message: GoogleCloudPlatform/cloud-build-local#49.
        shown = ", ".join(map(repr, wrong))
        text = f"One or more of the service account scopes are invalid: {shown}"
        raise invalid(text, [field_violation("node.service_account.scope", text)])


def check_scheduling(context: ServiceContext, scheduling: Json) -> None:
    """Raise `ApiError` if a node names two ways to buy it."""
    ways = [way for way in _WAYS if scheduling.get(way)]
    if scheduling.get("reservationName") and "reserved" not in ways:
        ways.append("reservation_name")
    model = scheduling.get("provisioningModel", "PROVISIONING_MODEL_UNSPECIFIED")
    if not {*ways} <= _MODELS.get(model, {*ways}):
        ways.append(f"provisioning_model {model}")
    if len(ways) > 1:
        raise context.bad_request(f"only one of {' and '.join(ways)} may be set")


def is_address(text: str) -> bool:
    """Return True if a text has the form of an e-mail address."""
    return _ADDRESS.fullmatch(text) is not None


def is_reserved(scheduling: Json) -> bool:
    """Return True if a node asks for reserved capacity."""
    bound = scheduling.get("provisioningModel") == "RESERVATION_BOUND"
    return bool(bound or scheduling.get("reserved") or scheduling.get("reservationName"))


def bad(field: str, why: str) -> ApiError:
    """Return the error for one field's value; it names the field."""
    text = f"Invalid value at '{field}': it {why}."
    return invalid(text, [field_violation(field, text)])


def _check_disks(zone: str, disks: Sequence[Json]) -> None:
    seen = set()
    for number, disk in enumerate(disks):
        field = f"node.data_disks[{number}].source_disk"
        match = _DISK.fullmatch(disk.get("sourceDisk", ""))
        if match is None:
            raise bad(field, "is not projects/P/zones/Z/disks/D, the full path of a disk")
        region = zone.rpartition("-")[0]
        if match[3] != (zone if match[2] == "zones" else region):
            raise bad(field, f"is in {match[3]}, and the node is in {zone}")
        if match[0] in seen:
            raise bad(field, "names a disk twice")
        seen.add(match[0])


def check_labels(labels: Json) -> None:
    """Raise `ApiError` for a bad label, or for too many."""
    for key, value in labels.items():
        bad_case = key != key.lower() or value != value.lower()
        if bad_case or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            text = f"Invalid label: {key!r}: {value!r}"
            raise invalid(text, [field_violation(f"node.labels[{key}]", text)])
    if len(labels) > _MOST_LABELS:
        raise bad("node.labels", f"has {len(labels)} entries, at most {_MOST_LABELS} are allowed")


def check_tags(tags: Sequence[str]) -> None:
    """Raise `ApiError` for a bad network tag, or for too many."""
    for tag in tags:
        if not RESOURCE_ID.fullmatch(tag):
            text = f"Invalid network tag: {tag!r}"
            raise invalid(text, [field_violation("node.tags", text)])
    if len(tags) > _MOST_TAGS:
        raise bad("node.tags", f"has {len(tags)} entries, at most {_MOST_TAGS} are allowed")

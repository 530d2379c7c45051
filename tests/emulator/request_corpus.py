"""Right and wrong requests to the emulated APIs, made from what exists and what goes together.

A wrong request has one thing wrong, and the word by which its refusal must name that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tpukit.accelerators import all_types

ZONE, REGION = "us-central1-a", "us-central1"
PLACE = f"projects/p/locations/{ZONE}"
COMPUTE = "/compute/v1/projects/p"
VERSIONS = ("v2", "v2alpha1")
UUID = "7f3c9a52-5f0f-4c7f-9f2e-2f6a8d9b1c3{}"
NODE = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-base"}
SPEC = {"parent": PLACE, "nodeId": "n", "node": NODE}
RULE = {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
NETWORKS = "projects/p/global/networks"
DISK = f"projects/p/zones/{ZONE}/disks/{{}}"


@dataclass(frozen=True)
class Wrong:
    """A request to refuse with a status, and a word of the message (as it is, in any case)."""

    verb: str
    path: str
    body: Any
    word: str
    status: int = 400


@dataclass(frozen=True)
class Right:
    """A request to accept."""

    verb: str
    path: str
    body: Any = None


#: What there is before the first request, beside what every project has.
WORLD = (
    Right("POST", f"/v2/{PLACE}/nodes?nodeId=taken", NODE),
    Right("POST", f"{COMPUTE}/global/firewalls", {"name": "taken", **RULE}),
    Right("POST", f"{COMPUTE}/zones/{ZONE}/disks", {"name": "taken"}),
    Right("POST", f"{COMPUTE}/global/networks", {"name": "own", "autoCreateSubnetworks": False}),
    Right("POST", f"{COMPUTE}/global/networks", {"name": "auto"}),
    Right(
        "POST",
        f"{COMPUTE}/regions/{REGION}/subnetworks",
        {"name": "s", "network": f"{NETWORKS}/own", "ipCidrRange": "10.0.0.0/24"},
    ),
    Right(
        "POST",
        "/_emulator/v1/catalogue/reservations",
        {"name": "held", "project": "p", "zone": ZONE, "resourceType": "v3", "size": 64},
    ),
)


def network(name: str = "", subnetwork: str = "") -> Any:
    given = {"network": name, "subnetwork": subnetwork}
    return {key: value for key, value in given.items() if value}


WRONG_NETWORKS = [
    *((network(name), "network") for name in ("none", "global/networks/none")),
    *((network(f"{NETWORKS}/{name}"), "network") for name in ("none", "Default", "own2")),
    (network("projects/other/global/networks/default"), "projects/other"),
    *((network(name), "malformed") for name in ("a/default", "zones/a/default", "default\n")),
    (network(f"https://example.com/{NETWORKS}/default"), "malformed"),
    (network("", f"a/{REGION}/subnetworks/default"), "malformed"),
    (network("", "none"), "subnetwork"),
    (network("", f"regions/{REGION}/subnetworks/none"), "subnetwork"),
    (network("", f"projects/p/regions/{REGION}/subnetworks/none"), "subnetwork"),
    (network("", "regions/europe-west4/subnetworks/default"), "region"),
    (network("", "projects/p/regions/us-east1/subnetworks/default"), "region"),
    (network("own", "default"), "subnetwork"),
    (network("own"), "subnetwork"),
    (network("default", "s"), "subnetwork"),
    (network("auto", "default"), "subnetwork"),
]
RIGHT_NETWORKS = [
    network("default"),
    network("global/networks/default"),
    network(f"{NETWORKS}/default"),
    network(f"https://www.googleapis.com/compute/v1/{NETWORKS}/default"),
    network(f"//compute.googleapis.com/{NETWORKS}/default"),
    network("default", "default"),
    network("", f"regions/{REGION}/subnetworks/default"),
    network("", f"projects/p/regions/{REGION}/subnetworks/default"),
    network("auto"),
    network("auto", "auto"),
    network("own", "s"),
    network(f"{NETWORKS}/own", f"projects/p/regions/{REGION}/subnetworks/s"),
    {"enableExternalIps": True, "canIpForward": True, "queueCount": 4},
]
#: Fields that a create and an update have, the wrong value, and the word of the refusal.
WRONG_VALUES: list[tuple[str, Any, str]] = [
    *(("tags", [tag], "network tag") for tag in ("", "T", "-a", "a_b", "a" * 64, "1a")),
    ("tags", [f"t{number}" for number in range(65)], "tags"),
    *(("labels", {key: "v"}, "label") for key in ("", "K", "1k", "k" * 64, "k k")),
    *(("labels", {"k": value}, "label") for value in ("V", "v" * 64, "v v")),
    ("labels", {f"k{number}": "v" for number in range(65)}, "labels"),
    *(("metadata", {key: "v"}, "metadata") for key in ("", "a b", "é", "k" * 129, "a/b")),
    ("metadata", {"k": "v" * 262_145}, "metadata[k]"),
    ("metadata", {f"k{number}": "v" * 200_000 for number in range(5)}, "metadata"),
    ("metadata", dict.fromkeys("ab", "v" * 262_144), "metadata"),
    ("metadata", {"k": 5}, "metadata"),
    ("description", "d" * 513, "description"),
    *(
        ("dataDisks", [{"sourceDisk": disk}], "source_disk")
        for disk in (
            "d",
            "disks/d",
            f"zones/{ZONE}/disks/d",
            "projects/p/zones/us-central1-b/disks/d",
            "projects/p/regions/europe-west4/disks/d",
            f"projects/p/zones/{ZONE}/images/d",
        )
    ),
    ("dataDisks", [{"sourceDisk": DISK.format("d")}] * 2, "twice"),
    ("dataDisks", [{"sourceDisk": DISK.format("d"), "mode": "BOTH"}], "mode"),
]
RIGHT_VALUES: list[tuple[str, Any]] = [
    ("tags", ["a" * 63]),
    ("tags", [f"t{number}" for number in range(64)]),
    ("labels", {"é": "ü_-1", "k" * 63: "v" * 63}),
    ("labels", {f"k{number}": "" for number in range(64)}),
    ("metadata", {"k" * 128: "v" * 262_144}),
    ("metadata", {"a_B-9": "", "startup-script": "#! /bin/sh\n"}),
    ("description", "d" * 512),
    ("dataDisks", [{"sourceDisk": DISK.format("taken"), "mode": "READ_ONLY"}]),
    ("dataDisks", [{"sourceDisk": f"https://www.googleapis.com/{DISK.format('taken')}"}]),
    ("dataDisks", [{"sourceDisk": f"projects/p/regions/{REGION}/disks/r"}]),
]
WRONG_NODES: list[tuple[dict[str, Any], str]] = [
    *(({"networkConfig": config}, word) for config, word in WRONG_NETWORKS),
    *(({"networkConfigs": [{}, config]}, word) for config, word in WRONG_NETWORKS),
    ({"networkConfig": network("default"), "networkConfigs": [{}]}, "only one of"),
    *(
        ({"serviceAccount": {"email": email}}, "service_account.email")
        for email in ("nobody", "a@b", "a b@c.de", "@c.de", "a@", "default", "a@b@c.de")
    ),
    *(
        ({"serviceAccount": {"scope": [scope]}}, "scope")
        for scope in ("hello", "", "cloud-platform", "http://www.googleapis.com/auth/tpu", "https:")
    ),
    ({"schedulingConfig": {"spot": True, "preemptible": True}}, "spot and preemptible"),
    ({"schedulingConfig": {"spot": True, "reserved": True}}, "spot and reserved"),
    ({"schedulingConfig": {"preemptible": True, "reserved": True}}, "preemptible and reserved"),
    ({"cidrBlock": "10.0.0.0/33"}, "cidr_block"),
    ({"cidrBlock": "here"}, "cidr_block"),
    ({"runtimeVersion": ""}, "Runtime version"),
    ({"runtimeVersion": "tpu-vm-none"}, "tpu-vm-none"),
    ({"acceleratorType": "v3-7"}, "v3-7"),
    ({"acceleratorType": "v4-8"}, "v4-8"),  # in other zones
    ({"acceleratorType": "tpu"}, "tpu"),
    ({"acceleratorConfig": {"type": "V3", "topology": "2x2"}}, "only one of accelerator_type"),
    (
        {"acceleratorType": "", "acceleratorConfig": {"type": "V3", "topology": "3x3"}},
        "V3 3x3",
    ),
    ({"acceleratorType": "", "acceleratorConfig": {"type": "V9", "topology": "2x2"}}, "type"),
    (
        {"acceleratorType": "v2-32", "dataDisks": [{"sourceDisk": DISK.format("d")}]},
        "READ_ONLY",
    ),
    ({"spott": True}, "spott"),
    ({"shieldedInstanceConfig": {"enableSecureBoot": "perhaps"}}, "enable_secure_boot"),
]
#: What v2alpha1 alone has.
WRONG_ALPHA_NODES: list[tuple[dict[str, Any], str]] = [
    ({"schedulingConfig": {"provisioningModel": "SPOT", "reserved": True}}, "SPOT"),
    ({"schedulingConfig": {"provisioningModel": "SPOT", "preemptible": True}}, "SPOT"),
    ({"schedulingConfig": {"provisioningModel": "RESERVATION_BOUND", "spot": True}}, "spot"),
    ({"schedulingConfig": {"spot": True, "reservationName": "held"}}, "reservation_name"),
    ({"schedulingConfig": {"reservationName": "projects/p/held"}}, "reservation_name"),
]
RIGHT_NODES: list[dict[str, Any]] = [
    *({"networkConfig": config} for config in RIGHT_NETWORKS),
    {"networkConfigs": [network("default"), network("own", "s")]},
    {"serviceAccount": {"email": "tpu@p.iam.gserviceaccount.com"}},
    {"serviceAccount": {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}},
    {"serviceAccount": {"scope": ["https://mail.google.com/"]}},
    *({"schedulingConfig": {way: True}} for way in ("spot", "preemptible", "reserved")),
    {"schedulingConfig": {"spot": False, "preemptible": False, "reserved": False}},
    {"cidrBlock": "10.2.3.0/29"},
    {"acceleratorType": "", "acceleratorConfig": {"type": "V2", "topology": "4x4"}},
    {
        "acceleratorType": "v2-32",
        "dataDisks": [{"sourceDisk": DISK.format("taken"), "mode": "READ_ONLY"}],
    },
    {"shieldedInstanceConfig": {"enableSecureBoot": True}},
]
RIGHT_ALPHA_NODES: list[dict[str, Any]] = [
    {"schedulingConfig": {"provisioningModel": "SPOT", "spot": True}},
    {"schedulingConfig": {"provisioningModel": "STANDARD"}},
    {"schedulingConfig": {"provisioningModel": "STANDARD", "reserved": True}},
    {"schedulingConfig": {"provisioningModel": "RESERVATION_BOUND", "reservationName": "held"}},
    {"schedulingConfig": {"reserved": True, "reservationName": f"{PLACE}/reservations/held"}},
]
WRONG_QUEUED: list[tuple[dict[str, Any], str]] = [
    ({"spot": {}, "guaranteed": {}}, "spot and guaranteed"),
    ({"spot": {}, "reservationName": f"{PLACE}/reservations/held"}, "reservation_name"),
    ({"reservationName": "projects/p/held"}, "reservation_name"),
    ({"guaranteed": {"minDuration": "-1s"}}, "min_duration"),
    ({"guaranteed": {"minDuration": "an hour"}}, "min_duration"),
    *(
        ({"queueingPolicy": {"validInterval": interval}}, "valid_interval")
        for interval in (
            {"startTime": "2030-01-02T00:00:00Z", "endTime": "2030-01-01T00:00:00Z"},
            {"startTime": "2030-01-01T00:00:00Z", "endTime": "2030-01-01T00:00:00Z"},
            {"startTime": "soon"},
        )
    ),
    ({"queueingPolicy": {"validUntilDuration": "-5s"}}, "validUntilDuration"),
    ({"queueingPolicy": {"validUntilDuration": "5s", "validAfterDuration": "1s"}}, "only one of"),
    ({"queueingPolicy": {"validUntilTime": "tomorrow"}}, "valid_until_time"),
    ({"tpu": {"nodeSpec": [SPEC, SPEC]}}, "same id"),
    (
        {
            "reservationName": f"{PLACE}/reservations/held",
            "tpu": {"nodeSpec": [{**SPEC, "node": {**NODE, "schedulingConfig": {"spot": True}}}]},
        },
        "spot and reserved",
    ),
    ({"tpu": {"nodeSpec": []}}, "node_spec"),
    ({"tpu": {}}, "node_spec"),
]
RIGHT_QUEUED: list[dict[str, Any]] = [
    {"spot": {}},
    {"guaranteed": {}},
    {"guaranteed": {"minDuration": "3600s"}},
    {"reservationName": f"{PLACE}/reservations/held"},
    {"reservationName": f"{PLACE}/reservations/-"},
    {"queueingPolicy": {"validUntilDuration": "600s"}},
    {"queueingPolicy": {"validAfterTime": "2030-01-01T00:00:00Z"}},
    {"queueingPolicy": {"validInterval": {"endTime": "2099-01-01T00:00:00Z"}}},
]
WRONG_SPECS: list[tuple[dict[str, Any], str]] = [
    ({"parent": ""}, "parent"),
    ({"parent": "projects/other/locations/us-central1-a"}, "parent"),
    ({"parent": "projects/p/locations/us-central1-b"}, "parent"),
    ({"nodeId": "N"}, "id"),
    ({"nodeId": "a" * 64}, "id"),
]
WRONG_RULES: list[tuple[dict[str, Any], str]] = [
    *(
        ({"allowed": [{"IPProtocol": protocol, "ports": ["22"]}]}, "allowed[0].ports[0]")
        for protocol in ("icmp", "esp", "ah", "ipip", "all", "1", "50")
    ),
    *(
        ({"allowed": [{"IPProtocol": protocol}]}, "allowed[0].IPProtocol")
        for protocol in ("300", "256", "-1", "tcpp", "", "tcp:22")
    ),
    *(
        ({"allowed": [{"IPProtocol": "tcp", "ports": [port]}]}, "allowed[0].ports[0]")
        for port in ("", "a", "65536", "9-8", "22,80", "1-65536", "-5", "22-")
    ),
    (
        {"allowed": [{"IPProtocol": "tcp"}, {"IPProtocol": "icmp", "ports": ["1"]}]},
        "allowed[1].ports[0]",
    ),
    ({"allowed": []}, "allowed"),
    ({"denied": [{"IPProtocol": "tcp"}]}, "denied"),
    ({"allowed": [], "denied": [{"IPProtocol": "300"}]}, "denied[0]"),
    *(({"priority": priority}, "priority") for priority in (-1, 65536, "high", 2**31)),
    *(
        ({"sourceRanges": [block]}, "sourceRanges")
        for block in ("here", "10.0.0.1/8", "10.0.0.0/33", "256.0.0.0/8", "::1/129")
    ),
    ({"sourceRanges": ["10.0.0.0/8", "2001:db8::/32"]}, "mixed"),
    ({"destinationRanges": ["10.0.0.1/8"]}, "destinationRanges"),
    ({"direction": "EGRESS", "sourceRanges": ["10.0.0.0/8"]}, "sourceRanges"),
    ({"direction": "EGRESS", "sourceTags": ["t"]}, "sourceTags"),
    ({"direction": "SIDEWAYS"}, "direction"),
    *(({"targetTags": [tag]}, "targetTags[0]") for tag in ("T", "a b", "a" * 64)),
    ({"sourceTags": ["t", "T"]}, "sourceTags[1]"),
    ({"targetTags": [f"t{number}" for number in range(71)]}, "targetTags"),
    ({"sourceTags": [f"t{number}" for number in range(31)]}, "sourceTags"),
    ({"targetServiceAccounts": ["a@b.cd"], "targetTags": ["t"]}, "targetServiceAccounts"),
    ({"sourceServiceAccounts": ["a@b.cd"], "sourceTags": ["t"]}, "sourceServiceAccounts"),
    ({"targetServiceAccounts": ["nobody"]}, "targetServiceAccounts[0]"),
    ({"sourceServiceAccounts": [f"a{n}@b.cd" for n in range(11)]}, "sourceServiceAccounts"),
    ({"colour": "red"}, "colour"),
]
RIGHT_RULES: list[dict[str, Any]] = [
    *({"allowed": [{"IPProtocol": p}]} for p in ("tcp", "icmp", "all", "esp", "0", "255", "TCP")),
    *(
        {"allowed": [{"IPProtocol": p, "ports": ["22", "8000-9000"]}]}
        for p in ("tcp", "udp", "sctp", "6", "17")
    ),
    {"allowed": [], "denied": [{"IPProtocol": "tcp"}]},
    *({"priority": priority} for priority in (0, 65535)),
    {"sourceRanges": ["10.0.0.0/8", "203.0.113.7/32"]},
    {"sourceRanges": ["2001:db8::/32"]},
    {"sourceTags": ["a"], "targetTags": ["b"]},
    {"sourceRanges": ["10.0.0.0/8"], "sourceServiceAccounts": ["a@b.cd"]},
    {"targetServiceAccounts": ["a@b.cd"]},
    {"direction": "EGRESS", "destinationRanges": ["10.0.0.0/8"]},
    {"network": "global/networks/auto"},
    {"network": f"{NETWORKS}/own"},
    {"targetTags": [f"t{number}" for number in range(70)]},
]
#: Lists: the path, a field that its documents have, and a parameter of the size of a page.
LISTS = [
    *((f"/{v}/{PLACE}/acceleratorTypes", "type", "pageSize") for v in VERSIONS),
    *((f"/{v}/{PLACE}/runtimeVersions", "version", "pageSize") for v in VERSIONS),
    *(
        (f"{COMPUTE}/{path}", "name", "maxResults")
        for path in (
            "global/firewalls",
            "global/networks",
            "global/operations",
            "zones",
            "regions",
            f"zones/{ZONE}/disks",
            f"zones/{ZONE}/instances",
            f"zones/{ZONE}/operations",
            f"regions/{REGION}/subnetworks",
            f"regions/{REGION}/operations",
            "aggregated/subnetworks",
            "aggregated/disks",
            "aggregated/instances",
        )
    ),
]


def wrong_requests() -> Iterator[Wrong]:
    """Yield the requests to refuse."""
    yield from _wrong_nodes()
    yield from _wrong_queued()
    yield from _wrong_updates()
    yield from _wrong_rules()
    yield from _wrong_others()
    yield from _missing()
    yield from _wrong_lists()


def right_requests() -> Iterator[Right]:
    """Yield the requests to accept, in an order in which they do not meet."""
    for version in VERSIONS:
        alpha = RIGHT_ALPHA_NODES if version == "v2alpha1" else []
        values = [{field: value} for field, value in RIGHT_VALUES]
        for number, fields in enumerate([*RIGHT_NODES, *values, *alpha]):
            name = f"{version}-{number}"
            yield Right("POST", f"/{version}/{PLACE}/nodes?nodeId={name}", {**NODE, **fields})
            spec = {"parent": PLACE, "nodeId": f"q-{name}", "node": {**NODE, **fields}}
            path = f"/{version}/{PLACE}/queuedResources?queuedResourceId=q-{name}"
            yield Right("POST", path, {"tpu": {"nodeSpec": [spec]}})
        for number, fields in enumerate(RIGHT_QUEUED):
            name = f"r-{version}-{number}"
            spec = {"parent": PLACE, "nodeId": name, "node": NODE}
            path = f"/{version}/{PLACE}/queuedResources?queuedResourceId={name}"
            path += f"&requestId={UUID.format(number)}"
            yield Right("POST", path, {"tpu": {"nodeSpec": [spec]}, **fields})
    for number, kind in enumerate(all_types()):
        zone = kind.facts.zones[number % len(kind.facts.zones)]
        body = {**NODE, "acceleratorType": kind.name}
        yield Right("POST", f"/v2/projects/p/locations/{zone}/nodes?nodeId=n-{kind.name}", body)
    for number, rule in enumerate(RIGHT_RULES):
        path = f"{COMPUTE}/global/firewalls?requestId={UUID.format('f')[:-2]}{number:02}"
        yield Right("POST", path, {"name": f"r{number}", **RULE, **rule})
    for path, field, size in LISTS:
        yield Right("GET", path)
        yield Right("GET", f"{path}?filter={field}%3Dx")
        yield Right("GET", f"{path}?orderBy=name&{size}=500")


def _wrong_nodes() -> Iterator[Wrong]:
    for version in VERSIONS:
        path = f"/{version}/{PLACE}/nodes?nodeId="
        for fields, word in _faulty_nodes(version):
            yield Wrong("POST", f"{path}n", {**NODE, **fields}, word)
        for name in ("N", "1n", "n_n", "n" * 64, "n-"):
            yield Wrong("POST", path + name, NODE, "id")
        yield Wrong("POST", f"{path}taken", NODE, "already exists", 409)


def _faulty_nodes(version: str) -> Iterator[tuple[dict[str, Any], str]]:
    yield from WRONG_NODES
    yield from (({field: value}, word) for field, value, word in WRONG_VALUES)
    if version == "v2alpha1":
        yield from WRONG_ALPHA_NODES


def _wrong_queued() -> Iterator[Wrong]:
    for version in VERSIONS:
        path = f"/{version}/{PLACE}/queuedResources?queuedResourceId=q"
        for fields, word in _faulty_nodes(version):
            spec = {"parent": PLACE, "nodeId": "n", "node": {**NODE, **fields}}
            yield Wrong("POST", path, {"tpu": {"nodeSpec": [spec]}}, word)
        for change, word in WRONG_SPECS:
            spec = {**SPEC, **change}
            yield Wrong("POST", path, {"tpu": {"nodeSpec": [spec]}}, word)
        for fields, word in WRONG_QUEUED:
            yield Wrong("POST", path, {"tpu": {"nodeSpec": [SPEC]}, **fields}, word)
        for wrong in ("r", "00000000-0000-0000-0000-000000000000", UUID.format("x"), ""):
            body = {"tpu": {"nodeSpec": [SPEC]}}
            yield Wrong("POST", f"{path}&requestId={wrong}", body, "requestId")
        spec = {"parent": PLACE, "nodeId": "taken", "node": NODE}
        yield Wrong("POST", path, {"tpu": {"nodeSpec": [spec]}}, "already exists", 409)


def _wrong_updates() -> Iterator[Wrong]:
    for version in VERSIONS:
        path = f"/{version}/{PLACE}/nodes/taken?updateMask="
        for field, value, word in WRONG_VALUES:
            yield Wrong("PATCH", path + field, {field: value}, word)
        for mask in ("", "name", "acceleratorType", "labels,state"):
            yield Wrong("PATCH", path + mask, {}, "update mask")


def _wrong_rules() -> Iterator[Wrong]:
    path = f"{COMPUTE}/global/firewalls"
    for fields, word in WRONG_RULES:
        yield Wrong("POST", path, {"name": "r", **RULE, **fields}, word)
        yield Wrong("PUT", f"{path}/taken", {**RULE, **fields}, word)
    for name in ("", "R", "1r", "r" * 64, "r_"):
        yield Wrong("POST", path, {"name": name, **RULE}, "name")
    yield Wrong("POST", path, {"name": "taken", **RULE}, "already exists", 409)
    for missing in ("none", "projects/p/global/networks/none"):
        yield Wrong("POST", path, {"name": "r", "network": missing, **RULE}, "networks/none", 404)
    for wrong in ("r", "00000000-0000-0000-0000-000000000000", UUID.format("x")):
        yield Wrong("POST", f"{path}?requestId={wrong}", {"name": "r", **RULE}, "requestId")


def _wrong_others() -> Iterator[Wrong]:
    networks, disks = f"{COMPUTE}/global/networks", f"{COMPUTE}/zones/{ZONE}/disks"
    for name in ("", "N", "n" * 64):
        yield Wrong("POST", networks, {"name": name}, "name")
        yield Wrong("POST", disks, {"name": name}, "name")
    for mtu in (1299, 8897):
        yield Wrong("POST", networks, {"name": "n", "mtu": mtu}, "mtu")
    yield Wrong("POST", networks, {"name": "own"}, "already exists", 409)
    for size in ("0", "-1", "65537", "many"):
        yield Wrong("POST", disks, {"name": "d", "sizeGb": size}, "size")
    yield Wrong("POST", disks, {"name": "taken"}, "already exists", 409)
    subnetworks = f"{COMPUTE}/regions/{REGION}/subnetworks"
    base = {"name": "t", "network": f"{NETWORKS}/own", "ipCidrRange": "10.9.0.0/24"}
    for block in ("", "here", "10.0.0.5/24", "10.0.0.0/25"):
        yield Wrong("POST", subnetworks, {**base, "ipCidrRange": block}, "ipCidrRange")
    yield Wrong("POST", subnetworks, {**base, "name": "S"}, "name")
    yield Wrong("POST", subnetworks, {**base, "name": "s"}, "already exists", 409)
    yield Wrong("POST", subnetworks, {**base, "network": "none"}, "networks/none", 404)
    metadata = f"{COMPUTE}/setCommonInstanceMetadata"
    for items, word in (
        ([{"value": "v"}], "key"),
        ([{"key": "a b", "value": "v"}], "metadata.items"),
        ([{"key": "k", "value": "v" * 262_145}], "metadata.items"),
        ([{"key": "k", "value": "v"}] * 2, "twice"),
    ):
        yield Wrong("POST", metadata, {"items": items}, word)
    services = "/v1/projects/p/services:batchEnable"
    yield Wrong("POST", services, {"serviceIds": []}, "services")
    yield Wrong("POST", "/v1/projects/p:testIamPermissions", {"permissions": ["x"]}, "Permission x")
    yield Wrong("POST", "/v1/users/a:importSshPublicKey", {"key": "k"}, "key")


def _missing() -> Iterator[Wrong]:
    for version in VERSIONS:
        nodes = f"/{version}/{PLACE}/nodes/none"
        queued = f"/{version}/{PLACE}/queuedResources/none"
        for path in (nodes, queued, f"/{version}/{PLACE}/operations/none"):
            yield Wrong("GET", path, None, "none", 404)
            yield Wrong("DELETE", path, None, "none", 404)
        for action in ("start", "stop", "getGuestAttributes"):
            yield Wrong("POST", f"{nodes}:{action}", {}, "nodes/none", 404)
        yield Wrong("POST", f"{queued}:reset", {}, "queuedResources/none", 404)
        for collection in ("acceleratorTypes", "runtimeVersions"):
            yield Wrong("GET", f"/{version}/{PLACE}/{collection}/none", None, "none", 404)
        for collection in ("nodes", "queuedResources", "acceleratorTypes", "operations"):
            path = f"/{version}/projects/p/locations/no-where1-a/{collection}"
            yield Wrong("GET", path, None, "no-where1-a", 403)
        yield Wrong("GET", f"/{version}/projects/999999999999/locations", None, "999999999999", 403)
    for path in (
        "global/firewalls/none",
        "global/networks/none",
        f"zones/{ZONE}/disks/none",
        f"regions/{REGION}/subnetworks/none",
    ):
        yield Wrong("GET", f"{COMPUTE}/{path}", None, path, 404)
        yield Wrong("DELETE", f"{COMPUTE}/{path}", None, path, 404)
    for path in ("zones/no-where1-a", "regions/no-where1", "global/operations/none"):
        yield Wrong("GET", f"{COMPUTE}/{path}", None, path, 404)
    for path in ("zones/no-where1-a/instances", "regions/no-where1/subnetworks"):
        yield Wrong("GET", f"{COMPUTE}/{path}", None, "no-where1", 404)


def _wrong_lists() -> Iterator[Wrong]:
    for path, field, size in LISTS:
        for wrong in ("colour", f"{field}.colour", "Name", "labels2.a"):
            yield Wrong("GET", f"{path}?filter={wrong}%3Dx", None, "filter")
        for text in (field, f"{field}=", "(", f"{field}~x"):
            yield Wrong("GET", f"{path}?filter={quote(text)}", None, "filter")
        for order in ("colour", f"{field}%20up", f"{field}%2Ccolour"):
            yield Wrong("GET", f"{path}?orderBy={order}", None, "orderBy")
        for text in ("-1", "many"):
            yield Wrong(
                "GET", f"{path}?{size}={text}", None, "size" if size == "pageSize" else "results"
            )
        yield Wrong("GET", f"{path}?pageToken=%21", None, "token")
        yield Wrong("GET", f"{path}?colour=red", None, "colour")
        yield Wrong("GET", f"{path}?fields=colour", None, "colour")
        if size == "maxResults":
            yield Wrong("GET", f"{path}?maxResults=501", None, "maxResults")
            order = "orderBy=creationTimestamp%20desc"
            yield Wrong("GET", f"{path}?{order}&filter={field}%3Dx", None, "orderBy")

"""The gcloud command that makes the same API call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tpukit.models import ApiCall

Words = list[str]
Body = Mapping[str, Any]
_NODE = re.compile(
    r"/(?P<version>v2(?:alpha1)?)/projects/(?P<project>[^/]+)/locations/(?P<zone>[^/]+)"
    r"/(?P<kind>nodes|queuedResources)(?:/(?P<name>[^/:]+))?(?::(?P<verb>\w+))?"
)
_RULE = re.compile(r".*/projects/(?P<project>[^/]+)/global/firewalls(?:/(?P<name>[^/]+))?")
#: `AttachedDisk.DiskMode` of the Cloud TPU API by its numbers.
_MODES = {1: "read-write", 2: "read-only", "READ_WRITE": "read-write", "READ_ONLY": "read-only"}
#: The fields that gcloud can replace as a whole.
_UPDATED = {"labels", "metadata", "tags"}


def gcloud_line(call: ApiCall) -> tuple[str, ...]:
    """Return the words of the command; none if gcloud has no command for the call."""
    path, query = urlsplit(call.url).path, dict(parse_qsl(urlsplit(call.url).query))
    body = call.body or {}
    if match := _NODE.fullmatch(path):
        group = "tpu-vm" if match["kind"] == "nodes" else "queued-resources"
        words = (_node if group == "tpu-vm" else _queued)(call.method, match, query, body)
        track = ["alpha"] if match["version"] == "v2alpha1" else []
        place = ["--zone", match["zone"], "--project", match["project"]]
        start = ["gcloud", *track, "compute", "tpus", group]
        return (*start, *words[:2], *place, *words[2:]) if words else ()
    if match := _RULE.fullmatch(path):
        words = _rule(call.method, match, body)
        start = ["gcloud", "compute", "firewall-rules", *words[:2]]
        return (*start, "--project", match["project"], *words[2:]) if words else ()
    return ()


def _node(method: str, match: re.Match[str], query: Mapping[str, str], body: Body) -> Words:
    if method == "POST" and not match["name"]:
        return ["create", query.get("nodeId", ""), "--accelerator-type", body["acceleratorType"],
                "--version", body["runtimeVersion"], *_node_flags(body)]  # fmt: skip
    if method == "POST" and match["verb"] in ("start", "stop"):
        return [match["verb"], match["name"]]
    if method == "DELETE":
        return ["delete", match["name"], "--quiet"]
    if method == "PATCH":
        changed = query.get("updateMask", "").split(",")
        if not set(changed) <= _UPDATED:
            return []  # gcloud cannot replace disks, only attach and detach them one by one
        return ["update", match["name"], *_each(changed, lambda field: _replaced(field, body))]
    return []


def _node_flags(body: Body) -> Words:
    network, scheduling = body.get("networkConfig", {}), body.get("schedulingConfig", {})
    account = body.get("serviceAccount", {})
    return [
        *_given("--network", network.get("network")),
        *_given("--subnetwork", network.get("subnetwork")),
        *([] if network.get("enableExternalIps") else ["--internal-ips"]),
        *(f"--{tier}" for tier in ("spot", "preemptible", "reserved") if scheduling.get(tier)),
        *_given("--service-account", account.get("email")),
        *_given("--scopes", ",".join(account.get("scope", ()))),
        *_given("--labels", _pairs(body.get("labels", {}))),
        *_given("--tags", ",".join(body.get("tags", ()))),
        *_given("--metadata", _pairs(body.get("metadata", {}))),
        *_each(body.get("dataDisks", ()), _disk),
    ]


def _disk(disk: Body) -> Words:
    mode = _MODES.get(disk.get("mode", ""), "")
    return ["--data-disk", f"source={disk['sourceDisk']}{mode and f',mode={mode}'}"]


def _replaced(field: str, body: Body) -> Words:
    """Return the flags that give a field its new value; the old one is cleared first."""
    value = body.get(field)
    if field == "tags":
        return ["--clear-tags", *_given("--add-tags", ",".join(value or ()))]
    return [f"--clear-{field}", *_given(f"--update-{field}", _pairs(value or {}))]


def _queued(method: str, match: re.Match[str], query: Mapping[str, str], body: Body) -> Words:
    if method == "DELETE":
        forced = ["--force"] if query.get("force") else []
        return ["delete", match["name"], "--quiet", *forced]
    if method != "POST" or match["name"]:
        return []
    spec = body["tpu"]["nodeSpec"][0]
    node, several = spec["node"], spec.get("multisliceParams") or spec.get("multiNodeParams")
    bought = [flag for tier, flag in _TIERS.items() if tier in body]
    kept = {key: value for key, value in node.items() if key != "schedulingConfig"}
    return [
        *("create", query.get("queuedResourceId", "")),
        *("--accelerator-type", node["acceleratorType"]),
        *("--runtime-version", node["runtimeVersion"]),
        *_given("--node-id", spec.get("nodeId")),
        *(_several(several) if several else []),
        *_node_flags(kept),
        *bought,
        *(["--reserved"] if "reservationName" in body else []),
        *_each(body.get("queueingPolicy", {}).items(), _policy),
    ]


_TIERS = {"spot": "--spot", "guaranteed": "--guaranteed", "bestEffort": "--best-effort"}


def _several(params: Body) -> Words:
    words = ["--node-count", str(params["nodeCount"])]
    return [*words, *_given("--node-prefix", params.get("nodeIdPrefix"))]


def _policy(entry: tuple[str, str]) -> Words:
    words = re.sub(r"([A-Z])", lambda match: f"-{match[1].lower()}", entry[0])
    return [f"--{words}", str(entry[1])]


def _rule(method: str, match: re.Match[str], body: Body) -> Words:
    if method == "DELETE":
        return ["delete", match["name"], "--quiet"]
    sources = ["--source-ranges", ",".join(body.get("sourceRanges", ()))]
    if method == "PATCH":
        return ["update", match["name"], *sources]
    allowed = [
        f"{allowed_['IPProtocol']}{':' + port if port else ''}"
        for allowed_ in body["allowed"]
        for port in allowed_.get("ports") or [""]
    ]
    return [
        *("create", body["name"], "--network", body["network"].rpartition("/")[2]),
        *("--priority", str(body["priority"]), "--allow", ",".join(allowed), *sources),
        *_given("--target-tags", ",".join(body.get("targetTags", ()))),
        *_given("--description", body.get("description")),
    ]


def _given(flag: str, value: str | None) -> Words:
    return [flag, value] if value else []


def _each(values: Iterable[Any], words: Callable[[Any], Words]) -> Words:
    return [word for value in values for word in words(value)]


def _pairs(values: Mapping[str, str]) -> str:
    """Return `key=value,…`, with another separator if a key or value contains a comma.

    https://cloud.google.com/sdk/gcloud/reference/topic/escaping
    """
    between = next(sign for sign in (",", "|", ";", "@@", "~~~~") if not _has(values, sign))
    start = "" if between == "," else f"^{between}^"
    return start + between.join(f"{key}={value}" for key, value in values.items())


def _has(values: Mapping[str, str], sign: str) -> bool:
    return any(sign in text for pair in values.items() for text in pair)

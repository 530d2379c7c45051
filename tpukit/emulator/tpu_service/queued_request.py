"""What a client may say in a QueuedResource: checked, and its multislice specs written out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpukit.emulator.core.api_errors import ApiError, Json, is_whole, wrong_value
from tpukit.emulator.core.emulator_clock import parse_timestamp
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_request import camel, parse_node, typed_fields

#: google.cloud.tpu.v2.QueuedResource: what a client may set, and the types in JSON. v2alpha1 has
#: more, and gcloud's v2alpha1 more than google-cloud-tpu's.
_SETTABLE: Mapping[str, type] = {
    "tpu": dict,
    "spot": dict,
    "guaranteed": dict,
    "queueingPolicy": dict,
    "reservationName": str,
}
_ALPHA: Mapping[str, type] = {
    "bestEffort": dict,
    "provisioningModel": str,
    "runDuration": dict,
    "trafficConfig": dict,
}
_OUTPUT_ONLY = frozenset({"name", "createTime", "state"})
_TIERS = ("spot", "guaranteed", "bestEffort")
#: What several nodes of one spec are called in v2 and in v2alpha1.
_SEVERAL = ("multisliceParams", "multiNodeParams")
_POLICIES = frozenset(
    "validAfterDuration validAfterTime validInterval validUntilDuration validUntilTime".split()  # noqa: SIM905
)
#: A bound of the emulator; that of the real service is the project's quota.
MOST_NODES = 256


@dataclass(frozen=True)
class ParsedQueuedResource:
    """A request as it is answered, and when its nodes may be made (seconds since the epoch)."""

    document: Json
    not_before: float = 0.0
    not_after: float | None = None
    run_seconds: float | None = None  #: after which the nodes are taken away


def parse_queued_resource(
    context: ServiceContext, catalogue: Catalogue, call: Call, name: str
) -> ParsedQueuedResource:
    """Return what a create asks for; each spec of several nodes becomes as many specs of one."""
    given = _fields(call)
    tiers = [tier for tier in _TIERS if tier in given]
    if len(tiers) > 1:
        raise context.bad_request(f"only one of {' and '.join(tiers)} may be set")
    specs = given.get("tpu", {}).get("nodeSpec") or []
    if (
        not isinstance(specs, list)
        or not all(isinstance(spec, dict) for spec in specs)
        or not specs
    ):
        raise context.bad_request("at least one tpu.node_spec is required")
    written = [one for spec in specs for one in _specs(context, catalogue, call, name, given, spec)]
    if len(written) > MOST_NODES:
        raise context.bad_request(f"at most {MOST_NODES} nodes may be requested")
    if len({spec["nodeId"] for spec in written}) < len(written):
        raise context.bad_request("two nodes of the request have the same id")
    document = {**given, "name": name, "createTime": context.stamp(), "tpu": {"nodeSpec": written}}
    after, until = _window(context, given.get("queueingPolicy") or {})
    run = given.get("runDuration", {}).get("maxRunDuration")
    seconds = None if run is None else _duration("runDuration.maxRunDuration", run)
    return ParsedQueuedResource(document, after, until, seconds)


def _fields(call: Call) -> Json:
    known = {**_SETTABLE, **(_ALPHA if call.version != "v2" else {})}
    body = {name: value for name, value in call.body.items() if value is not None}
    given = typed_fields(call, body, "queued_resource", known, _OUTPUT_ONLY)
    return {name: _camel_keys(value) for name, value in given.items()}


def _camel_keys(value: Any) -> Any:
    """Return the message with its own field names as JSON has them; nodes are parsed elsewhere."""
    if not isinstance(value, dict):
        return value
    named = {camel(key): entry for key, entry in value.items() if entry is not None}
    if isinstance(named.get("nodeSpec"), list):
        named["nodeSpec"] = [_camel_keys(entry) for entry in named["nodeSpec"]]
    return named


def _specs(
    context: ServiceContext, catalogue: Catalogue, call: Call, name: str, given: Json, spec: Json
) -> Iterator[Json]:
    """Yield a spec for each node, with its id and the node as it is going to be."""
    if spec.get("parent") != call.parent:
        raise context.bad_request(
            f"tpu.node_spec.parent {spec.get('parent', '')!r} must be {call.parent!r}"
        )
    node = spec.get("node")
    if not isinstance(node, dict):
        raise _wrong("tpu.node_spec.node", node)
    document = parse_node(context, catalogue, replace(call, body=node))
    several = next((key for key in _SEVERAL if key in spec), None)
    document["schedulingConfig"] = {**document["schedulingConfig"], **_scheduling(given)}
    if several:
        document["multisliceNode"] = True
    for node_id in _node_ids(context, name, spec, several):
        full = f"{call.parent}/nodes/{node_id}"
        own = {**document, "name": full, "queuedResource": name}
        yield {"parent": call.parent, "nodeId": node_id, "node": own}


def _node_ids(context: ServiceContext, name: str, spec: Json, several: str | None) -> list[str]:
    if several is None:
        return [context.given_or_random_id(str(spec.get("nodeId", "")), "node")]
    if spec.get("nodeId"):
        raise context.bad_request(f"only one of nodeId and {several} may be set")
    params = _camel_keys(spec[several])
    count = params.get("nodeCount") if isinstance(params, dict) else None
    # The API reference on nodeCount: "This needs to be > 1"; on nodeIdPrefix: ids are prefix-0,
    # prefix-1 …, and without it the id of the queued resource is the prefix.
    if not is_whole(count, 2, MOST_NODES):
        raise context.bad_request(f"{several}.nodeCount must be an integer above 1")
    prefix = params.get("nodeIdPrefix") or name.rsplit("/", 1)[1]
    ids = [f"{prefix}-{number}" for number in range(count)]
    if not RESOURCE_ID.fullmatch(ids[-1]):
        raise context.bad_request(f"the node id prefix {prefix!r} is not valid")
    return ids


def _scheduling(given: Json) -> Json:
    if "spot" in given or given.get("provisioningModel") == "SPOT":
        return {"spot": True}
    reserved = given.get("reservationName") or given.get("guaranteed", {}).get("reserved")
    return {"reserved": True} if reserved else {}


def _window(context: ServiceContext, policy: Json) -> tuple[float, float | None]:
    """Return from when and until when nodes may be made."""
    if policy.keys() - _POLICIES:
        raise _wrong("queueingPolicy", policy)
    if len(policy) > 1:
        raise context.bad_request(f"only one of {' and '.join(sorted(policy))} may be set")
    for name, value in policy.items():
        if name == "validInterval":
            interval = _camel_keys(value) if isinstance(value, dict) else {}
            return (
                _time("validInterval.startTime", interval.get("startTime")),
                _time("validInterval.endTime", interval.get("endTime")),
            )
        moment = _time(name, value) if name.endswith("Time") else context.now()
        moment += 0 if name.endswith("Time") else _duration(name, value)
        return (moment, None) if name.startswith("validAfter") else (0.0, moment)
    return 0.0, None


def _duration(name: str, value: Any) -> float:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)s", value) if isinstance(value, str) else None
    if found is None:
        raise _wrong(name, value)
    return float(found[1])


def _time(name: str, value: Any) -> float:
    try:
        return parse_timestamp(value)
    except (TypeError, ValueError) as error:
        raise _wrong(name, value) from error


def _wrong(name: str, value: Any) -> ApiError:
    return wrong_value(f"queued_resource.{name}", value)

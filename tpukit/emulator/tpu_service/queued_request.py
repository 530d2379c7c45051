"""The QueuedResource in a client's request, checked, with one spec for each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpukit.emulator.core.api_errors import Json, invalid
from tpukit.emulator.core.emulator_clock import parse_timestamp
from tpukit.emulator.core.service_context import RESOURCE_ID, Call, ServiceContext
from tpukit.emulator.tpu_service.catalogue import Catalogue
from tpukit.emulator.tpu_service.node_fields import check_scheduling, is_reserved
from tpukit.emulator.tpu_service.node_request import parse_node

_TIERS = ("spot", "guaranteed", "bestEffort")
#: The tiers that each provisioning model allows.
_MODELS = {
    "STANDARD": frozenset({"guaranteed", "spot", "reservation_name"}),
    "SPOT": frozenset({"spot"}),
    "RESERVATION_BOUND": frozenset({"guaranteed", "reservation_name"}),
    "FLEX_START": frozenset[str](),
}
#: The field for several nodes of one spec, in v2 and in v2alpha1.
_SEVERAL = ("multisliceParams", "multiNodeParams")
#: The fields of a node that the specs of a request lack.
_NODES_OWN = ("cidrBlock", "acceleratorConfig")
#: A limit of the emulator; in the real service, the project's quota is the limit.
MOST_NODES = 256


@dataclass(frozen=True)
class ParsedQueuedResource:
    """A request in the API's form, and the times to create its nodes, in epoch seconds."""

    document: Json
    not_before: float = 0.0
    not_after: float | None = None
    run_seconds: float | None = None  #: from ACTIVE until the nodes are deleted

    @property
    def reservations(self) -> Sequence[str]:
        """The names of the reservations that it uses; "" and `-` mean any."""
        own = self.document.get("reservationName", "")
        schedules = [spec["node"]["schedulingConfig"] for spec in self.document["tpu"]["nodeSpec"]]
        return [own or one.get("reservationName", "") for one in schedules if is_reserved(one)]


def parse_queued_resource(
    context: ServiceContext, catalogue: Catalogue, call: Call, name: str
) -> ParsedQueuedResource:
    """Return the request of a create; a spec of several nodes becomes one spec for each node."""
    given = call.body
    _check_tiers(context, given)
    specs = given.get("tpu", {}).get("nodeSpec") or []
    if not specs:
        raise context.bad_request("at least one tpu.node_spec is required")
    written = [one for spec in specs for one in _specs(context, catalogue, call, name, given, spec)]
    if len(written) > MOST_NODES:
        raise context.bad_request(f"at most {MOST_NODES} nodes may be requested")
    if len({spec["nodeId"] for spec in written}) < len(written):
        raise context.bad_request("two nodes of the request have the same id")
    document = {**given, "name": name, "createTime": context.stamp(), "tpu": {"nodeSpec": written}}
    after, until = _window(context, given.get("queueingPolicy", {}))
    if len(given.get("runDuration", {})) > 1:
        raise context.bad_request("only one of max_run_duration and termination_time may be set")
    run = given.get("runDuration", {}).get("maxRunDuration")
    seconds = None if run is None else _seconds("runDuration.maxRunDuration", run)
    return ParsedQueuedResource(document, after, until, seconds)


def _specs(
    context: ServiceContext, catalogue: Catalogue, call: Call, name: str, given: Json, spec: Json
) -> Iterator[Json]:
    """Yield a spec for each node, with its id and the complete node."""
    if context.by_id(spec.get("parent", "")) != call.parent:
        raise context.bad_request(
            f"tpu.node_spec.parent {spec.get('parent', '')!r} must be {call.parent!r}"
        )
    if "node" not in spec:
        raise context.bad_request("tpu.node_spec.node is required")
    document = parse_node(context, catalogue, replace(call, body=spec["node"]))
    several = next((key for key in _SEVERAL if key in spec), None)
    document["schedulingConfig"] = {**document["schedulingConfig"], **_scheduling(given)}
    check_scheduling(context, document["schedulingConfig"])
    if several:
        document["multisliceNode"] = True
    asked = {key: value for key, value in document.items() if key not in _NODES_OWN}
    asked["serviceAccount"] = spec["node"].get("serviceAccount") or {}
    for node_id in _node_ids(context, name, spec, several):
        full = f"{call.parent}/nodes/{node_id}"
        own = {**document, "name": full, "queuedResource": name}
        yield {"parent": call.parent, "nodeId": node_id, "node": own, "asked": asked}


def _node_ids(context: ServiceContext, name: str, spec: Json, several: str | None) -> list[str]:
    if several is None:
        return [context.given_or_random_id(spec.get("nodeId", ""), "node")]
    if spec.get("nodeId"):
        raise context.bad_request(f"only one of nodeId and {several} may be set")
    params = spec[several]
    count = params.get("nodeCount", 0)
    # The API reference on nodeCount: "This needs to be > 1"; on nodeIdPrefix: ids are prefix-0,
    # prefix-1 …, and without it the id of the queued resource is the prefix.
    if not 2 <= count <= MOST_NODES:
        raise context.bad_request(f"{several}.nodeCount must be an integer above 1")
    prefix = params.get("nodeIdPrefix") or name.rsplit("/", 1)[1]
    ids = [f"{prefix}-{number}" for number in range(count)]
    if not RESOURCE_ID.fullmatch(ids[-1]):
        raise context.bad_request(f"the node id prefix {prefix!r} is not valid")
    return ids


def _check_tiers(context: ServiceContext, given: Json) -> None:
    """Raise `ApiError` if a request names two ways to buy its nodes."""
    tiers = [tier for tier in _TIERS if tier in given]
    if given.get("reservationName") and "guaranteed" not in tiers:
        tiers.append("reservation_name")
    model = given.get("provisioningModel", "PROVISIONING_MODEL_UNSPECIFIED")
    if not {*tiers} <= _MODELS.get(model, {*tiers}):
        tiers.append(f"provisioning_model {model}")
    if len(tiers) > 1:
        raise context.bad_request(f"only one of {' and '.join(tiers)} may be set")
    if "minDuration" in given.get("guaranteed", {}):
        _seconds("guaranteed.min_duration", given["guaranteed"]["minDuration"])


def _scheduling(given: Json) -> Json:
    if "spot" in given or given.get("provisioningModel") == "SPOT":
        return {"spot": True}
    if given.get("provisioningModel") == "FLEX_START":
        return {"provisioningModel": "FLEX_START"}
    bound = given.get("provisioningModel") == "RESERVATION_BOUND"
    reserved = bound or given.get("reservationName") or given.get("guaranteed", {}).get("reserved")
    return {"reserved": True} if reserved else {}


def _window(context: ServiceContext, policy: Json) -> tuple[float, float | None]:
    """Return the earliest and the latest time (None: no limit) to create the nodes."""
    if len(policy) > 1:
        raise context.bad_request(f"only one of {' and '.join(sorted(policy))} may be set")
    for name, value in policy.items():
        if name == "validInterval":
            end = value.get("endTime")
            start = parse_timestamp(value["startTime"]) if "startTime" in value else 0.0
            until = None if end is None else parse_timestamp(end)
            if until is not None and until <= start:
                message = "queueing_policy.valid_interval: end_time must be after start_time"
                raise context.bad_request(message)
            return start, until
        if name.endswith("Time"):
            moment = parse_timestamp(value)
        else:
            moment = context.now() + _seconds(name, value)
        return (moment, None) if name.startswith("validAfter") else (0.0, moment)
    return 0.0, None


def _seconds(name: str, text: str) -> float:
    """Return the seconds of a duration; raise `ApiError` if it is negative."""
    seconds = float(text.removesuffix("s"))
    if seconds < 0:
        raise invalid(f"Invalid value at 'queued_resource.{name}': {text} is negative.")
    return seconds

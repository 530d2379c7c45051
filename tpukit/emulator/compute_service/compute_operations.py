"""Operations of Compute Engine, the pages of its lists, and its most common errors."""

from __future__ import annotations

from collections.abc import Mapping

from tpukit.emulator.core.api_errors import ApiError, Json, invalid
from tpukit.emulator.core.emulator_clock import timestamp
from tpukit.emulator.core.service_context import (
    RESOURCE_ID,
    Call,
    ServiceContext,
    Views,
    default_account,
    page,
    resource_id,
)

_UNREACHABLE = {"code": "UNREACHABLE", "message": "The scope is unreachable."}
#: The number of operations to keep; Compute Engine keeps them for some time.
KEPT = 1000
#: The places of resources that are not global.
_PLACES = ("zone", "region")


class ComputeOperations:
    """Operations, global or of a zone or region; only the clock ends them."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._records = context.state.compute_operations

    def begin(
        self,
        call: Call,
        verb: str,
        target: str,
        seconds: float | None = None,
        error: Json | None = None,
    ) -> Json:
        """Record an operation on a resource, and return it in the API's form.

        It ends after `seconds` (default: those of an update), with `error` if there is one.
        """
        now = self._context.now()
        seconds = self._context.timing.update if seconds is None else seconds
        name = f"{scope_of(call)}/operations/{self._context.operation_id()}"
        self._records[name] = {
            "id": self._context.number(),
            "targetId": self._target_id(target),
            "user": default_account(call.project),
            "request_id": call.query.get("requestId", ""),
            "operationType": verb,
            "target": target,
            "started": now,
            "due": now + seconds,
            **({"error": error} if error else {}),
        }
        for old in list(self._records)[: max(0, len(self._records) - KEPT)]:
            del self._records[old]
        return self._view(name)

    def end(self, target: str, error: Json) -> None:
        """End every operation on a target that is under way with an error."""
        now = self._context.now()
        for name, record in list(self._records.items()):
            if record["target"] == target and record["due"] > now:
                self._records.change(name, due=now, error=error)

    def fail_last(self, target: str, error: Json) -> None:
        """Let the newest operation on a target end with an error."""
        for name in reversed(list(self._records)):
            if self._records[name]["target"] == target:
                self._records.change(name, error=error)
                return

    def repeated(self, call: Call, verb: str, target: str) -> Json | None:
        """Return the operation of an earlier call with the same request id, or None."""
        asked = call.query.get("requestId")
        for name, record in self._records.items() if asked else ():
            same = (record["operationType"], record["target"]) == (verb, target)
            if same and record["request_id"] == asked:
                return self._view(name)
        return None

    def get(self, call: Call) -> Json:
        return self._view(self._find(call))

    def list(self, call: Call) -> Json:
        prefix = f"{scope_of(call)}/operations/"
        mine = (name for name in self._records if name.startswith(prefix))
        return {"kind": "compute#operationList", **found_page(call, Views(mine, self._view))}

    def due(self, call: Call) -> float:
        """Return the time when the operation of a `wait` call is done."""
        return float(self._records[self._find(call)]["due"])

    def _target_id(self, target: str) -> str:
        """Return the id of an operation's resource: the recorded one, else a derived one."""
        state = self._context.state
        records = [
            records[target]
            for records in (
                *(state.firewalls, state.disks, state.instances),
                *(state.policies, state.templates, state.groups),
            )
            if target in records
        ]
        return str(records[0]["id"]) if records else resource_id(target)

    def _find(self, call: Call) -> str:
        name = f"{scope_of(call)}/operations/{call.path['operation']}"
        if name not in self._records:
            raise not_found(name)
        return name

    def _view(self, name: str) -> Json:
        record, base = self._records[name], self._context.compute_base
        done = record["due"] <= self._context.now()
        started = timestamp(record["started"])
        return {
            "kind": "compute#operation",
            "id": record["id"],
            "name": name.rsplit("/", 1)[1],
            "operationType": record["operationType"],
            "targetId": record["targetId"],
            "targetLink": base + record["target"],
            "user": record["user"],
            "status": "DONE" if done else "RUNNING",
            "progress": 100 if done else 0,
            "insertTime": started,
            "startTime": started,
            **({"endTime": timestamp(record["due"])} if done else {}),
            **(_failure(record["error"]) if done and "error" in record else {}),
            "selfLink": base + name,
            **scope_link(base, name),
        }


def _failure(error: Json) -> Json:
    """Return the fields of a failed operation; an entry of `errors` has the HTTP status too."""
    own = {key: value for key, value in error.items() if not key.startswith("http")}
    shown = {key: value for key, value in error.items() if key.startswith("http")}
    return {"error": {"errors": [own]}, **shown}


def scope_of(call: Call) -> str:
    """Return the full name of a call's zone or region, or that of the project's `global`."""
    places = [f"{kind}s/{call.path[kind]}" for kind in _PLACES if kind in call.path]
    return f"projects/{call.project}/{[*places, 'global'][0]}"


def scope_link(base: str, full: str) -> Json:
    """Return the field with the link to a resource's zone or region; {} if it is global."""
    place = "/".join(full.split("/")[:4])
    return {kind: base + place for kind in _PLACES if f"/{kind}s/" in place}


def not_found(name: str) -> ApiError:
    return ApiError("NOT_FOUND", f"The resource '{name}' was not found")


def already_exists(name: str) -> ApiError:
    return ApiError("ALREADY_EXISTS", f"The resource '{name}' already exists")


def not_ready(name: str) -> ApiError:
    why = f"The resource '{name}' is not ready"
    return ApiError("INVALID_ARGUMENT", why, reason="resourceNotReady")


def bad(field: str, value: object, why: str) -> ApiError:
    """Return the error for the value of one field."""
    return invalid(f"Invalid value for field 'resource.{field}': '{value}'. {why}")


def check_name(name: str) -> None:
    """Raise `ApiError` if a resource cannot have a name."""
    if not RESOURCE_ID.fullmatch(name):
        raise bad("name", name, f"Must be a match of regex '{RESOURCE_ID.pattern}'")


def found_page(call: Call, documents: Mapping[str, Json]) -> Json:
    """Return one page of a Compute Engine list of documents, which are given by name."""
    shown, token = page(call, documents, call.query.get("maxResults", ""), 500)
    return {**({"items": shown} if shown else {}), **({"nextPageToken": token} if token else {})}


def aggregated_page(call: Call, documents: Mapping[str, Json], collection: str) -> Json:
    """Return one page of an aggregated list: documents by `zones/Z`, `regions/R` or `global`.

    Raises `ApiError` if a fault silences a zone and the call does not accept a partial success.
    """
    if call.silent:
        if call.query.get("returnPartialSuccess") != "true":
            raise ApiError("UNAVAILABLE", "The service is currently unavailable.")
        names = (name for name in documents if name.split("/")[3] not in call.silent)
        documents = Views(names, documents.__getitem__)
    shown, token = page(call, documents, call.query.get("maxResults", ""), 500)
    scopes: dict[str, Json] = {}
    for document in shown:
        links = [document[kind] for kind in _PLACES if kind in document]
        scope = "/".join(links[0].split("/")[-2:]) if links else "global"
        scopes.setdefault(scope, {collection: []})[collection].append(document)
    for zone in call.silent:
        scopes[f"zones/{zone}"] = {"warning": _UNREACHABLE}
    unreachable = [f"projects/{call.project}/zones/{zone}" for zone in call.silent]
    return {
        "items": scopes,
        **({"nextPageToken": token} if token else {}),
        **({"unreachables": unreachable} if unreachable else {}),
    }

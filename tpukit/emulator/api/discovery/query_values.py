"""Checks of query parameters that a discovery document describes only in prose."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from tpukit.emulator.core.api_errors import ApiError, Json, camel, invalid
from tpukit.emulator.core.list_filter import filter_fields, order_fields

#: Compute Engine's discovery document on `maxResults`.
_MOST_RESULTS = 500
#: Compute Engine's discovery document on `orderBy`. kubeip sends the ascending one as well:
#: doitintl/kubeip#132.
_COMPUTE_ORDERS = ("name", "creationTimestamp desc", "creationTimestamp")
#: In these services, filters name fields of the answers. Resource Manager has other names for them:
#: its API reference, projects.list.
_BY_FIELD = ("tpu", "compute")


def check_query(service: str, response: Json, schemas: Json, query: Mapping[str, str]) -> None:
    """Raise `ApiError` for a value that the service does not accept.

    `response` is the schema of the answer. `query` holds the values by their JSON names.
    """
    if "requestId" in query:
        _check_request_id(query["requestId"])
    if service == "compute":
        _check_compute_list(query)
    if service in _BY_FIELD:
        item = _item(response, schemas)
        for parameter, paths in (
            ("filter", filter_fields(query.get("filter", ""))),
            ("orderBy", order_fields(query.get("orderBy", ""))),
        ):
            for path in paths:
                if not _has_field(item, path.split("."), schemas):
                    why = f"The field '{path}' is unknown."
                    raise _bad(parameter, query[parameter], f"Invalid list expression. {why}")


def _check_request_id(text: str) -> None:
    """Accept only a UUID other than the zero UUID: Compute Engine's discovery document."""
    try:
        value = UUID(text)
    except ValueError:
        value = UUID(int=0)
    if not value.int or str(value) != text.lower():
        raise _bad("requestId", text, "Must be a valid UUID other than the zero UUID.")


def _check_compute_list(query: Mapping[str, str]) -> None:
    size, order = query.get("maxResults", "0"), query.get("orderBy", "")
    if int(size) > _MOST_RESULTS:
        why = f"Must be greater than or equal to 0 and less than or equal to {_MOST_RESULTS}."
        raise _bad("maxResults", size, why)
    if order and query.get("filter"):
        # Source of the message: doitintl/kubeip#132.
        why = "Specifying both a list filter and sort order is not currently supported."
        raise _bad("orderBy", order, why)
    if order and " ".join(order.split()) not in _COMPUTE_ORDERS:
        raise _bad("orderBy", order, f"Must be one of: {', '.join(_COMPUTE_ORDERS)}.")


def _item(schema: Json, schemas: Json) -> Json:
    """Return the schema of a list's items, inside pages and the scopes of aggregated lists."""
    while "$ref" in schema:
        schema = schemas[schema["$ref"]]
    for part in schema.get("properties", {}).values():
        if part.get("type") == "array" and "$ref" in part["items"]:
            item: Json = part["items"]
            return item
        if "additionalProperties" in part:
            return _item(part["additionalProperties"], schemas)
    return {}


def _has_field(schema: Json, path: list[str], schemas: Json) -> bool:
    while "$ref" in schema or "items" in schema:
        schema = schemas[schema["$ref"]] if "$ref" in schema else schema["items"]
    if not path or "properties" not in schema:  # a map, or any message
        return not path or schema.get("type") not in ("string", "integer", "boolean", "number")
    inner = schema["properties"].get(camel(path[0]))
    return inner is not None and _has_field(inner, path[1:], schemas)


def _bad(parameter: str, value: str, why: str) -> ApiError:
    return invalid(f"Invalid value for field '{parameter}': '{value}'. {why}")

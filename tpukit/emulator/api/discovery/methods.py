"""One method of an API: checks of its requests, and the fields of its answers by version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpukit.emulator.api.discovery.documents import DiscoveryDocument, find_document
from tpukit.emulator.api.discovery.messages import MessageReader, snake
from tpukit.emulator.api.discovery.partial_response import (
    Selection,
    check_selection,
    parse_selection,
)
from tpukit.emulator.api.discovery.query_values import check_query
from tpukit.emulator.core.api_errors import Json, camel

_TYPE_PREFIX = "type.googleapis.com/google.cloud."
#: Paths of these services begin with the version.
_BY_VERSION = ("tpu", "oslogin", "serviceusage", "cloudresourcemanager", "iam", "cloudquotas")


def find_method(verb: str, path: str) -> ApiMethod:
    """Return the method with a verb and a path of this shape; raise KeyError if there is none."""
    first, second = path.split("/")[1:3]
    names = [f"{service}.{first}" for service in _BY_VERSION]
    for name in [f"compute.{second}"] if first == "compute" else names:
        document = find_document(name)
        if document and (method := document.methods.get((verb, path))):
            return ApiMethod(document, method)
    raise KeyError(path)


#: Answers include the `done` and `cancelRequested` of these even if false: the recorder of
#: GoogleCloudPlatform/k8s-config-connector removes them (tests/e2e/normalize.go).
_PRINTED_WHOLE = ("Operation", "OperationMetadata")


@dataclass(frozen=True)
class ApiMethod:
    """A method of a discovery document."""

    document: DiscoveryDocument
    method: Json

    def read(self, query: Mapping[str, str], body: Json) -> tuple[dict[str, str], Json]:
        """Return the query and the body by their JSON names, without output-only fields.

        Raises `ApiError` that lists all unknown names and all values of a wrong type.
        """
        reader = MessageReader(self.document.schemas, f"google.cloud.{self.document.name}")
        values = self._read_query(reader, query)
        name = self.method.get("request", {}).get("$ref", "")
        for unknown in () if name else body:
            reader.unknown("", unknown)
        # Compute Engine API, "patch semantics": a null clears a field.
        nulls = self.method["httpMethod"] == "PATCH"
        message = reader.message(name, body, self._root(name), nulls) if name else {}
        reader.check()
        service = self.document.name.partition(".")[0]
        check_query(service, self.method["response"], self.document.schemas, values)
        return values, message

    @property
    def service(self) -> str:
        """The name under which a project enables the API: "tpu.googleapis.com"."""
        return f"{self.document.name.partition('.')[0]}.googleapis.com"

    @property
    def permission(self) -> str:
        """The permission for a call, by IAM's rule for names: `service.collection.verb`.

        The reference pages of the methods of firewalls and nodes list these permissions.
        """
        service, *_, collection, verb = self.method["id"].split(".")
        verb = {"insert": "create", "patch": "update", "aggregatedList": "list"}.get(verb, verb)
        # The permissions' names have the collections of the TPU API in lower case.
        return f"{service}.{collection.lower() if service == 'tpu' else collection}.{verb}"

    def selection(self, query: Mapping[str, str]) -> Selection:
        """Return the answer's fields that a request selects; raise `ApiError` for unknown ones."""
        text = query.get("fields", query.get("$fields", ""))
        selection = parse_selection(text) if text else {}
        check_selection(selection, self.method["response"], self.document.schemas)
        return selection

    def fit(self, answer: Json) -> Json:
        """Return an answer with only the fields that this version of the API has."""
        fitted: Json = self._fitted(self.method["response"], answer, self.document)
        return fitted

    def _root(self, name: str) -> str:
        """Return the path at which errors place the body: a field of the request, or ""."""
        if self.document.is_compute:
            return "resource"
        return "" if name.endswith("Request") else snake(name)

    def _read_query(self, reader: MessageReader, query: Mapping[str, str]) -> dict[str, str]:
        values, own = {}, self.method["parameters"]
        own = {name: schema for name, schema in own.items() if schema["location"] == "query"}
        common = self.document.parameters
        for name, text in query.items():
            key = name if name in own else camel(name)
            shared = common.get(name) or common.get(name.removeprefix("$"))
            if key in own:
                values[key] = str(_query_value(reader, own[key], text, snake(key)))
            elif shared:
                # Google's own clients send `$alt=json;enum-encoding=int`.
                value = _query_value(reader, shared, text.partition(";")[0], name)
                if name in self.document.parameters_beyond:
                    values[name] = str(value)
            else:
                why = f"Cannot bind query parameter. Field '{name}' could not be found in request"
                reader.unknown("", name, f"{why} message.")
        return values

    def _fitted(self, schema: Json, value: Any, document: DiscoveryDocument) -> Any:
        name = schema.get("$ref", "")
        if name:
            schema = document.schemas[name]
        if isinstance(value, list):
            return [self._fitted(schema["items"], item, document) for item in value]
        if not isinstance(value, dict):
            return value
        if "@type" in value:
            return self._fitted_any(value)
        if "properties" not in schema:
            return value
        known, whole = schema["properties"], name in _PRINTED_WHOLE or document.is_compute
        return {
            key: self._fitted(known[key], field, document)
            for key, field in value.items()
            if key in known
            and _has(known[key], field)
            and (whole or not _is_default(known[key], field))
        }

    def _fitted_any(self, value: Json) -> Json:
        """Fit a message with a `@type`, which may belong to another version."""
        service, _, rest = value["@type"].removeprefix(_TYPE_PREFIX).partition(".")
        version, _, name = rest.partition(".")
        document = find_document(f"{service}.{version}")
        if document is None or name not in document.schemas:
            return value
        plain = {key: field for key, field in value.items() if key != "@type"}
        return {"@type": value["@type"], **self._fitted({"$ref": name}, plain, document)}


def _is_default(schema: Json, value: object) -> bool:
    """Return True if proto3 does not print a value: false, 0, "", an empty list or map.

    Protocol Buffers documentation, "ProtoJSON Format". An empty message that is set is printed.
    """
    if isinstance(value, dict):
        return not value and "additionalProperties" in schema
    empty = "0" if schema.get("format") in ("int64", "uint64") else ""
    return not value or value == empty


def _has(schema: Json, value: object) -> bool:
    """Return True if a version of the API has this value: it may lack an enumeration's word."""
    return "enum" not in schema or value in schema["enum"]


def _query_value(reader: MessageReader, schema: Json, text: str, name: str) -> object:
    """Return the value of a query parameter; some clients write booleans as True."""
    given: object = text
    if schema["type"] == "boolean":
        given = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    read = reader.value(name, schema, given, name)
    return str(read).lower() if isinstance(read, bool) else read

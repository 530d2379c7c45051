"""One method of an API: what may be asked, and what of an answer a version of the API has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpukit.emulator.api.discovery.documents import DiscoveryDocument, DiscoveryLibrary
from tpukit.emulator.api.discovery.messages import MessageReader, snake
from tpukit.emulator.api.discovery.partial_response import (
    Selection,
    check_selection,
    parse_selection,
)
from tpukit.emulator.api.discovery.query_values import check_query
from tpukit.emulator.core.api_errors import Json, camel

_TYPE_PREFIX = "type.googleapis.com/google.cloud."


#: The services whose paths begin with their version.
_BY_VERSION = ("tpu", "oslogin", "serviceusage", "cloudresourcemanager", "iam")


def find_method(library: DiscoveryLibrary, verb: str, path: str) -> ApiMethod:
    """Return the method of a verb and the shape of a path. Raises KeyError where there is none."""
    first, second = path.split("/")[1:3]
    names = [f"{service}.{first}" for service in _BY_VERSION]
    for name in [f"compute.{second}"] if first == "compute" else names:
        document = library.document(name)
        if document and (method := document.methods.get((verb, path))):
            return ApiMethod(library, document, method)
    raise KeyError(path)


#: Their `done` and `cancelRequested` are printed while they are false: the recorder of
#: GoogleCloudPlatform/k8s-config-connector removes them (tests/e2e/normalize.go).
_PRINTED_WHOLE = ("Operation", "OperationMetadata")


@dataclass(frozen=True)
class ApiMethod:
    """A method of a discovery document."""

    library: DiscoveryLibrary
    document: DiscoveryDocument
    method: Json

    def read(self, query: Mapping[str, str], body: Json) -> tuple[dict[str, str], Json]:
        """Return the query and the body by their JSON names, without fields that are output only.

        Raises `ApiError` with all that the method does not have, and all values of a wrong type.
        """
        reader = MessageReader(self.document.schemas, f"google.cloud.{self.document.name}")
        found = self._read_query(reader, query)
        name = self.method.get("request", {}).get("$ref", "")
        for unknown in () if name else body:
            reader.unknown("", unknown)
        # Compute Engine API, "patch semantics": a null clears a field.
        nulls = self.method["httpMethod"] == "PATCH"
        message = reader.message(name, body, self._root(name), nulls) if name else {}
        reader.check()
        service = self.document.name.partition(".")[0]
        check_query(service, self.method["response"], self.document.schemas, found)
        return found, message

    def selection(self, query: Mapping[str, str]) -> Selection:
        """Return what of the answer a request wants; raise `ApiError` for fields it never has."""
        text = query.get("fields", query.get("$fields", ""))
        found = parse_selection(text) if text else {}
        check_selection(found, self.method["response"], self.document.schemas)
        return found

    def fit(self, answer: Json) -> Json:
        """Return what of an answer this version of the API has."""
        fitted: Json = self._fitted(self.method["response"], answer, self.document)
        return fitted

    def _root(self, name: str) -> str:
        """Return where errors find the body's fields: in a field of the request, or in itself."""
        if self.document.is_compute:
            return "resource"
        return "" if name.endswith("Request") else snake(name)

    def _read_query(self, reader: MessageReader, query: Mapping[str, str]) -> dict[str, str]:
        found, own = {}, self.method["parameters"]
        own = {name: schema for name, schema in own.items() if schema["location"] == "query"}
        common = self.document.parameters
        for name, text in query.items():
            key = name if name in own else camel(name)
            shared = common.get(name) or common.get(name.removeprefix("$"))
            if key in own:
                found[key] = str(_query_value(reader, own[key], text, snake(key)))
            elif shared:
                # Google's own clients send `$alt=json;enum-encoding=int`.
                _query_value(reader, shared, text.partition(";")[0], name)
            else:
                why = f"Cannot bind query parameter. Field '{name}' could not be found in request"
                reader.unknown("", name, f"{why} message.")
        return found

    def _fitted(self, schema: Json, value: Any, document: DiscoveryDocument) -> Any:
        name = schema.get("$ref", "")
        if name:
            schema = document.schemas[name]
        if isinstance(value, list):
            return [self._fitted(schema["items"], each, document) for each in value]
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
        """Return a message that says its own type, which may be of another version."""
        service, _, rest = value["@type"].removeprefix(_TYPE_PREFIX).partition(".")
        version, _, name = rest.partition(".")
        document = self.library.document(f"{service}.{version}")
        if document is None or name not in document.schemas:
            return value
        plain = {key: each for key, each in value.items() if key != "@type"}
        return {"@type": value["@type"], **self._fitted({"$ref": name}, plain, document)}


def _is_default(schema: Json, value: object) -> bool:
    """Return True if proto3 does not print a value: false, 0, "", an empty list or map.

    Protocol Buffers documentation, "ProtoJSON Format". A message that is set is printed, as `{}`.
    """
    if isinstance(value, dict):
        return not value and "additionalProperties" in schema
    empty = "0" if schema.get("format") in ("int64", "uint64") else ""
    return not value or value == empty


def _has(schema: Json, value: object) -> bool:
    """Tell whether a version of the API has a value: it may lack a word of an enumeration."""
    return "enum" not in schema or value in schema["enum"]


def _query_value(reader: MessageReader, schema: Json, text: str, name: str) -> object:
    """Return the value of a query parameter, whose booleans some clients write True."""
    given: object = text
    if schema["type"] == "boolean":
        given = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    read = reader.value(name, schema, given, name)
    return str(read).lower() if isinstance(read, bool) else read

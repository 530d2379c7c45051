"""A reader of proto3 JSON messages by the schemas of a discovery document.

It reports all mistakes of a message in one error, in Google's words.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tpukit.emulator.core.api_errors import ApiError, Json, camel, is_text

#: The numbers of enumerations that do not count their words from 0; clients send words or numbers.
_NUMBERS = {
    "AcceleratorConfig.Type": {
        0: "TYPE_UNSPECIFIED",
        2: "V2",
        4: "V3",
        7: "V4",
        9: "V5LITE_POD",
        10: "V5P",
        11: "V6E",
    }
}
_BOUNDS = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
#: The names of types in errors, except TYPE_STRING.
_TYPES = {
    **{name: f"TYPE_{name.upper()}" for name in (*_BOUNDS, "double", "float")},
    "boolean": "TYPE_BOOL",
    "integer": "TYPE_INT32",
    "number": "TYPE_DOUBLE",
    "byte": "TYPE_BYTES",
    "google-datetime": "type.googleapis.com/google.protobuf.Timestamp",
    "google-duration": "type.googleapis.com/google.protobuf.Duration",
}
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_DURATION = re.compile(r"-?(\d{1,12})(\.\d{1,9})?s")
_LONGEST_DURATION = 315_576_000_000


@dataclass
class MessageReader:
    """A reader of one package's messages; it collects violations as (field, description)."""

    schemas: Mapping[str, Json]
    package: str
    violations: list[tuple[str, str]] = field(default_factory=list)

    def message(self, name: str, given: Json, path: str, nulls: bool = False) -> Json:
        """Return a message's fields by their JSON names, without output-only fields.

        A null means an unset field. `nulls` keeps the nulls at the top level.
        """
        return self._fields(name, self.schemas[name], given, path, nulls)

    def value(self, owner: str, schema: Json, given: object, path: str) -> Any:
        """Return a value in the form of an answer: 64-bit numbers as text, enumerations as words.

        `owner` is the name of the value's type in the package, if the schema does not name it.
        """
        if "$ref" in schema:
            owner, schema = schema["$ref"], self.schemas[schema["$ref"]]
        kind = schema["type"]
        if kind == "any" or schema.get("format") == "google.protobuf.Any":
            return given
        if kind == "array":
            return self._list(owner, schema["items"], given, path)
        if kind == "object" and not isinstance(given, dict):
            return self._wrong(path, f"type.googleapis.com/{self.package}.{owner}", given)
        if kind == "object" and "additionalProperties" in schema:
            return self._map(owner, schema["additionalProperties"], given, path)
        if kind == "object":
            return self._fields(owner, schema, given, path)
        return self._scalar(owner, schema, given, path)

    def check(self) -> None:
        """Raise `ApiError` with all violations, if there are any."""
        if self.violations:
            raise refusal(self.violations)

    def unknown(self, path: str, name: str, why: str = "Cannot find field.") -> None:
        at = f" at '{path}'" if path else ""
        text = f"Invalid JSON payload received. Unknown name {json.dumps(name)}{at}: {why}"
        self.violations.append((path, text))

    def _fields(self, owner: str, schema: Json, given: Any, path: str, nulls: bool = False) -> Json:
        known, fields = schema.get("properties", {}), {}
        for name, value in given.items():
            key = name if name in known else camel(name)
            if key not in known:
                self.unknown(path, name)
            elif value is not None:
                inner = f"{owner}.{key[0].upper()}{key[1:]}"
                read = self.value(inner, known[key], value, _inside(path, snake(key)))
                if not known[key].get("readOnly"):
                    fields[key] = read
            elif nulls:
                fields[key] = None
        return fields

    def _list(self, owner: str, schema: Json, given: object, path: str) -> list[Any]:
        # One message stands for a list of one: SkyPilot relies on that for `tpu.nodeSpec`.
        if isinstance(given, dict) and "$ref" in schema:
            given = [given]
        if not isinstance(given, list):
            self._wrong(path, self._name(owner, schema), given)
            return []
        return [self.value(owner, schema, v, f"{path}[{i}]") for i, v in enumerate(given)]

    def _map(self, owner: str, schema: Json, given: Any, path: str) -> Json:
        entries = {}
        for number, (key, value) in enumerate(given.items()):
            if not is_text(key):
                self._wrong(f"{path}[{number}].key", "TYPE_STRING", key)
            entries[key] = self.value(owner, schema, value, f"{path}[{number}].value")
        return entries

    def _scalar(self, owner: str, schema: Json, given: object, path: str) -> object:
        read = _read_enumeration if "enum" in schema else _READERS[schema["type"]]
        try:
            return read(owner, schema, given)
        except (ValueError, TypeError, OverflowError):
            return self._wrong(path, self._name(owner, schema), given)

    def _name(self, owner: str, schema: Json) -> str:
        """Return a type's name in errors."""
        if "$ref" in schema or "enum" in schema or schema["type"] == "object":
            return f"type.googleapis.com/{self.package}.{schema.get('$ref', owner)}"
        return _TYPES.get(schema.get("format") or schema["type"], "TYPE_STRING")

    def _wrong(self, path: str, kind: str, given: object) -> Any:
        text = f"Invalid value at '{path}' ({kind}), {json.dumps(given)[:200]}"
        self.violations.append((path, text))


def refusal(violations: list[tuple[str, str]]) -> ApiError:
    """Return INVALID_ARGUMENT with every violation, in the form of Google's front end."""
    entries = [
        {**({"field": path} if path else {}), "description": text} for path, text in violations
    ]
    detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": entries}
    text = "\n".join(text for _, text in violations)
    return ApiError("INVALID_ARGUMENT", text, [detail], reason="badRequest")


def snake(name: str) -> str:
    """Return a field name in protobuf's spelling, which errors use."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _read_enumeration(owner: str, schema: Json, given: object) -> str:
    names: list[str] = schema["enum"]
    if given in names:
        return str(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(given)
    numbers = _NUMBERS.get(owner) or dict(enumerate(names))
    if given not in numbers and not schema.get("readOnly"):
        raise ValueError(given)
    return numbers.get(given, names[0])


def _read_boolean(owner: str, schema: Json, given: object) -> bool:
    if not isinstance(given, bool):
        raise TypeError(given)
    return given


def _read_integer(owner: str, schema: Json, given: object) -> int:
    if isinstance(given, str) and not re.fullmatch(r"-?\d{1,20}", given):
        raise ValueError(given)
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise TypeError(given)
    number, (least, most) = int(given), _BOUNDS[schema.get("format", "int32")]
    if (isinstance(given, float) and number != given) or not least <= number <= most:
        raise ValueError(given)
    return number


def _read_number(owner: str, schema: Json, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise TypeError(given)
    return float(given)


def _read_string(owner: str, schema: Json, given: object) -> str:
    form = schema.get("format", "")
    if form in _BOUNDS:
        return str(_read_integer(owner, schema, given))
    if not is_text(given):
        raise TypeError(given)
    if form == "google-datetime":
        _check_timestamp(given)
    elif form == "google-duration":
        match = _DURATION.fullmatch(given)
        if not match or int(match[1]) > _LONGEST_DURATION:
            raise ValueError(given)
    elif form == "byte":
        try:
            b64decode(given, b"-_" if set(given) & set("-_") else None, validate=True)
        except binascii.Error as error:
            raise ValueError(given) from error
    return given


def _check_timestamp(text: str) -> None:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(text)
    datetime.fromisoformat(match[1] + match[3])


_READERS = {
    "boolean": _read_boolean,
    "integer": _read_integer,
    "number": _read_number,
    "string": _read_string,
}

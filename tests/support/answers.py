"""Answers held against Google's discovery documents, strictly: a judge of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

_DOCUMENTS = "tpukit.emulator.api.discovery"
_TYPES = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
}


def misfits(verb: str, path: str, answer: Any) -> list[str]:
    """Return what of a good answer the API does not have, or has in another type."""
    path = path.split("?")[0]
    version = re.match(r"/(compute/v1|v\d\w*)/", path)
    if version is None:
        return []
    services = ("tpu", "oslogin", "serviceusage", "cloudresourcemanager", "iam", "cloudquotas")
    for service in ("compute",) if "compute" in version[1] else services:
        name = f"{service}.{version[1].removeprefix('compute/')}"
        document, methods = _document(name)
        if found := [m for m in methods if m[0] == verb and m[1].fullmatch(path)]:
            break
    else:
        return [f"no document has {verb} {path}"]
    return list(_misfits(document["schemas"], found[0][2]["response"], answer, ""))


@cache
def _document(name: str) -> tuple[Any, list[tuple[str, re.Pattern[str], Any]]]:
    file = resources.files(_DOCUMENTS).joinpath(f"{name}.json")
    if not file.is_file():
        return {}, []
    text = file.read_text(encoding="utf-8")
    document = json.loads(text)
    methods = []
    waiting = [document]
    while waiting:
        resource = waiting.pop()
        waiting += resource.get("resources", {}).values()
        for method in resource.get("methods", {}).values():
            path = "/" + document["servicePath"] + method["flatPath"]
            pattern = "".join(
                "[^/:]+" if part.startswith("{") else re.escape(part)
                for part in re.split(r"(\{\w+\})", path)
            )
            methods.append((method["httpMethod"], re.compile(pattern), method))
    return document, methods


def _misfits(schemas: Any, schema: Any, value: Any, at: str) -> Iterator[str]:
    schema = schemas[schema["$ref"]] if "$ref" in schema else schema
    if isinstance(value, dict) and "@type" in value:
        match = re.fullmatch(
            r"type\.googleapis\.com/google\.cloud\.(tpu\.\w+)\.(\w+)", value["@type"]
        )
        if match:
            inner = {key: each for key, each in value.items() if key != "@type"}
            others = _document(match[1])[0]["schemas"]
            yield from _misfits(others, {"$ref": match[2]}, inner, at)
        return
    if schema["type"] == "any":
        return
    wanted = _TYPES[schema["type"]]
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        yield f"{at}: {value!r} is no {schema['type']}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    elif "int64" in schema.get("format", "") and not re.fullmatch(r"-?\d+", value):
        yield f"{at}: {value!r} is no number"
    elif schema.get("format") == "google-datetime" and not re.fullmatch(r"\d{4}-.*T.*Z", value):
        yield f"{at}: {value!r} is no time"
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _misfits(schemas, schema["items"], each, f"{at}[{number}]")
    elif isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, each in value.items():
            if key in known or others:
                yield from _misfits(schemas, known.get(key, others), each, f"{at}.{key}")
            else:
                yield f"{at}.{key} is unknown"

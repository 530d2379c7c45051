"""Trim Google's discovery documents to what the emulator serves: scripts/discovery."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from tpukit.emulator.api.compute_routes import compute_routes
from tpukit.emulator.api.discovery.documents import DOCUMENTS, shape
from tpukit.emulator.api.routes import (
    oslogin_routes,
    project_routes,
    tpu_routes,
)
from tpukit.emulator.api.service import Service
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.core.state import EmulatorState

Json = dict[str, Any]

#: Where the package has its documents.
FOLDER = "googleapiclient/discovery_cache/documents"
#: What is kept of a document, of a method, and of a schema or parameter. Prose is not.
DOCUMENT = (
    *("kind", "discoveryVersion", "id", "name", "version", "revision", "title", "protocol"),
    *("rootUrl", "servicePath", "baseUrl", "basePath", "batchPath"),
    *("parameters", "resources", "schemas"),
)
METHOD = (
    *("id", "httpMethod", "path", "flatPath", "parameterOrder", "parameters"),
    *("request", "response"),
)
SCHEMA = (
    *("id", "type", "format", "enum", "readOnly", "required", "repeated", "annotations"),
    *("default", "pattern", "minimum", "maximum", "location"),
    *("$ref", "properties", "items", "additionalProperties"),
)
#: What operations carry, which no method names.
CARRIED = ("OperationMetadata",)


def trimmed(document: Json, serves: Callable[[str, str], bool]) -> Json:
    """Return a document with the methods that are served, and the schemas that these reach."""
    resources = dict(_resources(document["resources"], document["servicePath"], serves))
    schemas = document["schemas"]
    wanted = [*_references(resources), *(name for name in CARRIED if name in schemas)]
    reached: dict[str, Json] = {}
    while wanted:
        if (name := wanted.pop()) not in reached:
            reached[name] = _schema(schemas[name])
            wanted += _references(reached[name])
    kept = {key: value for key, value in document.items() if key in DOCUMENT}
    # Clients that build themselves from the document ask for credentials where it has scopes.
    kept["auth"] = {
        "oauth2": {"scopes": {name: {} for name in document["auth"]["oauth2"]["scopes"]}}
    }
    parameters = {name: _schema(each) for name, each in document["parameters"].items()}
    return {**kept, "parameters": parameters, "resources": resources, "schemas": reached}


def _resources(
    resources: Json, base: str, serves: Callable[[str, str], bool]
) -> Iterator[tuple[str, Json]]:
    for name, resource in resources.items():
        methods = {
            verb: _method(method)
            for verb, method in resource.get("methods", {}).items()
            if serves(method["httpMethod"], shape(base + method["flatPath"]))
        }
        inner = dict(_resources(resource.get("resources", {}), base, serves))
        kept = {"methods": methods, "resources": inner}
        if any(kept.values()):
            yield name, {key: value for key, value in kept.items() if value}


def _method(method: Json) -> Json:
    kept = {key: value for key, value in method.items() if key in METHOD}
    parameters = {name: _schema(each) for name, each in method.get("parameters", {}).items()}
    return {**kept, "parameters": parameters}


def _schema(schema: Json) -> Json:
    kept = {key: value for key, value in schema.items() if key in SCHEMA}
    for key in ("items", "additionalProperties"):
        if key in kept:
            kept[key] = _schema(kept[key])
    if "properties" in kept:
        kept["properties"] = {name: _schema(each) for name, each in kept["properties"].items()}
    return kept


def _references(found: object) -> Iterator[str]:
    if isinstance(found, dict):
        for key, value in found.items():
            if key == "$ref":
                yield value
            else:
                yield from _references(value)


def served() -> set[tuple[str, str]]:
    """Return the verb and the shape of the path of every method of Google's that is served."""
    service = Service(EmulatorState(), EmulatorClock(), Random(0), lambda oracle: None)  # type: ignore[arg-type,return-value]
    makers = tpu_routes, compute_routes, oslogin_routes, project_routes
    routes = [route for make in makers for route in make(service)]
    return {(route.verb, path) for route in routes for path in route.shapes.values()}


def write(wheel: Path, folder: Path) -> None:
    known = served()
    with zipfile.ZipFile(wheel) as package:
        for name in DOCUMENTS:
            document = json.loads(package.read(f"{FOLDER}/{name}.json"))
            found = trimmed(document, lambda verb, path: (verb, path) in known)
            text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
            (folder / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
            print(f"{name} revision {found['revision']}: {len(text):,} bytes")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))

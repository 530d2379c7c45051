"""The discovery documents that the emulator ships, with their methods and schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tpukit.emulator.core.api_errors import Json

#: Service and version of each document.
DOCUMENTS = (
    *("tpu.v1", "tpu.v1alpha1", "tpu.v2", "tpu.v2alpha1"),
    *("compute.v1", "oslogin.v1", "oslogin.v1alpha"),
    *("serviceusage.v1", "cloudresourcemanager.v1", "cloudresourcemanager.v3", "iam.v1"),
)
#: Services that Google's directory leaves out; their documents follow the reference pages:
#: https://docs.cloud.google.com/docs/quotas/reference/rest/v1/projects.locations.services.quotaInfos
UNLISTED = ("cloudquotas.v1",)
#: gcloud's own v2alpha1 knows fields that the published document leaves out.
_BEYOND: dict[str, dict[str, Json]] = {
    "tpu.v2alpha1": {"QueuedResource": {"trafficConfig": {"type": "any"}}}
}
#: gcloud sends this with its lists; the published document no longer has it.
_PARAMETERS_BEYOND: dict[str, dict[str, Json]] = {
    "compute.v1": {"returnPartialSuccess": {"type": "boolean", "location": "query"}}
}

#: Ray and SkyPilot ask for no version, and then send fields that only v2 has.
_WITHOUT_VERSION = {"tpu": "v2"}
#: The paths of a document: at the service's own address, and in Google's directory.
_AT_SERVICE = "/$discovery/rest"
_IN_DIRECTORY = re.compile(r"/discovery/v1/apis/(\w+)/(\w+)/rest")


def document_asked_for(path: str, version: str, host: str) -> str:
    """Return the name of the document that a GET asks for, or "" if it asks for something else.

    All services share the emulator's address. If the host is a real name such as
    "compute.googleapis.com", it names the service; otherwise the service is Cloud TPU.
    """
    if match := _IN_DIRECTORY.fullmatch(path):
        return f"{match[1]}.{match[2]}"
    if unquote(path) != _AT_SERVICE:
        return ""
    service = host.partition(".")[0]
    known = service in {name.partition(".")[0] for name in (*DOCUMENTS, *UNLISTED)}
    service = service if known else "tpu"
    return f"{service}.{version or _WITHOUT_VERSION.get(service, 'v1')}"


def shape(path: str) -> str:
    """Return a path or a template without the names of its placeholders."""
    return "/" + re.sub(r"\{[^}]*\}", "{}", path).lstrip("/")


class DiscoveryDocument:
    """One service in one version, "tpu.v2"."""

    def __init__(self, name: str) -> None:
        text = (Path(__file__).parent / f"{name}.json").read_text(encoding="utf-8")
        self.name = name
        self.document: Json = json.loads(text)

    @property
    def is_compute(self) -> bool:
        """True for Compute Engine, whose answers include false and 0."""
        return self.name.startswith("compute")

    @cached_property
    def schemas(self) -> dict[str, Json]:
        schemas: dict[str, Json] = dict(self.document["schemas"])
        for name, fields in _BEYOND.get(self.name, {}).items():
            schemas[name] = {**schemas[name]}
            schemas[name]["properties"] = {**schemas[name]["properties"], **fields}
        return schemas

    @property
    def parameters(self) -> Json:
        """The query parameters that all methods share."""
        return {**self.document["parameters"], **self.parameters_beyond}

    @property
    def parameters_beyond(self) -> Json:
        """The query parameters that clients send and the published document lacks."""
        return _PARAMETERS_BEYOND.get(self.name, {})

    @cached_property
    def methods(self) -> dict[tuple[str, str], Json]:
        """The methods by HTTP verb and shape of the path."""
        base = self.document["servicePath"]
        return {
            (method["httpMethod"], shape(base + method["flatPath"])): method
            for method in _methods(self.document)
        }

    def at(self, base: str) -> Json:
        """Return the document with the service's address set to `base`, which ends in a slash."""
        return {
            **self.document,
            "rootUrl": base,
            "baseUrl": base + self.document["servicePath"],
        }


def find_document(name: str) -> DiscoveryDocument | None:
    """Return the document of this name, or None if the emulator has none."""
    return _document(name) if name in (*DOCUMENTS, *UNLISTED) else None


@cache
def _document(name: str) -> DiscoveryDocument:
    return DiscoveryDocument(name)


def _methods(resource: Any) -> Iterator[Json]:
    yield from resource.get("methods", {}).values()
    for inner in resource.get("resources", {}).values():
        yield from _methods(inner)

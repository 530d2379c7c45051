"""The discovery documents that are shipped: what scripts/discovery makes of Google's."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from importlib import resources
from pathlib import Path
from types import ModuleType

import pytest

from tpukit.emulator.api.compute_routes import compute_routes
from tpukit.emulator.api.discovery.documents import DOCUMENTS, UNLISTED, find_document
from tpukit.emulator.api.routes import (
    oslogin_routes,
    project_routes,
    tpu_routes,
)

ROOT = Path(__file__).parent.parent.parent
PARAMETERS = {"alt": {"type": "string", "location": "query", "enum": ["json"], "description": "a"}}
GIVEN = {
    "name": "tpu",
    "revision": "20260101",
    "servicePath": "",
    "description": "dropped",
    "auth": {"oauth2": {"scopes": {"https://a/tpu": {"description": "dropped"}}}},
    "parameters": PARAMETERS,
    "resources": {
        "projects": {
            "resources": {
                "nodes": {
                    "methods": {
                        "get": {
                            "id": "tpu.projects.nodes.get",
                            "description": "dropped",
                            "httpMethod": "GET",
                            "flatPath": "v2/projects/{projectsId}",
                            "parameters": {"name": {"type": "string", "description": "dropped"}},
                            "response": {"$ref": "Node"},
                            "scopes": ["dropped"],
                        },
                        "move": {
                            "httpMethod": "POST",
                            "flatPath": "v2/projects/{projectsId}:move",
                            "response": {"$ref": "Moved"},
                        },
                    }
                },
                "others": {"methods": {}},
            }
        }
    },
    "schemas": {
        "Node": {
            "id": "Node",
            "type": "object",
            "description": "dropped",
            "properties": {
                "description": {"type": "string", "description": "dropped", "readOnly": True},
                "disks": {"type": "array", "items": {"$ref": "Disk", "description": "dropped"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "Disk": {
            "type": "object",
            "properties": {"mode": {"type": "string", "enum": ["A"], "enumDescriptions": ["a"]}},
        },
        "Moved": {"type": "object"},
        "OperationMetadata": {"type": "object"},
    },
}
TRIMMED = {
    "name": "tpu",
    "revision": "20260101",
    "servicePath": "",
    "auth": {"oauth2": {"scopes": {"https://a/tpu": {}}}},
    "parameters": {"alt": {"type": "string", "location": "query", "enum": ["json"]}},
    "resources": {
        "projects": {
            "resources": {
                "nodes": {
                    "methods": {
                        "get": {
                            "id": "tpu.projects.nodes.get",
                            "httpMethod": "GET",
                            "flatPath": "v2/projects/{projectsId}",
                            "parameters": {"name": {"type": "string"}},
                            "response": {"$ref": "Node"},
                        }
                    }
                }
            }
        }
    },
    "schemas": {
        "Node": {
            "id": "Node",
            "type": "object",
            "properties": {
                "description": {"type": "string", "readOnly": True},
                "disks": {"type": "array", "items": {"$ref": "Disk"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "Disk": {"type": "object", "properties": {"mode": {"type": "string", "enum": ["A"]}}},
        "OperationMetadata": {"type": "object"},
    },
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("discovery", ROOT / "scripts" / "discovery.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_document_keeps_what_is_served_and_what_that_reaches_without_prose(script):
    served = {("GET", "/v2/projects/{}")}
    assert script.trimmed(GIVEN, lambda verb, path: (verb, path) in served) == TRIMMED


def test_the_shipped_files_are_what_the_script_makes_of_google_s(script, tmp_path, capsys):
    documents = pytest.importorskip("googleapiclient.discovery_cache.documents")
    folder = Path(next(iter(documents.__path__)))
    shipped = resources.files("tpukit.emulator.api.discovery")
    own = {name: shipped.joinpath(f"{name}.json").read_text(encoding="utf-8") for name in DOCUMENTS}
    theirs = {n: json.loads((folder / f"{n}.json").read_text(encoding="utf-8")) for n in DOCUMENTS}
    revisions = {name: json.loads(text)["revision"] for name, text in own.items()}
    if revisions != {name: document["revision"] for name, document in theirs.items()}:
        pytest.skip("google-api-python-client is of another date: the files are NOT compared")
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as package:
        for name in DOCUMENTS:
            package.write(folder / f"{name}.json", f"{script.FOLDER}/{name}.json")
    script.write(tmp_path / "package.whl", tmp_path)
    assert {n: (tmp_path / f"{n}.json").read_text(encoding="utf-8") for n in DOCUMENTS} == own


def test_every_method_that_is_served_is_in_its_document_and_no_other_is(cloud):
    names = (*DOCUMENTS, *UNLISTED)
    theirs = {key for name in names for key in find_document(name).methods}
    makers = tpu_routes, compute_routes, oslogin_routes, project_routes
    routes = [route for make in makers for route in make(cloud.service)]
    assert {(route.verb, path) for route in routes for path in route.shapes.values()} == theirs

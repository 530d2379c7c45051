"""The hand-written tables of methods against those that Google's clients carry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance.required import GCLOUD
from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport
from google.cloud.tpu_v2alpha1.services.tpu.transports.grpc import (
    TpuGrpcTransport as AlphaTransport,
)

from tpukit.emulator.grpc_methods import methods
from tpukit.emulator.routes import find, tpu_routes


def generated_methods(version: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, verb, path with x for each id) of gcloud's generated client."""
    assert GCLOUD is not None
    apis = Path(GCLOUD).resolve().parent.parent / "lib/googlecloudsdk/generated_clients/apis/tpu"
    text = (apis / version / f"tpu_{version}_client.py").read_text(encoding="utf-8")
    for block in text.split("base_api.ApiMethodInfo(")[1:]:
        found = dict(
            re.findall(r"(flat_path|relative_path|http_method|method_id)='([^']*)'", block)
        )
        path = found.get("flat_path") or found["relative_path"]
        name = found["method_id"].removeprefix("tpu.projects.").removeprefix("locations.")
        yield name, found["http_method"], "/" + re.sub(r"\{[^}]*\}", "x", path)


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_every_method_of_gcloud_s_client_has_the_route_of_its_name(emulator, version):
    if GCLOUD is None:
        pytest.skip("gcloud is not installed: its generated clients are NOT compared by this run")
    routes = tpu_routes(emulator.server.service)
    found = {name: find(routes, verb, path) for name, verb, path in generated_methods(version)}
    assert len(found) >= 24
    served = {name: route and route[0].name for name, route in found.items()}
    same = {"get": "locations.get", "list": "locations.list"}
    assert served == {name: same.get(name, name) for name in found}


def test_every_grpc_method_of_google_s_clients_is_served_and_no_other():
    sources = inspect.getsource(TpuGrpcTransport) + inspect.getsource(AlphaTransport)
    theirs = set(re.findall(r'"(/[\w.]+/\w+)"', sources))
    assert set(methods()) == theirs


def test_every_grpc_method_stands_for_a_route(emulator):
    routes = tpu_routes(emulator.server.service)
    collections = {
        "Node": "nodes",
        "QueuedResource": "queuedResources",
        "Operation": "operations",
        "AcceleratorType": "acceleratorTypes",
        "RuntimeVersion": "runtimeVersions",
    }
    for path, method in methods().items():
        rpc = path.rsplit("/", 1)[1]
        owner = next((c for word, c in collections.items() if word in rpc), "nodes")
        place = "projects/x/locations/x"
        one = place if rpc == "GetLocation" else f"{place}/{owner}/x"
        one = "projects/x" if rpc == "ListLocations" else one
        one = place if rpc == "ListOperations" else one
        target = method.path.replace("{parent}", place).replace("{node.name}", one)
        target = target.replace("{name}", one)
        assert find(routes, method.verb, target), path

"""The hand-written tables of methods against those that Google's clients carry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport
from google.cloud.tpu_v2alpha1.services.tpu.transports.grpc import (
    TpuGrpcTransport as AlphaTransport,
)

from conformance.required import GCLOUD
from tpukit.emulator.api.grpc_methods import methods
from tpukit.emulator.api.routes import find, tpu_routes


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


def test_the_page_names_every_path_of_the_control_plane(emulator):
    page = Path(__file__).parents[2] / "docs" / "reference" / "emulator.md"
    table = page.read_text(encoding="utf-8").partition("## Over HTTP")[2].partition("\n## ")[0]
    told = re.findall(r"^\| ([A-Z]+) \| `([^`]+)` \| \S", table, re.MULTILINE)
    served = {
        (route.verb, route.template) for route in emulator.server.edge.routes if route.is_control
    }
    assert {(verb, f"/_emulator/v1/{path}") for verb, path in told} == served
    assert len(told) == len(served)


def test_every_grpc_method_of_google_s_clients_is_served_and_no_other():
    sources = inspect.getsource(TpuGrpcTransport) + inspect.getsource(AlphaTransport)
    theirs = set(re.findall(r'"(/[\w.]+/\w+)"', sources))
    assert set(methods()) == theirs


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_every_grpc_method_stands_for_the_route_of_its_name(emulator, version):
    routes = tpu_routes(emulator.server.service)
    served, expected = {}, {}
    for path, method in methods().items():
        rpc = path.rsplit("/", 1)[1]
        if f".{version}." in path or path.startswith("/google.longrunning"):
            found = find(routes, method.verb, example(method.path, rpc))
            served[rpc], expected[rpc] = found and found[0].name, route_name(rpc)
    assert served == expected
    assert len(served) >= 22


def test_what_v2alpha1_alone_has_is_not_served_as_v2(emulator):
    routes = tpu_routes(emulator.server.service)
    rpcs = {path.rsplit("/", 1)[1]: method for path, method in methods().items()}
    for rpc in ALPHA_ONLY:
        target = example(rpcs[rpc].path, rpc)
        assert find(routes, rpcs[rpc].verb, target)
        assert find(routes, rpcs[rpc].verb, target.replace("v2alpha1", "v2")) is None


ALPHA_ONLY = {
    "SimulateMaintenanceEvent": "nodes.simulateMaintenanceEvent",
    "PerformMaintenance": "nodes.performMaintenance",
    "PerformMaintenanceQueuedResource": "queuedResources.performMaintenanceQueuedResource",
    "ListReservations": "reservations.list",
}
NAMES = {
    **ALPHA_ONLY,
    "GetGuestAttributes": "nodes.getGuestAttributes",
    "GenerateServiceIdentity": "generateServiceIdentity",
    "UpdateNode": "nodes.patch",
}


def route_name(rpc: str) -> str:
    """Return the name of a method in the REST reference: `nodes.create` for CreateNode."""
    if rpc in NAMES:
        return NAMES[rpc]
    verb, noun = re.fullmatch(r"([A-Z][a-z]+)([A-Z]\w+?)s?", rpc).groups()
    return f"{noun[0].lower()}{noun[1:]}s.{verb.lower()}"


def example(template: str, rpc: str) -> str:
    """Return a path that a method of gRPC could be given, with x for each id."""
    place = "projects/x/locations/x"
    collection = route_name(rpc).split(".")[0]
    name = place if rpc == "ListOperations" else f"{place}/{collection}/x"
    return template.replace("{parent}", place).replace("{node.name}", name).replace("{name}", name)

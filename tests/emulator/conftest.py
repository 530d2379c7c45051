"""An emulated service on a clock of its own, and one behind a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.answers import misfits
from support.emulated_workers import EmulatedWorkers, emulated_workers

from tpukit.emulator.api.discovery.methods import find_method
from tpukit.emulator.api.http_server import ApiServer, build_server
from tpukit.emulator.api.service import Service
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.core.operation_metadata import DEFAULT, OperationMetadata
from tpukit.emulator.core.service_context import Call
from tpukit.emulator.core.state import EmulatorState
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.emulator.workers.worker_host import WorkerOracle

ZONE = "us-central1-a"
PLACE = f"projects/p/locations/{ZONE}"


@dataclass
class EmulatedCloud:
    """A service whose clock stands still until `pass_time`, and its host of paper workers."""

    state: EmulatorState = field(default_factory=EmulatorState)
    port: int = 22
    operation_metadata: OperationMetadata = DEFAULT
    host: PaperHost = field(init=False)

    def __post_init__(self) -> None:
        self.clock = EmulatorClock(base=lambda: 1_700_000_000.0)
        kind = self.operation_metadata
        self.service = Service(
            self.state, self.clock, Random(7), self._make_host, operation_metadata=kind
        )

    def _make_host(self, oracle: WorkerOracle) -> PaperHost:
        self.host = PaperHost(oracle, self.port)
        return self.host

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.advance()

    def call(self, *, version: str = "v2", zone: str = ZONE, **given: Any) -> Call:
        """Return a call; `path_x` and `query_x` become placeholders and query parameters."""
        place = {"zone": zone} if zone else {}
        path = {"project": "p", **place, **_prefixed(given, "path_")}
        body = given.get("body", {})
        return Call(path, _prefixed(given, "query_"), body, version, given.get("failure"))

    def global_call(self, **given: Any) -> Call:
        """Return a call about a resource of Compute Engine in no zone and no region."""
        return self.call(zone="", **given)

    def create(self, name: str, **given: Any) -> dict[str, Any]:
        """Ask for a v3-8, or what `body` says instead, and return the operation."""
        body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
        body = {**body, **given.get("body", {})}
        given["body"] = read_body(f"{given.get('version', 'v2')} nodes", body)
        return self.service.nodes.create(self.call(query_nodeId=name, **given))

    def ready(self, name: str, **given: Any) -> str:
        """Create a node, let the time pass, and return its full name."""
        self.create(name, **given)
        self.pass_time(2)
        return f"projects/p/locations/{given.get('zone', ZONE)}/nodes/{name}"

    def get(self, name: str) -> dict[str, Any]:
        return self.service.nodes.get(self.call(path_node=name))

    def operation(self, operation: Mapping[str, Any], **given: Any) -> dict[str, Any]:
        name = operation["name"].rsplit("/", 1)[1]
        return self.service.operations.get(self.call(path_operation=name, **given))


def read_body(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a POST as the API reads it, to "v2 nodes" or "compute firewalls"."""
    version, collection = path.split()
    place = f"/{version}/projects/{{}}/locations/{{}}"
    if version == "compute":
        place = "/compute/v1/projects/{}/global"
    return find_method("POST", f"{place}/{collection}").read({}, body)[1]


def _prefixed(given: Mapping[str, Any], prefix: str) -> dict[str, str]:
    return {k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)}


@pytest.fixture
def cloud() -> EmulatedCloud:
    return EmulatedCloud()


@dataclass
class Api:
    """A client that knows HTTP and nothing else."""

    server: ApiServer
    host: PaperHost
    token: str = "secret"

    def call(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON document of the answer."""
        status, headers, data = self.raw(verb, path, None if body is None else json.dumps(body))
        assert headers["content-type"].startswith("application/json"), data
        return status, json.loads(data)

    def raw(
        self,
        verb: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        stands_for: str = "",
    ) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.server.url.removeprefix("http://"), timeout=60)
        try:
            authorization = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(verb, path, body, {**authorization, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            data = answer.read()
            if answer.status == 200 and found["content-type"].startswith("application/json"):
                assert misfits(stands_for or verb, path, json.loads(data)) == []
            return answer.status, found, data
        finally:
            connection.close()

    def create(self, name: str) -> tuple[int, Any]:
        body = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-ubuntu2204-base"}
        return self.call("POST", f"/v2/{PLACE}/nodes?nodeId={name}", body)

    def state_of(self, name: str) -> str:
        """Return the node's state, or GONE."""
        status, node = self.call("GET", f"/v2/{PLACE}/nodes/{name}")
        return "GONE" if status == 404 else node["state"]

    def fault(self, **rule: Any) -> None:
        status, answer = self.call("POST", "/_emulator/v1/faults", rule)
        assert status == 200, answer

    def advance(self, seconds: float) -> None:
        assert self.call("POST", "/_emulator/v1/clock", {"advance": seconds})[0] == 200


@dataclass
class Emulators:
    """Starts servers over one directory; `start` again is a restart."""

    directory: Path
    running: list[ApiServer] = field(default_factory=list)

    def start(
        self,
        create_seconds: float = 1000.0,
        token: str | None = "secret",
        kind: type[PaperHost] = PaperHost,
        operation_metadata: OperationMetadata = DEFAULT,
    ) -> Api:
        hosts: list[PaperHost] = []

        def make_host(oracle: WorkerOracle) -> PaperHost:
            hosts.append(kind(oracle))
            return hosts[0]

        server = build_server(
            self.directory,
            token,
            make_host,
            create_seconds,
            operation_metadata=operation_metadata,
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.running.append(server)
        return Api(server, hosts[0])

    def stop(self) -> None:
        for server in self.running:
            server.shutdown()
        self.running.clear()


@pytest.fixture
def emulators(tmp_path: Path) -> Iterator[Emulators]:
    found = Emulators(tmp_path / "emulator")
    yield found
    found.stop()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[EmulatedWorkers]:
    """Portable workers' host, without workers yet; files with another engine have their own."""
    with emulated_workers(tmp_path) as found:
        yield found


@pytest.fixture
def worker(workers: EmulatedWorkers) -> EmulatedWorkers:
    """A node of one worker that answers."""
    workers.allocate()
    workers.boot()
    return workers


@pytest.fixture
def api(emulators: Emulators) -> Api:
    """An API whose changes fall due only when a test advances the clock."""
    return emulators.start()

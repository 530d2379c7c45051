"""What the client's tests stand on: a cloud in this process, a clock that waits for nobody."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from support import fix_recorder, operation_metadata
from tpukit.clock import Clock, Deadline, SystemClock
from tpukit.emulator import EmulatorClient
from tpukit.emulator.api.http_server import ApiServer, build_server
from tpukit.emulator.core.emulator_clock import EmulatorClock
from tpukit.emulator.workers.paper_host import PaperHost
from tpukit.google.access_tokens import AccessTokens
from tpukit.google.compute_slices import ComputeSlices
from tpukit.google.credentials import find_credentials
from tpukit.google.firewall_rules import ComputeFirewall
from tpukit.google.project import GoogleProject
from tpukit.google.retrying_session import Session
from tpukit.google.tpu import CloudTpu
from tpukit.models import SliceRequest
from tpukit.slices.journal import Journal

PROJECT, ZONE, OTHER_ZONE = "demo-project", "us-central1-a", "us-central1-b"
TOKEN = "token-of-the-tests"


class FakeClock:
    """Waits end at once and move the time; `on_sleep` lets a test act in the middle of a wait."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.slept: list[float] = []
        self.on_sleep = lambda: None

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()


@dataclass
class Cloud:
    """An emulated cloud, our clients for it, and its control plane."""

    server: ApiServer
    clock: Clock
    directory: Path
    states: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        token = self.directory / "token"
        token.write_text(TOKEN)
        self.tokens = AccessTokens(
            find_credentials(str(token), "", self.directory / "none"), self.clock
        )
        self.token_file = token
        self.session = Session(self.tokens, self.clock)
        self.tpu = CloudTpu(self.session, PROJECT, self.server.url)
        self.tpu.bills = True  # it stands for the real one
        self.instances = ComputeSlices(self.session, PROJECT, f"{self.url}/compute/v1/")
        self.firewall = ComputeFirewall(self.session, PROJECT, f"{self.server.url}/compute/v1/")
        self.project = GoogleProject(
            self.session, PROJECT, manager=self.url, usage=self.url, quotas=self.url
        )
        self.journal = Journal(self.directory / "journal.jsonl", self.clock)

    @property
    def url(self) -> str:
        return self.server.url

    def deadline(self, seconds: float = 600.0) -> Deadline:
        return Deadline.after(self.clock, seconds)

    def request(self, name: str = "demo", **given: Any) -> SliceRequest:
        """Return an unlabelled request for a v3-8."""
        values = {
            "project": PROJECT,
            "zone": ZONE,
            "accelerator_type": "v3-8",
            "runtime_version": "tpu-ubuntu2204-base",
            **given,
        }
        return SliceRequest(name=name, **values)

    def control(self, verb: str, path: str, body: Any = None) -> Any:
        """Call the emulator's own methods."""
        connection = HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        try:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            data = None if body is None else json.dumps(body)
            connection.request(verb, f"/_emulator/v1/{path}", data, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return json.loads(text)
        finally:
            connection.close()

    def close_network(self, project: str = PROJECT) -> None:
        """Let a project's default network have no rules."""
        cloud = EmulatorClient(self.url, TOKEN)
        cloud.remove_network("default", project)
        cloud.add_network("default", project)

    def fault(self, **rule: Any) -> None:
        self.control("POST", "faults", rule)

    def served(self) -> int:
        """Return how many faults were really served."""
        return sum(rule["served"] for rule in self.control("GET", "faults")["faults"])

    def calls(self, method: str) -> list[Any]:
        """Return the requests of one method that the cloud saw."""
        return [
            request
            for request in self.control("GET", "log")["requests"]
            if request["method"] == method
        ]

    def full_name(self, name: str, zone: str = ZONE) -> str:
        return f"projects/{PROJECT}/locations/{zone}/nodes/{name}"

    def nodes(self) -> list[str]:
        return sorted(self.server.service.context.state.nodes)

    def change(self, name: str, zone: str = ZONE, **fields: Any) -> None:
        """Let a node have what no request could give it."""
        records = self.server.service.context.state.nodes
        record = records[self.full_name(name, zone)]
        node = {**record["node"], **fields}
        records[self.full_name(name, zone)] = {**record, "node": node}

    def vanish(self, name: str) -> None:
        del self.server.service.context.state.nodes[self.full_name(name)]

    def environment(self) -> dict[str, str]:
        """Return the variables by which a command line uses this cloud and nothing of its user."""
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        return {
            **bare_environment(home),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{self.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            **{
                f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": f"{self.url}/"
                for name in ("OSLOGIN", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "CLOUDQUOTAS")
            },
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(self.token_file),
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_COMPUTE_ZONE": ZONE,
        }


def let_everybody_in(variables: Mapping[str, str], allowed: bool) -> None:
    """Enable or disable `default-allow-ssh`, as gcloud does where these variables lead it."""
    project = variables["CLOUDSDK_CORE_PROJECT"]
    path = f"projects/{project}/global/firewalls/default-allow-ssh"
    url = variables["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] + path
    request = Request(url, json.dumps({"disabled": not allowed}).encode(), method="PATCH")
    token = Path(variables["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read_text().strip()
    request.add_header("Authorization", f"Bearer {token}")
    with urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def bare_environment(home: Path) -> dict[str, str]:
    """Return the environment of an account that never used a cloud."""
    return {
        **measured(),
        **operation_metadata.environment(),
        "PATH": os.environ.get("PATH", os.defpath),
        **fix_recorder.environment(),
        "HOME": str(home),
        "TPUKIT_HOME": str(home / "tpukit"),
        "USER": "ada",
    }


def measured() -> dict[str, str]:
    """Return the variables by which a started Python takes part in the coverage of this run."""
    return {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}


@contextmanager
def running_cloud(
    directory: Path,
    create_seconds: float = 30.0,
    clock: Clock | None = None,
    closed: bool = True,
    host: type[PaperHost] = PaperHost,
) -> Iterator[Cloud]:
    """Run an emulated cloud without machines in this process, on `clock`.

    Its default network is `closed`, as many organisations make it, or has Google's rules.
    """
    clock = clock or SystemClock()
    server = build_server(
        directory / "emulator",
        TOKEN,
        host,
        create_seconds=create_seconds,
        clock=EmulatorClock(base=clock.time),
        operation_metadata=operation_metadata.of_this_run(),
        keep=False,
    )
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        cloud = Cloud(server, clock, directory)
        if closed:
            cloud.close_network()
        yield cloud
    finally:
        server.shutdown()
        serving.join(5)


@dataclass(frozen=True)
class Reply:
    """What a scripted server sends after some `seconds`; a `cut` reply promises more than that."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    seconds: float = 0.0


class ScriptedServer:
    """A server that says whatever a test wants: the last reply for ever."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        script = list(replies)
        self.seen: list[tuple[str, str]] = []
        self.headers: list[Mapping[str, str]] = []
        self.bodies: list[bytes] = []
        seen, headers, bodies = self.seen, self.headers, self.bodies

        class Handler(BaseHTTPRequestHandler):
            def serve(self) -> None:
                bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
                headers.append(self.headers)
                seen.append((self.command, self.path))
                reply = script[0] if len(script) == 1 else script.pop(0)
                time.sleep(reply.seconds)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body) + 100 * reply.cut))
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_POST = do_PATCH = do_DELETE = serve  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(0.02), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def scripted(*replies: Reply) -> Iterator[ScriptedServer]:
    server = ScriptedServer(replies)
    try:
        yield server
    finally:
        server.close()


def json_reply(status: int, document: Any, **headers: str) -> Reply:
    headers = {"Content-Type": "application/json", **headers}
    return Reply(status, json.dumps(document).encode(), headers)

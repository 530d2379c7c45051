"""A proxy before the cloud that gives the slice's name to a stranger before one of the calls.

The stranger is a slice of bob's, made over REST as anybody would: DELETE, then POST.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.local_cloud import PROJECT, TOKEN, ZONE, Cloud

_BOB = {"tpukit-managed": "1", "tpukit-owner": "bob", "tpukit-nonce": "bobs"}


class Swapper:
    """Passes calls on and keeps what they were; swaps before the call of number `at`, from 0."""

    def __init__(self, cloud: Cloud, at: int, name: str = "demo") -> None:
        self.calls: list[str] = []
        self.stranger: dict[str, Any] | None = None
        self._cloud, self._at, self._name = cloud, at, name
        self._lock = threading.Lock()
        self._host = cloud.url.removeprefix("http://")
        swapper = self

        class Handler(BaseHTTPRequestHandler):
            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                swapper._count(f"{self.command} {self.path.partition('?')[0]}")
                status, kind, answer = swapper._ask(
                    self.command, self.path, body, dict(self.headers)
                )
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PATCH = do_DELETE = pass_on  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=lambda: self._server.serve_forever(0.02), daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def wrote_at_once(self) -> bool:
        """Return True if the swap came between a look at the slice and a write right after it.

        The API writes by name, so nothing can hold up that write. One without a look before it is
        no such write.
        """
        if self.stranger is None or self._at == 0:
            return False
        (look, there), (verb, path) = (call.split() for call in self.calls[self._at - 1 :][:2])
        node = f"/nodes/{self._name}"
        read = verb == "GET" or path.endswith(":getGuestAttributes")
        looked = look == "GET" and there.endswith(node)
        return looked and not read and (path.endswith(node) or f"{node}:" in path)

    def harmed(self) -> str:
        """Return how the stranger's slice is another than it was made, or ""."""
        if self.stranger is None:
            return ""
        status, now = self._rest("GET", f"nodes/{self._name}")
        if status != 200:
            return "gone"
        kept = ("id", "state", "labels", "tags", "metadata")
        return ", ".join(key for key in kept if now.get(key) != self.stranger.get(key))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def _count(self, call: str) -> None:
        with self._lock:
            if len(self.calls) == self._at:
                self._swap()
            self.calls.append(call)
            if call.endswith("/wait"):  # which would be held back until the operation is done
                self._cloud.clock.sleep(5.0)

    def _swap(self) -> None:
        while self._rest("GET", f"nodes/{self._name}")[0] == 200:
            self._rest("DELETE", f"nodes/{self._name}")
            self._cloud.clock.sleep(5.0)
        node = {
            "acceleratorType": "v3-8",
            "runtimeVersion": "tpu-ubuntu2204-base",
            "networkConfig": {"enableExternalIps": True},
            "labels": _BOB,
        }
        status, answer = self._rest("POST", f"nodes?nodeId={self._name}", node)
        assert status == 200, answer
        while True:
            status, node = self._rest("GET", f"nodes/{self._name}")
            if status == 200 and node["state"] == "READY":
                break
            self._cloud.clock.sleep(5.0)
        self.stranger = node

    def _rest(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        path = f"/v2/projects/{PROJECT}/locations/{ZONE}/{path}"
        status, _, answer = self._ask(verb, path, data, headers)
        return status, json.loads(answer or b"{}")

    def _ask(
        self, verb: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str, bytes]:
        connection = HTTPConnection(self._host, timeout=30)
        try:
            passed = {
                key: value
                for key, value in headers.items()
                if key.lower() not in ("host", "connection", "accept-encoding", "content-length")
            }
            connection.request(verb, path, body, passed)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type") or "", answer.read()
        finally:
            connection.close()


@contextmanager
def swapping(cloud: Cloud, at: int, name: str = "demo") -> Iterator[Swapper]:
    """Run a proxy that swaps the slice of that name before the call of number `at`."""
    swapper = Swapper(cloud, at, name)
    try:
        yield swapper
    finally:
        swapper.close()

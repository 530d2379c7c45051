"""A served emulator for clients that are not ours. Its workers exist on paper alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tpukit.emulator.server import Server, build_server
from tpukit.emulator.workers import PaperHost


@dataclass
class Emulator:
    server: Server
    directory: Path
    token: str

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def token_file(self) -> Path:
        path = self.directory / "token"
        path.write_text(self.token)
        return path

    def control(self, path: str, body: Any = None) -> Any:
        """Call the control plane: POST with a body, GET without one."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}/_emulator/{path}", data)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    directory = tmp_path_factory.mktemp("emulator")
    server = build_server(directory / "state", "secret", PaperHost, create_seconds=0.4)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Emulator(server, directory, "secret")
    server.shutdown()

"""A served emulator for clients that are not ours, and the account of what each of them called.

`--conformance` prints the account as a table of client and command, and makes the run fail for
every command of a client that no test has called with success.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support import operation_metadata

from conformance.required import required
from tpukit.emulator.api.http_server import ApiServer, build_server
from tpukit.emulator.core.operation_metadata import OperationMetadata
from tpukit.emulator.workers.paper_host import PaperHost

_PROPERTY = "conformance"


@dataclass
class Tally:
    """Notes which command of which client a test has called."""

    node: Any = None
    before: list[list[str]] = field(default_factory=list)

    def begin(self, node: Any) -> None:
        """Let what follows, and what the shared fixtures called before, be this test's."""
        self.node = node
        for entry in self.before:
            node.user_properties.append((_PROPERTY, entry))
        self.before.clear()

    def note(self, client: str, command: str) -> None:
        entry = [client, command]
        if self.node is None:
            self.before.append(entry)
        else:
            self.node.user_properties.append((_PROPERTY, entry))


@pytest.fixture(scope="session")
def tally() -> Tally:
    return Tally()


@pytest.fixture(autouse=True)
def _account(request: pytest.FixtureRequest, tally: Tally) -> Iterator[None]:
    tally.begin(request.node)
    yield
    tally.node = None


@dataclass
class Emulator:
    server: ApiServer
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
        request = Request(f"{self.url}/_emulator/v1/{path}", data)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urlopen(request, timeout=60) as answer:
            return json.load(answer)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let nothing fall due in the block, however long it takes."""
        self.control("clock", {"speed": 0})
        try:
            yield
        finally:
            self.control("clock", {"speed": 1})


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with _served(tmp_path_factory.mktemp("emulator"), operation_metadata.of_this_run()) as found:
        yield found


@pytest.fixture(scope="module")
def readable_over_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator whose operations google-cloud-tpu can read over REST."""
    with _served(tmp_path_factory.mktemp("emulator"), "tpu") as found:
        yield found


@contextmanager
def _served(directory: Path, kind: OperationMetadata) -> Iterator[Emulator]:
    server = build_server(
        directory / "state", "secret", PaperHost, create_seconds=0.4, operation_metadata=kind
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Emulator(server, directory, "secret")
    finally:
        server.shutdown()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", action="store_true", help="print what each client called")


class _Account:
    """Counts passes and failures by client and command, in the process that reports."""

    def __init__(self) -> None:
        self.passed: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.skipped: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            why = report.longrepr
            self.skipped.add(str(why[2]) if isinstance(why, tuple) else str(why))
        if report.when != "call" and not report.failed:
            return
        for name, entry in report.user_properties:
            if name == _PROPERTY:
                (self.failed if report.failed else self.passed)[(entry[0], entry[1])] += 1

    def missing(self) -> list[tuple[str, str]]:
        return [place for place in required() if not self.passed[place] or self.failed[place]]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.missing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write, missing = terminalreporter.write_line, set(self.missing())
        rows = sorted({*required(), *self.passed, *self.failed})
        write("")
        for client, command in rows:
            place = client, command
            verdict = "MISSED" if place in missing else "ok"
            counts = f"{self.passed[place]:4} passed {self.failed[place]:3} failed"
            write(f"{client:34} {command:42} {counts}  {verdict}")
        for why in sorted(self.skipped):
            write(f"not run: {why}")
        kept = len(required()) - len(missing)
        write(f"{kept} of {len(required())} commands of clients that are not ours are held")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--conformance", default=False) and not is_worker:
        config.pluginmanager.register(_Account(), "conformance-account")

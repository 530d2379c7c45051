"""A service's address and throughput, as a client reads them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.clocks import SteppedClock
from support.local_worker import LocalWorker, seconds

from tpukit.clock import Deadline, SystemClock
from tpukit.errors import NameTaken, TpukitError
from tpukit.jobs import runs
from tpukit.jobs.services import RUN, Address, ServiceRun, Throughput
from tpukit.ssh import worker_files
from tpukit.ssh.worker import RemoteWorker
from tpukit.ssh.worker_files import record_name

COUNTERS = """\
# TYPE served_total counter
served_total{{reason="stop"}} {stopped}
served_total{{reason="length"}} 1.0
served_total_created{{reason="stop"}} 99.0
words_total {words}
"""


class Counters(HTTPServer):
    """A service that serves the text `counters`, or 500 without one."""

    counters = ""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, Counters)
            known = self.server.counters and self.path == "/numbers"
            self.send_response(200 if known else 500)
            self.end_headers()
            self.wfile.write(self.server.counters.encode())

        def log_message(self, *given: object) -> None:
            """Say nothing."""


@pytest.fixture
def service() -> Iterator[Counters]:
    with Counters(("127.0.0.1", 0), Counters.Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def address(port: int, metrics: str = "/numbers") -> Address:
    return Address(port, port, False, "mine", metrics, ("served_total", "words_total"))


def test_a_line_has_the_totals_and_the_rate_since_the_last_look(service: Counters) -> None:
    clock, port = SteppedClock(), service.server_port
    service.counters = COUNTERS.format(stopped="2.0", words="100.0")
    throughput = Throughput(port, address(port), clock)
    assert throughput.line() == ""
    clock.sleep(5)
    service.counters = COUNTERS.format(stopped="3.0", words="2e2")
    assert throughput.line() == "4 requests, 200 tokens, 20.0 tokens/s"
    clock.sleep(5)
    assert throughput.line() == ""


def test_without_an_answer_there_is_no_line_and_the_rate_counts_from_the_last_one(
    service: Counters,
) -> None:
    clock, port = SteppedClock(), service.server_port
    service.counters = COUNTERS.format(stopped="2.0", words="100.0")
    throughput = Throughput(port, address(port), clock)
    service.counters = ""
    clock.sleep(5)
    assert throughput.line() == ""
    service.counters = COUNTERS.format(stopped="2.0", words="200.0")
    clock.sleep(5)
    assert throughput.line() == "3 requests, 200 tokens, 10.0 tokens/s"


@pytest.mark.parametrize("words", ["nan", "1e999", "-inf", "many", ""])
def test_counters_that_are_no_numbers_count_as_zero(service: Counters, words: str) -> None:
    clock, port = SteppedClock(), service.server_port
    service.counters = COUNTERS.format(stopped="2.0", words="100.0")
    throughput = Throughput(port, address(port), clock)
    service.counters = COUNTERS.format(stopped="3.0", words=words)
    clock.sleep(5)
    assert throughput.line() == "4 requests, 0 tokens, 0.0 tokens/s"


def test_a_service_without_counters_is_not_asked(service: Counters) -> None:
    port = service.server_port
    assert Throughput(port, address(port, ""), SteppedClock()).line() == ""


@pytest.mark.process
def test_of_two_services_at_once_the_second_call_is_told_how_to_reach_the_first(
    workers: list[RemoteWorker],
) -> None:
    """The second one has seen no service: it began before the first one had started."""
    runs.start(workers[:1], RUN, "sleep 999", "", SystemClock())
    service = ServiceRun(workers[0], SystemClock())
    with workers[0].connect() as connection:
        path = f"{worker_files.venv('mine')}/bin"
        line = f"mkdir -p {path} && ln -s /bin/sh {path}/python"
        assert connection.run(line, deadline=Deadline.after(SystemClock(), 30.0)).ok
    with pytest.raises(NameTaken, match="already has a service") as caught:
        service.start("mine", "sleep 999", {"stand_in": False}, {})
    assert caught.value.fix
    assert caught.value.fix.arguments == ("tpukit", "serve", "demo")
    runs.end(workers[:1], [RUN], SystemClock())


@pytest.mark.parametrize(("port", "usual_port"), [(0, 8000), (8000, 70000), (-1, 1)])
def test_a_worker_that_lies_about_a_port_is_one_error(
    tmp_path: Path, port: int, usual_port: int
) -> None:
    worker = LocalWorker(tmp_path)
    service = ServiceRun(worker.remote(), SteppedClock())
    folder = tmp_path / ".tpukit/jobs" / record_name(RUN, service.worker.record)
    folder.mkdir(parents=True)
    known = {"port": port, "usual_port": usual_port, "stand_in": False, "recipe": "mine"}
    counters = {"metrics": "", "requests": "", "tokens": ""}
    (folder / "service").write_text(json.dumps({**known, **counters}))
    with pytest.raises(TpukitError, match="without valid ports"):
        service.address(seconds(60))

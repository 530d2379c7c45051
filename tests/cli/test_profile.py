"""`tpukit profile` where no trace comes; JAX's own server is profiled in the journeys.

An emulated worker of the portable engine has this machine's loopback, so the servers are here.
"""

from __future__ import annotations

import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from cli.conftest import Local, Result
from tpukit.emulator.workers.sshd.link import can_drop_packets

pytestmark = pytest.mark.process

Answer = Callable[[bytes, grpc.ServicerContext], bytes]


@pytest.fixture(scope="module")
def bare(local: Local) -> Iterator[str]:
    """A slice on which nothing was provisioned: a trace needs no environment of ours."""
    with local.slice("profiled") as name:
        yield name


@contextmanager
def listening() -> Iterator[int]:
    """Listen on a port of the loopback, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@contextmanager
def profiler(answer: Answer, service: str = "tensorflow.ProfilerService") -> Iterator[int]:
    """Serve a profiler of ours by the real gRPC."""
    handlers = {"Profile": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def write(request: bytes, context: grpc.ServicerContext) -> bytes:
    """Write a trace where the request wants it."""
    fields = parsed(request)
    folder, session, host = (str(fields[number], "utf-8") for number in (5, 6, 7))
    Path(folder, session, f"{host}.xplane.pb").write_bytes(b"a trace")
    return b""


def profiled(local: Local, name: str, port: int, *words: str) -> Result:
    return local.run("profile", name, "--port", str(port), "--for", "1s", *words)


@pytest.fixture
def cleans_up(local: Local, bare: str) -> Iterator[None]:
    """Hold a test to leaving nothing on the worker."""
    clear, look = "rm -rf .tpukit/profiles && mkdir -p .tpukit/profiles", "ls .tpukit/profiles"
    assert local.run("run", bare, "--", clear).status == 0
    yield
    looked = local.run("run", bare, "--", look)
    assert (looked.status, looked.out) == (0, "")


@pytest.mark.usefixtures("cleans_up")
def test_without_a_profilers_server_the_line_to_add_is_named(local: Local, bare: str) -> None:
    with listening() as port:
        pass
    done = profiled(local, bare, port).says(3)
    assert f"error: no profiler's server listens on port {port} of {bare} worker 0\n" in done.err
    assert f"fix: add jax.profiler.start_server({port}) at the start of the program\n" in done.err


def test_a_silent_program_is_given_up_after_the_recording_and_the_timeout(
    local: Local, bare: str
) -> None:
    with listening() as port:
        began = time.monotonic()
        done = profiled(local, bare, port, "--timeout", "2s").says(8)
        assert time.monotonic() - began < 30
    assert f"the program on port {port} of {bare} worker 0 has not sent its trace" in done.err


@pytest.mark.skipif(
    not can_drop_packets(),
    reason="packets cannot be dropped: a worker that freezes with open connections is NOT checked",
)
def test_a_worker_that_freezes_while_it_records_is_given_up(local: Local, bare: str) -> None:
    def freeze(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert local.run("emulator", "worker", bare, "0", "--fault", "frozen").status == 0
        return b""

    try:
        with profiler(freeze) as port:
            began = time.monotonic()
            done = profiled(local, bare, port, "--timeout", "3s")
            assert time.monotonic() - began < 30
        assert f"error: {bare} worker 0 does not answer" in done.says(255).err
    finally:
        assert local.run("emulator", "worker", bare, "0", "--clear").status == 0


@pytest.mark.usefixtures("cleans_up")
@pytest.mark.parametrize("service", ["tensorflow.ProfilerService", "another.Service"])
def test_what_the_program_says_about_its_failure_is_shown(
    local: Local, bare: str, service: str
) -> None:
    def fail(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "Another profiling session active.\x1b[31m")

    with profiler(fail, service) as port:
        done = profiled(local, bare, port).says(1)
    if service == "another.Service":
        assert f"port {port} of {bare} worker 0 is no profiler's server, or has ended" in done.err
        assert f"fix: add jax.profiler.start_server({port})" in done.err
    else:
        assert "(Another profiling session active." in done.err


def test_an_interrupt_ends_the_recording_in_the_program_too(local: Local, bare: str) -> None:
    asked, ended = threading.Event(), threading.Event()

    def record(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.add_callback(ended.set)
        asked.set()
        assert ended.wait(60)
        return b""

    with profiler(record) as port:
        process = local.start("profile", bare, "--port", str(port), "--for", "1h")
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert ended.wait(60)
    assert process.returncode == 130
    assert "exists: traces that have arrived stay; the program goes on\n" in told
    assert "Traceback" not in told


@pytest.mark.usefixtures("cleans_up")
def test_a_program_that_writes_elsewhere_may_be_in_a_container(local: Local, bare: str) -> None:
    with profiler(lambda request, context: b"") as port:
        done = profiled(local, bare, port).says(3)
    assert "fix: a program in a container needs the worker's folder ~/.tpukit" in done.err


@pytest.mark.usefixtures("cleans_up")
def test_a_trace_comes_where_xprof_looks_for_it_and_leaves_the_worker(
    local: Local, bare: str, tmp_path: Path
) -> None:
    """The requests are read with fields of the service's definition, by a reader of its own."""
    seen: list[dict[int, object]] = []

    def record(request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(parsed(request))
        return write(request, context)

    with profiler(record) as port:
        words = ("profile", bare, "--port", str(port), "--for", "1.5s", "--output-directory", "my")
        done = local.run(*words, cwd=tmp_path)
    assert done.status == 0, done.err
    (fields,) = seen
    session = str(fields[6], "utf-8")
    path = f"my/plugins/profile/{session}/{bare}-worker-0.xplane.pb"
    assert done.out == f"{path}\n"
    assert (tmp_path / path).read_bytes() == b"a trace"
    assert "next: uvx xprof my\n" in done.err
    assert "the traces show 8 CPU devices standing in for a TPU\n" in done.err
    assert (fields[1], parsed(fields[4])[9]) == (1500, 1500)


def test_a_recording_may_be_longer_than_the_timeout(
    local: Local, bare: str, tmp_path: Path
) -> None:
    """A worker that records is silent for so long."""

    def record(request: bytes, context: grpc.ServicerContext) -> bytes:
        threading.Event().wait(6)  # as long as the profiler of a program takes
        return write(request, context)

    with profiler(record) as port:
        words = ("profile", bare, "--port", str(port), "--for", "6s", "--timeout", "5s")
        done = local.run(*words, cwd=tmp_path)
    assert done.status == 0, done.err


def parsed(message: object) -> dict[int, object]:
    """Return the fields of a protobuf message by their numbers: numbers, and bytes."""
    assert isinstance(message, bytes)
    rest, fields = iter(message), {}

    def number() -> int:
        value = shift = 0
        for byte in rest:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return value

    for tag in rest:
        if tag & 7:
            size = number()
            fields[tag >> 3] = bytes(next(rest) for _ in range(size))
        else:
            fields[tag >> 3] = number()
    return fields


def test_a_run_that_has_ended_or_never_was_is_not_profiled(local: Local, bare: str) -> None:
    started = local.run("run", bare, "--detach", "--run-id", "short", "--", "true")
    assert started.status == 0, started.err
    assert local.run("attach", bare, "short").status == 0
    done = local.run("profile", bare, "short").says(3)
    assert "error: run short has ended\n" in done.err
    assert f"fix: tpukit --local jobs {bare}\n" in done.err
    assert "there is no run other" in local.run("profile", bare, "other").says(3).err


def test_a_running_run_is_profiled(local: Local, bare: str) -> None:
    with listening() as port:
        pass
    started = local.run("run", bare, "--detach", "--run-id", "long", "--", "sleep 600")
    assert started.status == 0, started.err
    done = local.run("profile", bare, "long", "--port", str(port)).says(3)
    assert "no profiler's server listens" in done.err
    assert local.run("kill", bare, "long").status == 0


@pytest.mark.parametrize("folder", ["file", "file/below", "n" * 300])
def test_a_folder_that_cannot_be_written_is_an_error_before_the_recording(
    local: Local, bare: str, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    words = ("profile", bare, "--for", "24h", "--output-directory", folder)
    assert f"cannot write into the folder {folder}" in local.run(*words, cwd=tmp_path).says(2).err


@pytest.mark.parametrize(
    "words", ["--for 25h", "--for soon", "--port 0", "--port 70000", "--timeout never"]
)
def test_values_that_make_no_sense_are_refused(local: Local, words: str) -> None:
    assert local.run("profile", "nobody", *shlex.split(words)).status == 2


#: Steps of a minute, by a clock of its own.
BUSY = """
import time
now = [0.0]
time.perf_counter = lambda: now[0]
from tpukit_steps import steps
def load():
    for number in range(1000):
        now[0] += {seconds}
        yield number
for batch in steps(load()):
    now[0] += 60.0
"""


@pytest.mark.parametrize(("seconds", "points"), [("0.0", True), ("60.0", False)])
def test_diagnose_points_to_it_if_the_devices_take_the_time(
    local: Local, bare: str, tmp_path: Path, seconds: str, points: bool
) -> None:
    (tmp_path / "busy.py").write_text(BUSY.format(seconds=seconds))
    assert local.run("cp", "busy.py", f"{bare}:", cwd=tmp_path).status == 0
    done = local.run("diagnose", bare, "--steps", "8", "--", "python3", "busy.py")
    assert done.status == 0, done.err
    assert (f"next: tpukit --local profile {bare}\n" in done.err) is points

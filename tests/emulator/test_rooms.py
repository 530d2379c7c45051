"""The emulator's two halves: APIs on one side, machines on the other, one module between them."""

from __future__ import annotations

import subprocess
import sys

from test_house import NAMES, imports

EMULATOR = "tpukit.emulator."
API_HALF = ("api", "tpu_service", "compute_service", "core", "faults")
SEAM = "workers.worker_host"
#: What the workers know of the other half: rules that they ask, as pure data.
SHARED = "faults.worker_faults"
#: Loaded when they are asked for and not before.
OPTIONAL = (
    *("workers.ssh", "workers.engines", "workers.local_worker_host"),
    *("api.grpc_server", "api.grpc_methods", "api.tls", "api.tls_listener"),
)


def edges() -> list[tuple[str, str]]:
    """Return (importer, imported) within the emulator, lazy and typing imports included."""
    return [
        (name.removeprefix(EMULATOR), other.removeprefix(EMULATOR))
        for name, path in NAMES.items()
        if name.startswith(EMULATOR)
        for other in imports(path) & NAMES.keys()
        if other.startswith(EMULATOR)
    ]


def room(name: str) -> str:
    return name.partition(".")[0]


def test_the_apis_know_the_workers_by_the_seam_alone() -> None:
    found = {(a, b) for a, b in edges() if room(a) in API_HALF and room(b) not in API_HALF}
    assert {b for _, b in found} == {SEAM}


def test_the_workers_know_of_the_apis_the_faults_alone() -> None:
    found = {(a, b) for a, b in edges() if room(a) == "workers" and room(b) != "workers"}
    assert {b for _, b in found} == {SHARED}


def test_only_what_starts_the_emulator_imports_its_processes() -> None:
    importers = {room(a) for a, b in edges() if room(b) == "process" and room(a) != "process"}
    assert importers == {"__main__", "library"}


def test_the_engines_know_nothing_of_ssh() -> None:
    found = [(a, b) for a, b in edges() if a.startswith("workers.engines")]
    assert found
    assert not [(a, b) for a, b in found if b.startswith("workers.ssh")]


def test_optional_parts_are_not_loaded_until_they_are_asked_for() -> None:
    program = "import sys, tpukit.emulator.process.emulator_process; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.removeprefix(EMULATOR) for name in done.stdout.split()}
    assert "workers.paper_host" in loaded
    assert "asyncssh" not in loaded
    assert not [name for name in loaded if name.startswith(OPTIONAL)]

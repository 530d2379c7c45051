"""`Emulator` as a program of somebody else uses it: a block, two at once, and nothing left."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
from google.cloud import tpu_v2
from support.processes import eventually

from tpukit.emulator import Emulator
from tpukit.emulator.process import daemon
from tpukit.errors import BadInput, TpukitError
from tpukit.paths import Paths

pytestmark = pytest.mark.process

NODE = tpu_v2.Node(accelerator_type="v3-8", runtime_version="tpu-ubuntu2204-base")
KILLED = """
import os, subprocess, sys
from tpukit.emulator import Emulator
from tpukit.emulator.process import daemon
cloud = Emulator(workers="ssh")
print(cloud.directory, flush=True)
os.kill(os.getpid(), 9)
"""


def place(cloud: Emulator) -> str:
    return f"projects/{cloud.project}/locations/{cloud.zone}"


def processes_of(directory: Path) -> list[int]:
    """Return the processes whose command line names a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            living = process.status() != psutil.STATUS_ZOMBIE
            if living and any(str(directory) in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_block_has_a_cloud_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its own children: a server of the run may be one, and has those of other tests.
    before = {child.pid for child in psutil.Process().children()}
    monkeypatch.setenv("TPUKIT_PROJECT", "billed")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "billed")
    # Of a company's network: it is not asked for this machine, and not told the token.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "intranet, .example.com")
    with Emulator() as cloud, Emulator() as other:
        for name in ("no_proxy", "NO_PROXY"):
            assert cloud.env[name] == "intranet,.example.com,127.0.0.1"
        client = cloud.tpu_client()
        made = client.create_node(parent=place(cloud), node_id="demo", node=NODE).result(timeout=60)
        assert made.state.name == "READY"
        assert not list(other.tpu_client().list_nodes(parent=place(other)))
        words = [sys.executable, "-P", "-m", "tpukit"]
        homeless = {name: value for name, value in cloud.env.items() if name != "HOME"}
        for command, answer in (
            (("list",), "demo\t"),
            (("emulator", "clock", "show"), "1.0"),
            (("create", "v3-8", "second"), "second\n"),
        ):
            done = subprocess.run(
                [*words, *command], env=homeless, capture_output=True, text=True, check=False
            )
            assert answer in done.stdout, done.stderr
        running = daemon.running(Paths.from_environment(cloud.variables).emulator)
        assert running is not None
        assert (running.url, running.engine) == (cloud.url, "paper")
        ended = cloud, other
    cloud.close()
    for result in ended:
        assert not result.directory.exists()
        assert processes_of(result.directory) == []
        with pytest.raises(TpukitError, match="does not answer"):
            result.status()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_all_that_a_test_did_is_reset() -> None:
    with Emulator(create_seconds=3600) as cloud:
        client = cloud.tpu_client()
        client.create_node(parent=place(cloud), node_id="demo", node=NODE)
        cloud.move_clock(advance=1e6, speed=50)
        cloud.take_realistic_times()
        cloud.add_fault({"preset": "stockout"})
        cloud.add_worker_fault({"node": "demo", "fault": "dead"})
        cloud.play({"events": [{"node": "demo", "do": "preempt", "after": 1e7}]})
        kept = cloud.directory / "config"
        kept.mkdir(exist_ok=True)
        (kept / "config.toml").write_text('project = "elsewhere"\n')
        (cloud.directory / "stray").write_text("")
        first = cloud.status()
        assert first["nodes"] == {"demo": 1} or first["nodes"] == {"READY": 1}
        cloud.reset()
        last = cloud.status()
        assert (last["nodes"], last["speed"], last["create_seconds"]) == ({}, 1.0, 3600)
        assert last["time"] < first["time"]
        account = cloud.faults()
        assert (account["faults"], account["workers"], account["events"]) == ([], [], [])
        assert cloud.log() == []
        assert sorted(path.name for path in cloud.directory.iterdir()) == ["state"]
        assert not list(client.list_nodes(parent=place(cloud)))


def test_a_state_is_put_and_leaves_by_calls_alone() -> None:
    with Emulator() as cloud:
        client = cloud.tpu_client()
        name = f"{place(cloud)}/nodes/demo"
        begun = client.create_node(parent=place(cloud), node_id="demo", node=NODE)
        begun.result(timeout=60)
        for state in ("REPAIRING", "HIDDEN", "UNKNOWN", "PREEMPTED", "READY"):
            assert cloud.set_state("demo", state)["state"] == state
            assert client.get_node(name=name).state.name == state
        with pytest.raises(BadInput, match="A state is one of READY, UNKNOWN"):
            cloud.set_state("demo", "ASLEEP")
        client.delete_node(name=name).result(timeout=60)


def test_an_emulator_ends_with_a_program_that_is_killed() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, check=False)
    directory = Path(done.stdout.decode().strip())
    assert done.returncode == -9
    assert directory.name.startswith("tpukit-emulator-")
    eventually(lambda: not directory.exists())
    eventually(lambda: not processes_of(directory))


def test_what_cannot_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(BadInput, match="unknown workers: cardboard"):
        Emulator(workers="cardboard")  # type: ignore[arg-type]
    for given in ({"create_seconds": float("nan")}, {"create_seconds": -1}, {"port": 65536}):
        with pytest.raises(BadInput, match=f"{next(iter(given))} is a number from 0 to"):
            Emulator(**given)  # type: ignore[arg-type]
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(TpukitError, match="did not start") as caught:
        Emulator()
    assert caught.value.fix is None
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="cannot listen on port"):
            Emulator(port=taken.getsockname()[1])
    assert os.listdir(tmp_path) == []


def test_the_package_loads_nothing_until_it_is_asked() -> None:
    program = "import sys, tpukit.emulator; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    loaded = done.stdout.decode().split()
    assert not [text for text in loaded if text.startswith(("tpukit.emulator.", "http", "google"))]


def test_the_program_on_the_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "emulator.md"
    _, _, rest = page.read_text(encoding="utf-8").partition("```python\n")
    subprocess.run([sys.executable, "-c", rest.partition("```")[0]], check=True)


def test_the_library_needs_none_of_the_packages_that_the_commands_need(tmp_path: Path) -> None:
    table = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = {dependency: re.split(r"[<>=]", dependency)[0] for dependency in table["dependencies"]}
    own = table["optional-dependencies"]["emulator"]
    assert set(own) <= set(table["dependencies"])
    modules = {
        name.replace("google-auth", "google").replace("google-cloud-tpu", "google")
        for each, name in names.items()
        if each not in own
    }
    for name in modules:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError(__name__)\n")
    program = """
from tpukit.emulator import Emulator
for kind in ("paper", "ssh"):
    with Emulator(workers=kind) as cloud:
        cloud.set_quota("v3-8", cloud.zone, 8)
        print(cloud.status()["nodes"])
"""
    paths = [str(tmp_path), str(Path(__file__).parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "{}\n{}\n", done.stderr

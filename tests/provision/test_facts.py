"""The agent runs as on workers; its answer is read without trusting it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.agent_program import put_agent
from support.local_worker import LocalConnection, LocalWorker, seconds

from tpukit.errors import TpukitError
from tpukit.provision.facts import Facts
from tpukit.provision.system_facts import read_facts


def facts_of(home: Path, **environment: str) -> Facts:
    worker = LocalWorker(home, environment=environment)
    return read_facts(LocalConnection(worker), seconds(120))


def tools(folder: Path) -> Path:
    """Return a folder with what a worker needs to keep the agent."""
    folder.mkdir()
    for name in ("cat", "find", "mkdir", "mv", "rm", "sh", "wc"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_running_python_is_found_with_its_version(tmp_path):
    facts = facts_of(tmp_path)
    here = next(python for python in facts.pythons if os.path.samefile(python.path, sys.executable))
    assert here.version == sys.version.split()[0]
    pip = subprocess.run([here.path, "-I", "-m", "pip", "--version"], capture_output=True)
    assert here.pip is (pip.returncode == 0)


def test_the_host_describes_itself(tmp_path):
    host = facts_of(tmp_path).host
    free = shutil.disk_usage(tmp_path).free // 1024
    assert (host.home, host.system, host.architecture) == (
        str(tmp_path),
        os.uname().sysname,
        os.uname().machine,
    )
    assert abs(host.free_kilobytes - free) < 0.2 * free


def test_an_emulated_worker_says_for_how_many_devices_it_stands(tmp_path):
    assert facts_of(tmp_path, TPUKIT_EMULATED_DEVICES="8").host.emulated_devices == 8
    assert facts_of(tmp_path, TPUKIT_EMULATED_DEVICES="0").host.emulated
    assert not facts_of(tmp_path).host.emulated


def test_reading_facts_leaves_nothing_but_the_agent(tmp_path):
    facts_of(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".tpukit"]
    assert [path.name for path in (tmp_path / ".tpukit").iterdir()] == ["agent"]


def test_shims_of_missing_pythons_do_not_count(tmp_path):
    path = tools(tmp_path / "bin")
    script(path / "python3.12", 'echo "pyenv: python3.12: command not found" >&2; exit 127')
    script(path / "python3.11", "echo Python 3.11.0")
    script(path / "python3", f'exec "{sys.executable}" "$@"')
    pythons = facts_of(tmp_path, PATH=str(path)).pythons
    assert {python.version for python in pythons} == {sys.version.split()[0]}


def test_of_several_names_of_one_interpreter_one_is_started(tmp_path):
    path, starts = tools(tmp_path / "bin"), tmp_path / "starts"
    script(path / "python3", f'echo >>"{starts}"; exec "{sys.executable}" "$@"')
    for name in ("python3.11", "python3.12"):
        (path / name).symlink_to("python3")
    (tmp_path / "same").symlink_to(path)
    # An environment's own is another one: what it has is not what the one beneath it has.
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment/python3").symlink_to(path / "python3")
    # What lies where a login begins is nobody's on the path.
    (tmp_path / "python3").symlink_to(path / "python3")
    folders = [path, "", ".", tmp_path / "nowhere", tmp_path / "same", tmp_path / "environment"]
    put_agent(tmp_path)
    facts_of(tmp_path, PATH=":".join(map(str, folders)))
    assert starts.read_text() == "\n" * 3  # one of them is the agent


def test_folders_with_blanks_and_quotes_are_no_obstacle(tmp_path):
    home = tmp_path / "a 'home' \"with\" \\ everything"
    home.mkdir()
    assert facts_of(home).host.home == str(home)


def test_an_environment_tells_its_packages_and_marks(tmp_path):
    venv = tmp_path / ".tpukit/venvs/jax"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    package = next(venv.glob("lib/python*/site-packages")) / "Some_Thing-1.5.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: Some_Thing\nVersion: 1.5\n")
    (venv / "tpukit-verified").write_text("digest")
    found = facts_of(tmp_path).venv("jax")
    assert found.installed("some-thing") == "1.5"
    assert found.installed("other") is None
    assert (found.verified, found.requirements) == ("digest", "")
    assert found.version == sys.version.split()[0]


def test_a_broken_distribution_hides_no_other(tmp_path):
    venv = tmp_path / ".tpukit/venvs/jax"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    whole = "Metadata-Version: 2.1\r\nName: whole\nVersion: 1.5\nName: 2\n\nVersion: 3\n"
    for name, metadata in (("whole", whole), ("half", "Name: half\n"), ("none", None)):
        (packages / f"{name}-1.5.dist-info").mkdir()
        if metadata:
            (packages / f"{name}-1.5.dist-info/METADATA").write_text(metadata)
    assert facts_of(tmp_path).venv("jax").packages == {"whole": "1.5"}


def test_an_environment_whose_python_is_gone_is_no_environment(tmp_path):
    binary = tmp_path / ".tpukit/venvs/jax/bin"
    binary.mkdir(parents=True)
    (binary / "python").symlink_to("/nowhere/python3.11")
    assert facts_of(tmp_path).venv("jax") is None


def test_only_a_uv_that_runs_is_there(tmp_path):
    for version, text in (("0.13.9", "echo 'uv 0.13.9 (of a day)'"), ("0.1.0", "exit 1")):
        binary = tmp_path / f".tpukit/uv-{version}/bin"
        binary.mkdir(parents=True)
        script(binary / "uv", text)
    assert facts_of(tmp_path).uvs == {"0.13.9"}


def test_a_uv_that_is_being_installed_is_not_there_yet(tmp_path):
    for name in ("uv-0.13.9.partial", "uv-0.13.9.partial.17/uv"):
        (tmp_path / f".tpukit/{name}/bin").mkdir(parents=True)
        script(tmp_path / f".tpukit/{name}/bin/uv", "echo 'uv 0.13.9'")
    assert facts_of(tmp_path).uvs == set()


def test_jobs_that_ended_are_known_and_running_ones_are_not(tmp_path):
    for job in ("provision-uv-a-0", "provision-uv-a-1", "mine"):
        (tmp_path / ".tpukit/jobs" / job).mkdir(parents=True)
    (tmp_path / ".tpukit/jobs/provision-uv-a-0/status").write_text("1\n")
    (tmp_path / ".tpukit/jobs/mine/status").write_text("0\n")
    assert facts_of(tmp_path).ended_jobs == {"provision-uv-a-0"}


ANSWER = json.loads(
    """{"system": {"steps": {}, "ledgers": {}, "ended_jobs": [], "open_jobs": []}, "environments": {
        "host": {"home": "/home/me", "system": "Linux", "architecture": "x86_64", "glibc": "2.35",
            "free_kilobytes": 9, "emulated_devices": 0},
        "pythons": [{"path": "/usr/bin/python3", "version": "3.10.12", "pip": true}]}}"""
)


def facts_in(home: Path, printed: str) -> Facts:
    """Return the facts of a worker whose agent prints this."""
    put_agent(home).write_text(f"print({printed!r})")
    return facts_of(home)


def answer(**changes: object) -> str:
    """Return the answer with other environments, or with another host, or Python."""
    environments = ANSWER["environments"]
    (python,) = environments["pythons"]
    host = {**environments["host"], **changes.pop("host", {})}
    pythons = [{**python, **changes.pop("python", {})}]
    changed = {**ANSWER, "environments": {**environments, "host": host, "pythons": pythons}}
    return "tpukit-agent " + json.dumps({**changed, **changes})


def test_what_a_login_script_says_is_not_a_fact(tmp_path):
    noise = "Welcome to worker 0\n\x1b[31mtpukit-agent\n"
    facts = facts_in(tmp_path, f"{noise}{answer()}\nlogout")
    assert facts.host.home == "/home/me"
    assert facts.pythons[0].version == "3.10.12"


def test_an_answer_that_makes_no_sense_is_refused_in_one_line(tmp_path):
    cases = [
        "",
        "\x00\xff" * 100,
        answer()[:-5],  # cut short
        answer(environments=5),
        answer(system=None),
        answer(host={"home": "-rf"}),
        answer(host={"home": "/home/me\n/etc"}),
        answer(host={"free_kilobytes": -1}),
        answer(host={"emulated_devices": "many"}),
        answer(python={"path": "--help"}),
        answer(python={"version": "\x1b[2J"}),
        "tpukit-agent {" + "[" * 100_000 + "}",
    ]
    for printed in cases:
        with pytest.raises(TpukitError) as caught:
            facts_in(tmp_path, printed)
        said = caught.value.summary()
        assert "facts cannot be read" in said or "invalid answer" in said or "not JSON" in said
        assert not {"\x1b", "\n"} & set(said)

"""The probe runs in real shells; its answer is read without trusting it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.local_worker import LocalConnection, LocalWorker, seconds

from tpukit.errors import ProvisionFailed
from tpukit.provision.facts import Facts, parse_facts, read_facts
from tpukit.provision.system_facts import parse_system_facts
from tpukit.remote.programs import program_text

PROGRAM = program_text("provision/facts.sh")

#: What the probe needs of a worker, beside its shell.
TOOLS = ("df", "getconf", "readlink", "sed", "sh", "tr", "uname")


def facts_of(home: Path, **environment: str) -> Facts:
    worker = LocalWorker(home, environment=environment)
    return read_facts(LocalConnection(worker), seconds(120))


def tools(folder: Path) -> Path:
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name))
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_running_python_is_found_with_its_version(tmp_path):
    facts = facts_of(tmp_path)
    here = next(each for each in facts.pythons if os.path.samefile(each.path, sys.executable))
    assert here.version == sys.version.split()[0]
    assert here.pip


def test_a_python_without_its_standard_library_is_named_apart(tmp_path):
    path = tools(tmp_path / "bin")
    minimal = path / "python3"
    hide = 'import sys; sys.modules["json"] = None; exec(sys.argv.pop(1))'
    script(minimal, f"shift 2; exec {sys.executable} -I -c '{hide}' \"$@\"")
    facts = facts_of(tmp_path, PATH=str(path))
    assert (len(facts.minimal), facts.pythons) == (1, ())


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


def test_reading_facts_changes_nothing(tmp_path):
    facts_of(tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_a_worker_without_python_has_facts_too(tmp_path):
    assert facts_of(tmp_path, PATH=str(tools(tmp_path / "bin"))).pythons == ()


def test_shims_of_missing_pythons_do_not_count(tmp_path):
    path = tools(tmp_path / "bin")
    script(path / "python3.12", 'echo "pyenv: python3.12: command not found" >&2; exit 127')
    script(path / "python3.11", "echo Python 3.11.0")
    script(path / "python3", f'exec "{sys.executable}" "$@"')
    found = facts_of(tmp_path, PATH=str(path)).pythons
    assert {each.version for each in found} == {sys.version.split()[0]}


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
    facts_of(tmp_path, PATH=":".join(map(str, folders)))
    assert starts.read_text() == "\n" * 2


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


def test_the_probe_is_free_of_what_plain_sh_lacks():
    if dash := shutil.which("dash"):
        assert subprocess.run([dash, "-n"], input=PROGRAM.encode(), check=True).returncode == 0
    assert "[[" not in PROGRAM
    assert "local " not in PROGRAM


HOST = {
    "fact": "host",
    "home": "/home/me",
    "system": "Linux",
    "architecture": "x86_64",
    "glibc": "2.35",
    "free_kilobytes": 9,
    "emulated_devices": "",
}
END = {"fact": "end"}
PYTHON = {"fact": "python", "path": "/usr/bin/python3", "version": "3.10.12", "pip": True}


def answer(*facts: object) -> bytes:
    return b"".join(b"TPUKIT-FACT %s\n" % json.dumps(fact).encode() for fact in facts)


def test_what_a_login_script_says_is_not_a_fact():
    noise = b"Welcome to worker 0\n\x1b[31mTPUKIT\n"
    facts = parse_facts(noise + answer(HOST, PYTHON, END) + b"logout\n")
    assert facts.host.home == "/home/me"
    assert facts.pythons[0].version == "3.10.12"


def test_an_answer_that_makes_no_sense_is_refused_in_one_line():
    cases = [
        b"",
        b"\x00\xff" * 100,
        answer(HOST, PYTHON),  # cut short
        answer(PYTHON, END),
        answer(HOST, HOST, END),
        answer(HOST, 5, END),
        answer(HOST, {"fact": "python"}, END),
        answer({**HOST, "home": "-rf"}, END),
        answer({**HOST, "home": "/home/me\n/etc"}, END),
        answer({**HOST, "free_kilobytes": -1}, END),
        answer({**HOST, "emulated_devices": "many"}, END),
        answer(HOST, {**PYTHON, "path": "--help"}, END),
        answer(HOST, {**PYTHON, "version": "\x1b[2J"}, END),
        b"TPUKIT-FACT " + b"[" * 100_000 + b"\n" + answer(HOST, END),
        b'TPUKIT-FACT {"fact": "host", "home": "\n' + answer(HOST, END),
    ]
    for output in cases:
        with pytest.raises(ProvisionFailed) as caught:
            parse_facts(output)
        assert caught.value.what == "the worker's facts cannot be read"
        assert "\x1b" not in caught.value.why
        assert "\n" not in caught.value.why


def test_a_shell_that_complains_is_quoted():
    with pytest.raises(ProvisionFailed, match="facts") as caught:
        parse_facts(b"", b"sh: not here\x1b[2J\n")
    assert caught.value.why == "sh: not here\\x1b[2J"


def test_a_line_of_a_login_script_that_looks_like_a_system_fact_is_none():
    lines = ("TPUKIT-STEP\tcut", "TPUKIT-STEP\t\tfree\t7\t", "TPUKIT-STEP\t\tend\t\t")
    found = parse_system_facts("\n".join(lines))
    assert found is not None
    assert (found.free_kilobytes, parse_system_facts(lines[0])) == (7, None)

"""The fixtures as a project of somebody else uses them: a pytest run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.processes import eventually

pytestmark = pytest.mark.process

CONFTEST = 'pytest_plugins = ["tpukit.emulator.pytest_plugin"]\n'
TESTS = """
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpukit.errors import BadInput, NotFound


def tpukit(*words):
    line = [sys.executable, "-P", "-m", "tpukit", *words]
    return subprocess.run(line, capture_output=True, text=True)


def test_a_script_meets_a_stockout_and_says_so(emulated_tpu):
    emulated_tpu.add_fault({"preset": "stockout", "name": "demo"})
    done = tpukit("create", "v3-8", "demo")
    assert done.returncode == 6, done.stderr
    assert "no more capacity" in done.stderr
    (asked,) = emulated_tpu.requests("nodes.create")
    assert asked["status"] == 200
    assert emulated_tpu.served() == 1


def test_what_is_left_by_one_test(emulated_tpu):
    assert "billed" not in tpukit("config", "explain").stdout
    assert not [name for name in os.environ if name.startswith("GOOGLE_")]
    emulated_tpu.add_fault({"preset": "stockout", "name": "other"})
    emulated_tpu.move_clock(speed=20)
    assert tpukit("create", "v3-8", "left").returncode == 0
    assert tpukit("firewall", "apply", "left").returncode == 0
    assert "tpukit-left" in tpukit("firewall", "list").stdout
    kept = Path(os.environ["TPUKIT_HOME"], "config")
    kept.mkdir(exist_ok=True)
    (kept / "config.toml").write_text("")


def test_does_not_reach_the_next(emulated_tpu):
    assert emulated_tpu.faults()["faults"] == []
    assert emulated_tpu.status()["speed"] == 1
    assert tpukit("list").stdout == ""
    assert "tpukit-left" not in tpukit("firewall", "list").stdout
    assert not Path(os.environ["TPUKIT_HOME"], "config").exists()
    done = tpukit("create", "v3-8", "demo")
    assert done.returncode == 0, done.stderr
    emulated_tpu.preempt("demo")
    assert '"PREEMPTED"' in tpukit("describe", "demo", "--json").stdout
    emulated_tpu.preempt("demo", vanish=True)
    assert tpukit("describe", "demo").returncode == 3


def test_mistakes_are_named(emulated_tpu):
    with pytest.raises(BadInput, match="fault's kind is one of"):
        emulated_tpu.add_fault({"kind": "explode"})
    with pytest.raises(NotFound, match="was not found"):
        emulated_tpu.preempt("nobody")


def test_the_environment_is_that_of_the_test_alone(tpu_emulator):
    assert os.environ["TPUKIT_PROJECT"] == os.environ["GOOGLE_CLOUD_PROJECT"] == "billed"
    assert os.environ.get("CLOUDSDK_CORE_PROJECT") != "tpukit-local"
    assert tpu_emulator.env["CLOUDSDK_CORE_PROJECT"] == "tpukit-local"
    Path("where").write_text(str(tpu_emulator.directory))
"""


@pytest.mark.journey
def test_a_project_of_somebody_else_tests_its_scripts_with_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_scripts.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    done = subprocess.run(
        [*words, "."],
        cwd=tmp_path,
        env={**os.environ, "TPUKIT_PROJECT": "billed", "GOOGLE_CLOUD_PROJECT": "billed"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    directory = (tmp_path / "where").read_text()
    assert not Path(directory).exists()
    eventually(lambda: not _mentioning(directory))


def test_the_plugin_costs_nothing_where_nobody_asks_for_it(tmp_path: Path) -> None:
    """No entry point names it: a run without the line in conftest.py does not import tpukit."""
    program = "import sys\ndef test_it():\n    assert 'tpukit' not in sys.modules\n"
    (tmp_path / "test_it.py").write_text(program)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    done = subprocess.run(
        [*words, "."], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _mentioning(text: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(text in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found

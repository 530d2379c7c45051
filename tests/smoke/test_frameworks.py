"""A framework is data: one recipe and one smoke program, and no line of tpukit's own code."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpukit
from tpukit.provision import recipe_names
from tpukit.provision.recipes import Recipe
from tpukit.smoke.judge import STAND_IN_DIGEST

PACKAGE = Path(tpukit.__file__).parent
RECIPE = """
name = "iniconfig"
description = "a small package in place of a framework"
modules = ["iniconfig"]
managed_python = "3.12"
glibc = "2.17"
architecture = "x86_64"

[smoke]
program = "iniconfig_program.py"
names_device_kind = false

[[releases]]
pythons = ["3.11", "3.12", "3.13", "3.14"]
packages = ["iniconfig==2.0.0"]
stand_in_packages = ["iniconfig==2.0.0"]
disk_megabytes = 50
stand_in_disk_megabytes = 50
sources = []
"""
PROGRAM = """
PACKAGES = ("iniconfig",)
def prepare(emulated):
    global count
    count = emulated
def compute(workers, side):
    import iniconfig
    return {
        "platform": "cpu", "device_kind": "", "devices": count, "global_devices": count,
        "process": 0, "processes": workers, "digests": [["DIGEST"] * 2] * count,
        "global_sum": count * (count + 1) / 2,
    }
""".replace("DIGEST", STAND_IN_DIGEST)
PROVISION_AND_SMOKE = """
import json, sys
from pathlib import Path
from support.local_worker import LocalWorker, seconds
from tpukit.accelerators import AcceleratorType
from tpukit.clock import SystemClock
from tpukit.provision.provisioning import provision_all
from tpukit.provision.recipes import Recipe
from tpukit.provision.wanted import Wanted
from tpukit.smoke.runner import smoke
worker = LocalWorker(Path(sys.argv[1]), environment={"TPUKIT_EMULATED_DEVICES": "8"}).remote()
recipe, deadline = Recipe.named("iniconfig"), seconds(300)
reports = (
    provision_all([worker], Wanted((), (recipe,)), deadline=deadline),
    smoke([worker], AcceleratorType.parse("v3-8"), recipe, deadline=deadline),
)
print(json.dumps([report.document() for report in reports]))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of tpukit that has one recipe and one smoke program more."""
    folder = tmp_path_factory.mktemp("extended")
    unused = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "tpukit", ignore=unused)
    (folder / "tpukit/provision/recipes/iniconfig.toml").write_text(RECIPE)
    (folder / "tpukit/smoke/iniconfig_program.py").write_text(PROGRAM)
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the tpukit of a folder."""
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "TPUKIT_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.journey
@pytest.mark.process
def test_a_new_framework_is_provisioned_and_tested(extended: Path, tmp_path: Path) -> None:
    done = python(extended, "-c", PROVISION_AND_SMOKE, str(tmp_path))
    assert done.returncode == 0, done.stderr
    provisioned, tested = json.loads(done.stdout)
    assert [worker["error"] for worker in provisioned["workers"]] == [""]
    (worker,) = tested["workers"]
    assert (worker["error"], worker["framework"]) == ("", "iniconfig")
    assert (worker["version"], worker["global_sum"]) == ("2.0.0", 36.0)


@pytest.mark.slow
def test_a_new_framework_is_offered_by_every_command_that_takes_one(extended: Path) -> None:
    for verb in ("up", "smoke", "notebook"):
        shown = " ".join(python(extended, "-m", "tpukit", verb, "--help").stdout.split())
        assert " or ".join(sorted((*recipe_names(), "iniconfig"))) in shown, verb
    commands = (["provision", "demo", "iniconfi"], ["run", "demo", "--with", "iniconfi", "--", "x"])
    for command in commands:
        refused = python(extended, "-m", "tpukit", *command)
        assert "iniconfig" in refused.stderr, command


def names_in_code(path: Path, names: re.Pattern[str]) -> Iterator[str]:
    """Yield where names stand in a file's code; docstrings and commands to type do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            passed.add(node.value)
        if isinstance(node, ast.keyword) and node.arg == "fix":
            passed |= set(ast.walk(node))
    for node in ast.walk(tree):
        words = [str(value) for value in vars(node).values() if isinstance(value, str)]
        if node not in passed and names.search(" ".join(words)):
            yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"


@pytest.mark.process
def test_no_framework_is_named_in_code_but_the_default_one_in_one_place() -> None:
    recipes = [Recipe.named(name) for name in recipe_names()]
    words = {word for recipe in recipes for word in (recipe.name, *recipe.modules)}
    words -= {"accelerate", "ray"}  # a word of English, and a verb and flag of ours
    pattern = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(words)})(?![A-Za-z0-9])")
    programs = {PACKAGE / "smoke" / file for recipe in recipes for file in recipe.smoke.files(3)}
    programs.add(PACKAGE / "smoke/steps_program.py")  # asks whichever was imported, on a worker
    programs.add(PACKAGE / "emulator/workers/slice_facts.py")  # a recorded image's name
    # The stand-in stands for vLLM, and the profiler is JAX's.
    programs |= {PACKAGE / "agent/openai_stand_in.py", PACKAGE / "cli/verbs/serve.py"}
    programs |= {PACKAGE / "jobs/profiles.py", PACKAGE / "cli/pages.py"}
    # What compiles a step is JAX's.
    programs |= {*(PACKAGE / "fit").glob("*.py"), PACKAGE / "cli/verbs/fit.py"}
    paths = [path for path in PACKAGE.rglob("*.py") if path not in programs]
    found = [place for path in paths for place in names_in_code(path, pattern)]
    assert [place.partition(":")[0] for place in found] == ["cli/parameters.py"], found


def test_every_smoke_program_belongs_to_a_recipe() -> None:
    programs = {path.name for path in (PACKAGE / "smoke").glob("*_program.py")}
    named = {file for name in recipe_names() for file in Recipe.named(name).smoke.files(3) if file}
    assert {*named, "smoke_program.py", "steps_program.py"} == programs

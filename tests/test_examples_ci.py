"""examples/ci: green as it is, red when the script under test is broken on purpose."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.pages import ROOT, environment, stop_emulator

pytestmark = [pytest.mark.journey, pytest.mark.examples]

EXAMPLES = ROOT / "examples" / "ci"
#: Ways to break launch.sh: what is taken out of it, and what a change of mind puts there.
BREAKS = {
    "it gives up at the first stockout": ("6) echo", "99) echo"),
    "it does not ask again for a lost slice": ("7) echo", "99) echo"),
    "it asks for another slice than it is told": ("create v3-8", "create v2-8 x --quiet; true"),
    "it says that all is well": ('exit "$status"', "exit 0 # always"),
}

Finished = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Project:
    """Somebody's repository with the example in it, and the environment of its CI."""

    root: Path
    variables: dict[str, str]

    @property
    def ci(self) -> Path:
        return self.root / "examples" / "ci"

    def run(self, *words: str | Path, **more: str) -> Finished:
        return subprocess.run(
            words,
            env={**self.variables, **more},
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def shell(self, script: str, **more: str) -> Finished:
        """Run a step as GitHub does."""
        return self.run("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script, **more)

    def change(self, old: str, new: str) -> None:
        script = self.ci / "launch.sh"
        text = script.read_text()
        assert old in text
        script.write_text(text.replace(old, new))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    found = Project(tmp_path / "project", environment(tmp_path / "home"))
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLES, found.ci, ignore=ignored)
    yield found
    stop_emulator(found.variables)


def test_every_file_of_the_example_is_executed_here() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert files == {
        "conftest.py",
        "job.sh",
        "launch.sh",
        "stockout-then-preempt.toml",
        "test_launch.py",
        "tpu-scripts.yml",
    }


def test_the_shell_job_is_green_and_leaves_no_emulator(project: Project) -> None:
    done = project.run(project.ci / "job.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "launch.sh survives two stockouts and a preemption"
    assert project.run("tpukit", "emulator", "status").returncode == 3


@pytest.mark.parametrize("how", list(BREAKS)[:3])
def test_the_shell_job_is_red_when_its_script_is_broken(project: Project, how: str) -> None:
    project.change(*BREAKS[how])
    done = project.run(project.ci / "job.sh")
    assert done.returncode != 0
    assert "survives" not in done.stdout
    assert project.run("tpukit", "emulator", "status").returncode == 3


def test_the_pytest_example_is_green(project: Project) -> None:
    done = project.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", project.ci)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_pytest_example_is_red_when_its_script_is_broken(project: Project) -> None:
    project.change(*BREAKS["it says that all is well"])
    done = project.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", project.ci)
    assert done.returncode == 1
    assert "1 failed, 2 passed" in done.stdout


@dataclass(frozen=True)
class Step:
    name: str
    condition: str
    script: str


def steps(workflow: str) -> list[Step]:
    """Return the steps of a workflow that run commands. It reads the YAML of this example alone."""
    found = []
    for text in re.split(r"^ {6}- ", workflow, flags=re.MULTILINE)[1:]:
        lines = [line.removeprefix("        ") for line in text.splitlines()]
        values = dict(re.findall(r"^(name|if|run): (.+)$", "\n".join(lines), re.MULTILINE))
        if values.get("run") == "|":
            start = lines.index("run: |") + 1
            values["run"] = "\n".join(lines[start:])
        if "run" in values:
            found.append(Step(values["name"], values.get("if", "success()"), values["run"]))
    return found


def play(project: Project) -> tuple[list[str], Finished | None]:
    """Run the workflow's steps; return the names of those that ran, and the one that failed."""
    memory = project.root / "github_env"
    memory.touch()
    ran, failed = [], None
    for step in steps((project.ci / "tpu-scripts.yml").read_text()):
        wanted = {"success()": failed is None, "failure()": failed is not None, "always()": True}
        if not wanted[step.condition]:
            continue
        ran.append(step.name)
        if step.name == "Install":  # the package under test is installed already
            assert step.script == "python -m pip install vendor/tpukit-*.whl pytest"
            continue
        kept = dict(line.split("=", 1) for line in memory.read_text().splitlines())
        done = project.shell(step.script, GITHUB_ENV=str(memory), PAUSE="0", **kept)
        if done.returncode and failed is None:
            failed = done
    return ran, failed


def test_the_workflow_is_green(project: Project) -> None:
    ran, failed = play(project)
    assert failed is None, failed
    assert ran == [
        "Install",
        "Start the emulator",
        "Run the script",
        "Check what happened",
        "Stop the emulator",
    ]


def test_the_workflow_is_red_when_its_script_is_broken_and_cleans_up(project: Project) -> None:
    project.change(*BREAKS["it gives up at the first stockout"])
    ran, failed = play(project)
    assert failed is not None
    assert "no more capacity" in failed.stderr
    assert ran[-2:] == ["Show what was asked", "Stop the emulator"]
    assert project.run("tpukit", "emulator", "status").returncode == 3

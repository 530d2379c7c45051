"""The action and the image: their steps are run here, as GitHub and a builder would."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import ROOT, environment, stop_emulator

#: Mounts an overlay over this machine's files in a namespace, and runs a program in it.
OVERLAY = """
mount -t tmpfs none "$1" && mkdir "$1/upper" "$1/below" "$1/tree"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/below" "$1/tree" || exit 77
for each in proc dev sys; do mount --rbind "/$each" "$1/tree/$each"; done
mount -t tmpfs none "$1/tree/tmp"
cp -r "$2" "$1/tree/context"
exec chroot "$1/tree" /bin/bash -euo pipefail /context/build.sh
"""

Finished = subprocess.CompletedProcess[str]


def run(words: list[str], variables: dict[str, str], cwd: Path) -> Finished:
    return subprocess.run(
        words,
        env=variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,  # on two busy cores, pip alone has taken more than 500 s
        check=False,
    )


def action_steps() -> list[tuple[str, dict[str, str], str]]:
    """Return (name, environment, script) of the action's steps; its YAML alone is read so."""
    text = (ROOT / "action.yml").read_text().partition("  steps:\n")[2]
    found = []
    for step in re.split(r"^    - ", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"name: (.+)", step)
        given = dict(re.findall(r"^        ([A-Z_]+): (.+)$", step, re.MULTILINE))
        script = step.partition("      run: ")[2]
        assert name is not None
        found.append((name[1], given, textwrap.dedent(script.removeprefix("|\n"))))
    return found


def action_inputs() -> dict[str, str]:
    text = (ROOT / "action.yml").read_text().partition("inputs:\n")[2].partition("outputs:")[0]
    findall = re.findall(r"^  ([a-z-]+):\n.*\n    default: (.+)$", text, re.MULTILINE)
    return {name: value.strip('"') for name, value in findall}


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    found = environment(tmp_path / "home")
    yield found
    stop_emulator(found)


@pytest.mark.journey
@pytest.mark.examples
def test_the_steps_after_the_action_find_an_emulator_with_its_faults(
    variables: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "day.toml").write_text('[[faults]]\npreset = "stockout"\nname = "ci"\n')
    words = {f"inputs.{name}": value for name, value in action_inputs().items()}
    words |= {"inputs.scenario": "day.toml", "github.action_path": str(ROOT)}
    memory, outputs = tmp_path / "github_env", tmp_path / "github_output"
    for name, given, script in action_steps():
        filled = {
            key: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: words[found[1]], value)
            for key, value in given.items()
        }
        if name == "Install":  # what is under test is installed already
            assert script.strip() == 'python -m pip install --quiet "$SOURCE"'
            assert filled == {"SOURCE": str(ROOT)}
            continue
        files = {"GITHUB_ENV": str(memory), "GITHUB_OUTPUT": str(outputs)}
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = run(bash, {**variables, **filled, **files}, tmp_path)
        assert done.returncode == 0, done.stderr
    led = dict(line.split("=", 1) for line in memory.read_text().splitlines())
    assert outputs.read_text() == f"url={led['CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU'].rstrip('/')}\n"
    later = {**variables, **led}
    assert run(["tpukit", "create", "v3-8", "ci"], later, tmp_path).returncode == 6
    assert run(["tpukit", "create", "v3-8", "ci"], later, tmp_path).returncode == 0


def instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines if line[0] != "#"]


def build_script(python: str) -> str:
    """Return the shell program that does what a builder does, and then runs the image once."""
    lines = [f"export PATH={shlex.quote(python)}:$PATH HOME=/tmp"]
    lines.append("trap 'tpukit emulator stop --quiet' EXIT")
    image: dict[str, list[str]] = {}
    for name, value in instructions():
        if name == "COPY":
            *sources, target = value.split()
            whole = target if target.endswith("/") else f"{target}/"
            lines.append(f"mkdir -p {whole}")
            for source in sources:
                folder = "/." if (ROOT / source).is_dir() else ""
                lines.append(f"cp -r /context/{source}{folder} {whole}")
        elif name == "RUN":
            lines.append(value)
        elif name == "ENV":
            lines.append(f"export {value}")
        elif name == "ENTRYPOINT":
            image[name] = json.loads(value)
        else:
            assert name in ("FROM", "CMD"), name
    job = "tpukit create v3-8 demo --quiet && tpukit list && tpukit ssh demo -- true && echo done"
    lines.append(shlex.join([*image["ENTRYPOINT"], "bash", "-c", job]))
    return "\n".join(lines) + "\n"


@pytest.mark.journey
@pytest.mark.full_size
def test_an_image_is_built_and_what_is_run_in_it_finds_the_emulator(tmp_path: Path) -> None:
    """In a namespace over this machine's files, in place of the base image."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("not Linux, not root, or no unshare(1)")
    context, place = tmp_path / "context", tmp_path / "place"
    place.mkdir()
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("tpukit", "scripts", "docs/reference"):
        shutil.copytree(ROOT / folder, context / folder, ignore=ignored)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, context)
    made = f"{os.path.realpath(sys.executable)} -m venv /image-python\n"
    (context / "build.sh").write_text(made + build_script("/image-python/bin"))
    unshare = ["unshare", "--mount", "bash", "-c", OVERLAY]
    done = run([*unshare, "bash", str(place), str(context)], dict(os.environ), tmp_path)
    if done.returncode == 77:
        pytest.skip("no overlay can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo\temulator-local1-a" in done.stdout
    assert done.stdout.endswith("done\n")
    assert not Path("/var/lib/tpukit").exists()

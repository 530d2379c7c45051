"""Each example does what it says, against the emulator."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import ROOT, blocks, environment, needs_gcloud, stop_emulator

from tpukit.provision import recipe_names
from tpukit.provision.recipes import Recipe

pytestmark = [pytest.mark.process, pytest.mark.examples]

EXAMPLES = ROOT / "examples"
#: Which test executes each file.
COVERED = {"up_and_train.sh", "train.py", "ci_job.sh", "list_slices.py", "sweep.py", "ray_tasks.py"}
#: The training programs, with their words, by recipe: what they print at last, where all is well.
TRAINED = {
    "flax": {
        "jax_one_and_all.py --one": r"1 devices, batch 64, .*",
        "jax_one_and_all.py": r"8 devices, batch 512, rate 1.0: loss 0\.000.*",
        "jax_sharded.py": r"loss \d\d\.\d+ -> [0-4]\.\d+",
        "flax_text.py --find-rate": r"the loss falls fastest at a rate of [1-9]\.\de-0[234]",
        "flax_text.py --steps 40 --checkpoints found": r"accuracy (1|0\.9).*",
        "flax_text.py --checkpoints found": r"accuracy (1|0\.9).*",
    },
    "equinox": {"equinox_curve.py": r"8 devices, 512 rows: loss .* -> 0\.000.*"},
    "haiku": {"haiku_curve.py": r"8 devices, 512 rows: loss .* -> 0\.000.*"},
    "keras": {
        "keras_images.py": r"8 devices, batch 64: accuracy 0\.9.*",
        "keras_images.py --cache augmented.npz": r"8 devices, batch 64: accuracy 0\.9.*",
    },
    "tensorflow": {
        "tensorflow_fit.py": r"8 devices, batch 128: accuracy 0\.9.*",
        "tensorflow_fit.py --loop": r"8 devices, batch 128: accuracy 0\.9.*",
    },
    "torch_xla": {"torch_xla_text.py": r"8 devices, batch 256: loss 0\.[67].* -> 0\.[0-5].*"},
    "accelerate": {
        "accelerate_text.py": r"1 devices: loss .* -> 0\.[0-3].*",
    },
    "easydel": {"easydel_counting.py": r"8 devices: loss .* -> 0\.0.*"},
    "levanter": {"levanter_counting.py": r"8 devices: loss .* -> 0\.0.*"},
    "maxtext": {"maxtext_synthetic.py": r"8 devices: loss 4\..* -> [0-2]\..*"},
    "lightning": {"lightning_text.py": r"1 devices: loss 0\.[0-3].*"},
}
#: Recipes that CI runs, and small ones like them; the others download gigabytes, or a Python.
LIGHT, LONG = {"flax", "keras"}, {"equinox", "haiku"}
#: A page whose Python is one program.
WRITING = ROOT / "docs/how-to/write-for-tpus.md"

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody who uses the emulator alone; what runs in it ends with a test."""
    found = {**environment(tmp_path), "TPUKIT_LOCAL": "1"}
    yield found
    stop_emulator(found)


def run(variables: dict[str, str], *words: str, status: int = 0, **more: str) -> Finished:
    done = subprocess.run(
        words,
        env={**variables, **more},
        cwd=variables["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def mark(recipe: str) -> list[pytest.MarkDecorator]:
    """Return the mark that leaves a recipe out of CI, if one does."""
    if recipe in LIGHT:
        return []
    return [pytest.mark.long if recipe in LONG else pytest.mark.gigabytes]


def test_every_example_is_executed_here() -> None:
    trained = {words.split()[0] for found in TRAINED.values() for words in found}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == COVERED | trained


def test_every_recipe_that_the_emulator_can_have_trains_an_example() -> None:
    able = {name for name in recipe_names() if not Recipe.named(name).no_stand_in}
    # The programs in plain JAX run with flax, and Ray's in tests/journeys/test_ray.py.
    assert able - {"jax", "ray"} == {*TRAINED}


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(recipe, marks=mark(recipe)) for recipe in TRAINED],
)
def test_the_training_programs_learn_and_the_page_of_their_snippets_is_true(
    variables: dict[str, str], recipe: str, tmp_path: Path
) -> None:
    page = tmp_path / "page.py"
    snippets = [body for language, body in blocks(WRITING.read_text()) if language == "python"]
    page.write_text("\n".join([*snippets, 'print("all of it is true")']))
    up = ("tpukit", "up", "v3-8", "demo", "--with", recipe, "--json")
    (tested,) = json.loads(run(variables, *up).stdout)["smoke"]["workers"]
    assert (tested["framework"], tested["devices"]) == (recipe, 8)
    provision = ("tpukit", "provision", "demo", recipe, "--json")
    assert json.loads(run(variables, *provision).stdout)["provision"]["changes"] == 0
    programs = [str(EXAMPLES / words.split()[0]) for words in TRAINED[recipe]]
    run(variables, "tpukit", "cp", *{*programs, str(page)}, "demo:")
    launch = "accelerate launch --tpu --main_training_function main"
    python = f"CPU_NUM_DEVICES=1 PJRT_DEVICE=CPU {launch}" if recipe == "accelerate" else "python3"
    told = {
        words: run(variables, "tpukit", "run", "demo", "--with", recipe, "--", f"{python} {words}")
        for words in TRAINED[recipe]
    }
    for words, pattern in TRAINED[recipe].items():
        assert re.fullmatch(pattern, told[words].stdout.splitlines()[-1]), told[words]
    if recipe == "keras":
        assert "come from augmented.npz" in told["keras_images.py --cache augmented.npz"].stdout
    if recipe == "flax":
        assert "from step 40" in told["flax_text.py --checkpoints found"].stdout
        done = run(variables, "tpukit", "run", "demo", "--with", recipe, "--", "python3 page.py")
        assert done.stdout.splitlines()[-1] == "all of it is true"


def test_a_sweep_tries_a_rate_on_each_chip_of_each_worker(
    variables: dict[str, str], jax_home: Path
) -> None:
    run(variables, "tpukit", "create", "v4-16", "demo")
    run(variables, "tpukit", "firewall", "apply", "demo")
    environments = f"{jax_home}/provisioned/.tpukit/venvs"
    link = f"mkdir -p .tpukit; ln -sfn {environments} .tpukit/venvs"  # as after `provision`
    run(variables, "tpukit", "run", "demo", "--", link)
    run(variables, "tpukit", "cp", str(EXAMPLES / "sweep.py"), "demo:")
    words = ("--with", "jax", "--per-chip", "--", "python", "sweep.py")
    done = run(variables, "tpukit", "run", "demo", *words)
    pattern = r"\[(\d)\] \[chip (\d)\] trial (\d): rate (\S+), loss (\S+), devices: 1"
    rows = [re.fullmatch(pattern, line) for line in sorted(done.stdout.splitlines())]
    trials = [row.groups() for row in rows if row]
    assert [(worker, chip, trial) for worker, chip, trial, _, _ in trials] == [
        (str(trial // 4), str(trial % 4), str(trial)) for trial in range(8)
    ]
    assert min(trials, key=lambda trial: float(trial[4]))[3] == "16"


def test_up_and_train_trains_on_every_device_of_every_worker_and_deletes_the_slice(
    variables: dict[str, str],
) -> None:
    done = run(variables, str(EXAMPLES / "up_and_train.sh"), "v4-16")
    assert "8 cpu devices on 2 workers" in done.stdout
    losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "loss" in line]
    assert losses[-1] < losses[0] / 10
    assert run(variables, "tpukit", "list").stdout == ""
    assert run(variables, "tpukit", "firewall", "list").stdout == ""


def test_up_and_train_ends_with_the_status_of_what_failed_first(
    variables: dict[str, str], tmp_path: Path
) -> None:
    """A tpukit that fails, also when it is to delete."""
    stub = tmp_path / "stub/tpukit"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\n[ "$1" = up ] && exit 2\nexit 4\n')
    stub.chmod(0o755)
    path = {**variables, "PATH": f"{stub.parent}:{variables['PATH']}"}
    done = subprocess.run(
        [str(EXAMPLES / "up_and_train.sh")], env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "look for train-v3-8-" in done.stderr


def test_up_and_train_deletes_the_slice_when_it_is_interrupted(variables: dict[str, str]) -> None:
    script = subprocess.Popen(
        [str(EXAMPLES / "up_and_train.sh")],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert script.stderr
    for line in script.stderr:
        if "connect" in line:
            os.killpg(script.pid, signal.SIGINT)
            break
    script.communicate(timeout=300)
    assert script.returncode == 130
    assert run(variables, "tpukit", "list").stdout == ""


@pytest.mark.parametrize("client", ["tpukit", "gcloud"])
def test_the_ci_job_sees_its_script_survive_two_stockouts(
    variables: dict[str, str], client: str
) -> None:
    if client == "gcloud":
        needs_gcloud("examples/ci_job.sh with gcloud")
    del variables["TPUKIT_LOCAL"]
    done = run(variables, str(EXAMPLES / "ci_job.sh"), CLIENT=client)
    told = done.stdout.splitlines()
    assert told[:3] == ["try 1: no more capacity", "try 2: no more capacity", "try 3: created"]
    assert told[3].split("\t")[:4] == ["ci", "emulator-local1-a", "v3-8", "READY"]


def test_googles_own_client_lists_what_tpukit_made(variables: dict[str, str]) -> None:
    run(variables, "tpukit", "create", "v3-8", "demo")
    script = f'eval "$(tpukit emulator env)" && python {EXAMPLES / "list_slices.py"}'
    done = run(variables, "bash", "-c", script)
    assert done.stdout == "demo\temulator-local1-a\tv3-8\tREADY\n"

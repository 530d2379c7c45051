"""Every recipe, with real packages: it computes, a second run changes nothing, undo leaves nothing.

`jax` is what most other tests stand on, `flax` trains in tests/test_examples.py. `torch_tpu` has no
packages that stand in for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.local_worker import LocalWorker, seconds

from tpukit.accelerators import AcceleratorType
from tpukit.provision import recipe_names
from tpukit.provision.apply import provision
from tpukit.provision.recipes import Recipe
from tpukit.provision.undo import undo_all
from tpukit.smoke.runner import smoke

LIGHT, HEAVY = {"tensorflow"}, {"torch_xla", "accelerate"}
ELSEWHERE = {"flax", "jax", "torch_tpu"}


def check(name: str, home: Path) -> None:
    worker = LocalWorker(home, environment={"TPUKIT_EMULATED_DEVICES": "8"}).remote()
    recipe = Recipe.named(name)
    first = provision([worker], recipe, deadline=seconds(1800))
    assert first.workers[0].error == "", (name, first.workers[0].log_tail)
    assert provision([worker], recipe, deadline=seconds(60)).changes == 0, name
    report = smoke([worker], AcceleratorType.parse("v3-8"), recipe, deadline=seconds(300))
    (tested,) = report.workers
    assert tested.error == "", (name, tested.log_tail)
    assert (tested.framework, tested.devices) == (name, 8)
    pins = {each.version for release in recipe.releases for each in release.packages}
    assert tested.version in pins, name
    assert report.stand_in == "8 CPU devices standing in for 8 TPU cores", name
    (undone,) = undo_all([worker], [], deadline=seconds(300))
    assert (undone.undone, undone.error) == ((name,), "")
    left = {each.name for each in home.iterdir()}
    assert left <= {".keras"}, "keras keeps settings of its own in the home of whoever imports it"


def test_no_recipe_is_left_out():
    assert {*recipe_names()} == LIGHT | HEAVY | ELSEWHERE


@pytest.mark.full_size
def test_light_recipes_compute_and_leave_nothing(tmp_path):
    for name in sorted(LIGHT):
        check(name, tmp_path)


@pytest.mark.gigabytes
def test_heavy_recipes_compute_and_leave_nothing(tmp_path):
    for name in sorted(HEAVY):
        check(name, tmp_path)

"""Every recipe, with real packages: it computes, a second run changes nothing, undo leaves nothing.

A recipe without packages that stand in for its own is only planned, and refused with its reason.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_worker import LocalWorker, seconds

from tpukit.accelerators import AcceleratorType
from tpukit.provision import recipe_names
from tpukit.provision.provisioning import plan_all, provision_all
from tpukit.provision.recipes import Recipe
from tpukit.provision.undo import undo_all
from tpukit.provision.wanted import Wanted
from tpukit.smoke.runner import smoke

HEAVY_MEGABYTES = 3000
RECIPES = [Recipe.named(name) for name in recipe_names()]
NONE = [recipe.name for recipe in RECIPES if recipe.no_stand_in]
#: Those that download gigabytes.
HEAVY = [
    recipe.name
    for recipe in RECIPES
    if recipe.releases[0].stand_in_disk_megabytes > HEAVY_MEGABYTES
]
LIGHT = [recipe.name for recipe in RECIPES if recipe.name not in (*NONE, *HEAVY)]
#: Keras stands for those that add small packages to JAX.
LONG = {"equinox", "haiku", "ray"}
#: What tests beside this one change in /etc: accounts that come and go.
_ACCOUNTS = re.compile(r"/etc/(\.pwd\.lock|(passwd|shadow|group|gshadow|subuid|subgid)[-+.]?.*)")
_SUDO = "/etc/sudoers.d"
#: What Keras and EasyDeL keep in the home of whoever imports them.
_IMPORTED = re.compile(r"\.keras|\.cache/(easydel|ejkernel-cache)|ejkernel-presistent-cache")


def listing(*folders: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each path with its kind and mode, and with what it holds or leads to."""
    for path in (path for folder in folders for path in folder.rglob("*")):
        shown = str(path)
        if _ACCOUNTS.fullmatch(shown) or shown.startswith(_SUDO):
            continue
        kind, held = stat.filemode(path.lstat().st_mode), ""
        if path.is_symlink():
            held = str(path.readlink())
        elif path.is_file():
            held = hashlib.sha256(path.read_bytes()).hexdigest()
        yield shown, kind, held


def check(name: str, home: Path) -> None:
    """The home is somebody's who has worked there already."""
    for own in (".bashrc", ".config/pip/pip.conf", ".cache/pip/mine", "work/train.py"):
        (home / own).parent.mkdir(parents=True, exist_ok=True)
        (home / own).write_text("# mine\n")
    before = {*listing(home, Path("/etc"))}
    worker = LocalWorker(home, environment={"TPUKIT_EMULATED_DEVICES": "8"}).remote()
    recipe = Recipe.named(name)
    wanted = Wanted((), (recipe,))
    first = provision_all([worker], wanted, deadline=seconds(1800))
    assert first.workers[0].error == "", (name, first.workers[0].log_tail)
    assert provision_all([worker], wanted, deadline=seconds(60)).changes == 0, name
    report = smoke([worker], AcceleratorType.parse("v3-8"), recipe, deadline=seconds(300))
    (tested,) = report.workers
    assert tested.error == "", (name, tested.log_tail)
    assert (tested.framework, tested.devices) == (name, 8)
    pins = {package.version for release in recipe.releases for package in release.packages}
    assert tested.version in pins, name
    assert report.stand_in == "8 CPU devices standing in for 8 TPU cores", name
    (undone,) = undo_all([worker], [], deadline=seconds(300))
    assert (undone.undone, undone.error) == ((name,), "")
    left = {each for each in listing(home) if _IMPORTED.match(str(Path(each[0]).relative_to(home)))}
    assert {*listing(home, Path("/etc"))} - left == before, name


@pytest.mark.full_size
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in LIGHT],
)
def test_a_light_recipe_computes_and_leaves_nothing(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.gigabytes
@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_recipe_computes_and_leaves_nothing(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.parametrize("name", NONE)
def test_a_recipe_without_stand_ins_is_refused_before_anything_changes(name, tmp_path):
    worker = LocalWorker(tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "8"}).remote()
    recipe = Recipe.named(name)
    (plan,) = plan_all([worker], Wanted((), (recipe,)), deadline=seconds(60))
    assert plan.steps[-1].outcome == "refused"
    assert recipe.no_stand_in in plan.steps[-1].detail
    assert not (tmp_path / ".tpukit/venvs").exists()

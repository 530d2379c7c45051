"""A recipe of one's own is a file, which may extend another; a project's has to be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpukit.errors import BadInput, SecurityRefusal
from tpukit.provision.own_recipes import OwnRecipes
from tpukit.provision.recipes import Recipe
from tpukit.smoke.runner import check_level

MINE = """
name = "mine"
description = "Flax with my libraries"
extends = "flax"
packages = ["einops==0.8.1", "grain>=0.2"]
modules = ["einops"]
"""
SMOKE = '[smoke]\nprogram = "mine_program.py"\nnames_device_kind = true'


def own(tmp_path: Path, **files: str) -> OwnRecipes:
    user = tmp_path / "recipes"
    user.mkdir(exist_ok=True)
    for name, text in files.items():
        (user / f"{name}.toml").write_text(text)
    return OwnRecipes(user)


def test_it_has_all_of_what_it_extends_and_holds_to_its_lock(tmp_path):
    mine, flax = Recipe.named("mine", own(tmp_path, mine=MINE)), Recipe.named("flax")
    assert mine.pythons == flax.pythons
    assert mine.smoke == flax.smoke
    for python in mine.pythons:
        release = mine.release_for(python)
        assert [package.requirement for package in release.packages[-2:]] == [
            "einops==0.8.1",
            "grain>=0.2",
        ]
        assert release.stand_in_packages[-1].name == "grain"
        assert mine.lock_text(python, emulated=True) == flax.lock_text(python, emulated=True)
    assert mine.modules == (*flax.modules, "einops")


def test_it_adds_variables_to_those_of_what_it_extends(tmp_path):
    mine = Recipe.named("mine", own(tmp_path, mine=MINE + '[environment]\nA = "1"\n'))
    assert mine.environment == {"JAX_COMPILATION_CACHE_DIR": "{compilation_cache}", "A": "1"}


def test_without_extends_it_has_only_its_own_packages_and_no_smoke_test(tmp_path):
    text = MINE.replace('extends = "flax"', "") + '[[releases]]\npythons = ["3.11", "3.12"]\n'
    mine = Recipe.named("mine", own(tmp_path, mine=text))
    (release,) = mine.releases
    assert [package.requirement for package in release.packages] == ["einops==0.8.1", "grain>=0.2"]
    assert release.stand_in_packages == release.packages
    assert (mine.pythons, mine.managed_python) == (("3.11", "3.12"), "3.12")
    assert (mine.architecture, mine.modules, mine.environment) == ("x86_64", ("einops",), {})
    assert mine.lock_text("3.12", emulated=False) == ""
    check_level(mine, 0)
    with pytest.raises(BadInput, match="the recipe mine has no smoke test"):
        check_level(mine, 1)


def test_it_may_have_a_service_and_another_recipe_inherits_it(tmp_path):
    service = '[service]\ncommand = "serve {port}"\nport = 9000\n'
    yours = MINE.replace('"mine"', '"yours"').replace('"flax"', '["flax", "mine"]')
    recipes = own(tmp_path, mine=MINE + service, yours=yours)
    mine = Recipe.named("mine", recipes).service
    assert mine
    assert (mine.command, mine.port, mine.ready, mine.stand_in) == ("serve {port}", 9000, "/", "")
    assert Recipe.named("yours", recipes).service == mine


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("port = 1", "service.command: it is missing"),
        ('command = "a"\nport = 70000', "service.port"),
        ('command = "a"\nport = 1\nready = "health"', "service.ready"),
        ('command = "a"\nport = 1\nstand_in = "mine"', "service.stand_in"),
        ('command = "a\\nb"\nport = 1', "service.command"),
        ('command = "a"\nport = 1\nunknown = 1', "service.unknown"),
    ],
)
def test_a_service_that_makes_no_sense_is_refused(tmp_path, lines, reason):
    with pytest.raises(BadInput) as caught:
        Recipe.named("mine", own(tmp_path, mine=f"{MINE}[service]\n{lines}\n"))
    assert caught.value.reason.startswith(reason)


def test_the_python_that_is_fetched_is_one_that_it_has_a_release_for(tmp_path):
    text = MINE + '[[releases]]\npythons = ["3.11"]\n'
    mine = Recipe.named("mine", own(tmp_path, mine=text))
    assert (mine.pythons, mine.managed_python) == (("3.11",), "3.11")


def test_a_file_whose_name_is_no_recipes_name_is_none(tmp_path):
    files = {"A": MINE, "\x1b[2J": MINE, "mine": MINE, "x" * 41: MINE}
    assert own(tmp_path, **files).names() == ("mine",)


def test_a_step_s_name_is_none_and_a_version_without_a_python_is_said(tmp_path):
    text = MINE.replace('"mine"', '"einops"') + '[fits]\neinops = ">=0.8"\n'
    text += '[needs_python]\n"einops>=0.8.2" = ">=4"\n'
    found = own(tmp_path, disk=MINE.replace('"mine"', '"disk"'), einops=text)
    assert found.names() == ("einops",)
    with pytest.raises(BadInput, match="there is no Python for which"):
        Recipe.named("einops==0.8.2", found)


def test_with_another_version_of_what_the_lock_names_there_is_no_lock(tmp_path):
    text = MINE.replace("grain>=0.2", "flax==0.12.9")
    mine = Recipe.named("mine", own(tmp_path, mine=text))
    assert mine.lock_text("3.12", emulated=False) == ""


def test_recipes_of_ones_own_extend_each_other(tmp_path):
    yours = MINE.replace('"mine"', '"yours"').replace('"flax"', '"mine"')
    recipe = Recipe.named("yours", own(tmp_path, mine=MINE, yours=yours))
    assert recipe.lock_text("3.12", emulated=False) == Recipe.named("flax").lock_text("3.12", False)


def test_what_is_wrong_in_one_is_one_error_that_says_where(tmp_path):
    cases = {
        "name = ": ("mine.toml is not TOML", ""),
        MINE + "version = 1": ("mine.toml is not a recipe (version: ", ""),
        MINE.replace("grain>=0.2", "./grain"): ("mine.toml is not a recipe (packages.1: ", ""),
        MINE.replace('"mine"', '"other"'): ("mine.toml names its recipe other", ""),
        MINE.replace('"mine"', '"../x"'): ("mine.toml is not a recipe (name: ", ""),
        MINE.replace('extends = "flax"', ""): ("there is no Python for which", ""),
        MINE.replace('"flax"', '"flux"'): ('"flux", which mine extends is not a recipe', ""),
        MINE.replace('"flax"', '"mine"'): ("in a circle: mine -> mine", ""),
        MINE.replace('"flax"', '["jax", "torch_xla"]'): ("cannot share an environment", "libtpu"),
        MINE.replace("grain>=0.2", "libtpu==0.0.52"): ("libtpu 0.0.52 does not fit", "pins"),
        MINE + '[[releases]]\npythons = ["3.9"]': ("there is no Python for which", ""),
        MINE.replace('["einops"]', '"einops"'): ("(modules: it is not a list)", ""),
        MINE.replace('"einops==0.8.1"', "3"): ("(packages.0: it is not a string)", ""),
        MINE.replace("description", "about"): ("(description: it is missing)", ""),
        MINE + "[environment]\nA-B = '1'": ("mine.toml is not a recipe (environment.A-B", ""),
        MINE + "[environment]\nA = 1": ("(environment.A: it is not a string)", ""),
        f"x = {'[' * 3000}": ("mine.toml is not TOML", ""),
        MINE + SMOKE: (
            "has a smoke test of its own",
            "the smoke test of the recipe that it extends",
        ),
    }
    for text, (what, why) in cases.items():
        with pytest.raises(BadInput) as caught:
            Recipe.named("mine", own(tmp_path, mine=text))
        assert what in caught.value.summary(), text
        assert why in caught.value.why, text
    for circle in ("yours", "mine"):
        yours = MINE.replace('"mine"', '"yours"').replace('"flax"', '"mine"')
        both = own(tmp_path, mine=MINE.replace('"flax"', '"yours"'), yours=yours)
        with pytest.raises(BadInput, match="in a circle: "):
            Recipe.named(circle, both)


def test_a_recipe_of_tpukits_is_not_replaced(tmp_path):
    found = own(tmp_path, jax=MINE.replace('"mine"', '"jax"'))
    assert found.names() == ()
    assert Recipe.named("jax", found) == Recipe.named("jax")


def test_a_projects_recipe_counts_once_it_is_trusted_with_this_text(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.toml").write_text(MINE)
    folders = (tmp_path / "nothing", project)
    with pytest.raises(SecurityRefusal) as caught:
        Recipe.named("mine", OwnRecipes(*folders))
    assert caught.value.fix.arguments[:3] == ("tpukit", "config", "trust")
    trusting = OwnRecipes(*folders, lambda path, text: (path.name, text) == ("mine.toml", MINE))
    assert Recipe.named("mine", trusting).name == "mine"
    (project / "mine.toml").write_text(MINE.replace("0.8.1", "0.8.0"))
    with pytest.raises(SecurityRefusal):
        Recipe.named("mine", trusting)

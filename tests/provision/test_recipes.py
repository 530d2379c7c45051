"""The recipes are data that hold together."""

from __future__ import annotations

import pytest

from tpukit.errors import BadInput
from tpukit.provision import recipe_names
from tpukit.provision.recipes import Package, Recipe
from tpukit.remote.worker_files import venv_python

RECIPES = [Recipe.named(name) for name in recipe_names()]
RELEASES = [release for recipe in RECIPES for release in recipe.releases]


def test_there_are_two_recipes():
    assert recipe_names() == ("jax", "torch_xla")


def test_each_python_has_one_release_and_the_fetched_one_has_the_preferred():
    for recipe in RECIPES:
        assert len(set(recipe.pythons)) == len(recipe.pythons), recipe.name
        assert recipe.release_for(recipe.managed_python) == recipe.releases[0], recipe.name
        assert recipe.release_for("3.8") is None, recipe.name


def test_all_but_helpers_are_pinned_and_have_sources():
    for release in RELEASES:
        loose = {each.name for each in release.packages if not each.version}
        assert loose <= {"requests"}, release
        assert release.sources, release


def test_stand_ins_are_the_same_versions_without_the_tpu_driver():
    for release in RELEASES:
        stand_ins = {each.pin for each in release.stand_in_packages}
        assert stand_ins == {each.pin for each in release.packages if each.name != "libtpu"}
        assert not [each for each in release.stand_in_packages if "[tpu]" in each.requirement]
        assert [each for each in release.packages if "[tpu]" in each.requirement], release


def test_two_frameworks_never_share_an_environment():
    names = {recipe.name for recipe in RECIPES}
    for release in RELEASES:
        assert len(names & {each.name for each in release.packages}) == 1, release


def test_torch_is_pinned_to_torch_xla():
    pins = {each.name: each.version for each in Recipe.named("torch_xla").releases[0].packages}
    assert pins["torch"] == pins["torch_xla"]


def test_an_unknown_recipe_is_refused_with_the_nearest():
    cases = [
        ("jaxx", "did you mean jax?"),
        ("torch-xla", "did you mean torch_xla?"),
        ("pytorch", "did you mean torch_xla?"),
        ("", "one of jax, torch_xla"),
        ("../errors", "one of jax, torch_xla"),
        ("z" * 10_000, "one of jax, torch_xla"),
    ]
    for name, fix in cases:
        with pytest.raises(BadInput) as caught:
            Recipe.named(name)
        assert str(caught.value.fix) == fix
        assert len(caught.value.what) < 100


def test_a_package_is_read_in_its_parts():
    package = Package.parse("torch_xla[tpu]==2.9.0")
    assert (package.name, package.version, package.pin) == (
        "torch_xla",
        "2.9.0",
        "torch_xla==2.9.0",
    )
    assert Package.parse("requests").pin == "requests"


def test_what_is_not_a_pin_is_no_package():
    for line in ["jax>=0.4", "jax; rm", "--index-url=x", "jax==", ""]:
        with pytest.raises(ValueError, match="not a pinned package"):
            Package.parse(line)


def test_the_interpreter_is_below_the_home_directory():
    assert venv_python("jax") == ".tpukit/venvs/jax/bin/python"

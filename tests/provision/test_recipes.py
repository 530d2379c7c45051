"""The recipes are data that hold together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpukit.accelerators import all_types
from tpukit.errors import BadInput
from tpukit.provision import recipe_names
from tpukit.provision.packages import Package
from tpukit.provision.recipes import Recipe
from tpukit.ssh.worker_files import venv_python

ROOT = Path(__file__).parents[2]
RECIPES = [Recipe.named(name) for name in recipe_names()]
RELEASES = [release for recipe in RECIPES for release in recipe.releases]


def test_the_pages_have_every_recipe():
    for page in ("how-to/install-requirements.md", "explanation/frameworks.md"):
        text = (ROOT / "docs" / page).read_text()
        assert not [name for name in recipe_names() if f"`{name}`" not in text], page


def test_each_python_has_one_release_and_the_fetched_one_has_the_preferred():
    for recipe in RECIPES:
        assert len(set(recipe.pythons)) == len(recipe.pythons), recipe.name
        assert recipe.release_for(recipe.managed_python) == recipe.releases[0], recipe.name
        assert recipe.release_for("3.8") is None, recipe.name


def test_all_but_helpers_are_pinned_and_have_sources():
    for release in RELEASES:
        loose = {package.name for package in release.packages if not package.version}
        assert loose <= {"requests"}, release
        assert release.sources, release


def test_stand_ins_are_the_same_versions_without_the_tpu_driver():
    for recipe in RECIPES:
        for release in recipe.releases:
            assert [
                package
                for package in release.packages
                if package.name == "libtpu" and package.version
            ]
            assert not [
                package for package in release.stand_in_packages if package.name == "libtpu"
            ]
            assert not [
                package
                for package in release.stand_in_packages
                # MaxText's extra has all of its packages.
                if "[tpu]" in package.requirement and package.name != "maxtext"
            ]
            if not recipe.no_stand_in:
                versions = [
                    sorted(package.version for package in packages if package.name != "libtpu")
                    for packages in (release.packages, release.stand_in_packages)
                ]
                assert versions[0] == versions[1], recipe.name


def test_each_recipe_fits_the_default_runtime_version_of_every_type():
    usual = {type_.runtime_version for type_ in all_types()}
    for recipe in RECIPES:
        assert not [version for version in usual if recipe.runtime_doubt(version)], recipe.name
        for version in ("tpu-vm-tf-2.16.1-pjrt", "tpu-vm-cos-stable", "tpu-vm-pt-1.13"):
            assert f"{recipe.name} is not known to fit runtime" in recipe.runtime_doubt(version)


def test_two_frameworks_never_share_an_environment():
    drivers = {"jax", "torch_xla", "torch_tpu", "tensorflow-tpu"}
    for release in RELEASES:
        assert len(drivers & {package.name for package in release.packages}) == 1, release


def test_each_environment_has_the_tool_that_reads_chips():
    for release in RELEASES:
        assert "tpu-info" in {package.name for package in release.packages}, release


def test_every_release_has_a_lock_with_a_hash_for_each_file_and_no_place_to_get_it_from():
    """A lock holds every pin; scripts/lock makes it."""
    line = re.compile(r"[a-z0-9-]+==[0-9A-Za-z.+]+( --hash=sha256:[0-9a-f]{64})+")
    for recipe in RECIPES:
        for release in recipe.releases:
            for python in release.pythons:
                for emulated in (False, True):
                    lines = recipe.lock_text(python, emulated).splitlines()
                    assert bool(lines) is not (emulated and bool(recipe.no_stand_in))
                    found = [line for line in lines if not line.startswith("#")]
                    assert not [each for each in found if not line.fullmatch(each)]
                    locked = {Package.parse(text.split()[0]).pin for text in found}
                    pins = {
                        f"{each.key}=={each.version}"
                        for each in release.packages_for(emulated)
                        if each.version and lines
                    }
                    assert pins <= locked, (recipe.name, python, pins - locked)


def test_a_recipe_has_what_it_extends_and_its_own_on_top():
    flax, jax = Recipe.named("flax"), Recipe.named("jax")
    for python in flax.pythons:
        below, above = jax.release_for(python), flax.release_for(python)
        assert set(below.packages) < set(above.packages)
        assert below.disk_megabytes < above.disk_megabytes
    assert flax.modules[: len(jax.modules)] == jax.modules
    assert (flax.smoke, flax.glibc) == (jax.smoke, jax.glibc)


def test_another_version_is_taken_where_it_is_known_to_fit():
    cases = [
        ("flax==0.12.9", "3.12", "flax==0.12.9", "jax[tpu]>=0.7.0,<=0.12.0.1"),
        ("jax==0.11.2", "3.13", "jax[tpu]==0.11.2", "libtpu"),
        ("torch_xla==2.8.1", "3.11", "torch==2.8.0", "libtpu==0.0.17"),
    ]
    for text, python, *packages in cases:
        recipe = Recipe.named(text)
        release = recipe.release_for(python)
        assert set(packages) <= {package.requirement for package in release.packages}, text
        stand_ins = {
            package.replace("[tpu]", "") for package in packages if "libtpu" not in package
        }
        assert stand_ins <= {package.requirement for package in release.stand_in_packages}, text
        assert recipe.lock_text(python, emulated=False) == "", text


def test_the_version_of_a_release_is_that_release_with_its_lock():
    recipe = Recipe.named("flax==0.12.8")
    assert recipe.releases[0] == Recipe.named("flax").release_for("3.11")
    assert recipe.lock_text("3.11", emulated=False)
    assert not recipe.lock_text("3.12", emulated=False)
    assert recipe.pythons == Recipe.named("flax").pythons
    both = Recipe.named("flax").with_versions({"flax": "0.12.8", "optax": "0.2.7"})
    assert not both.lock_text("3.11", emulated=False)


def test_another_version_is_for_the_pythons_that_it_runs_on():
    cases = [
        ("jax==0.11.0", ("3.12", "3.13", "3.14")),
        ("jax==0.10.1", ("3.11", "3.12", "3.13", "3.14")),
        ("jax==0.7.0", ("3.11", "3.12", "3.13")),
        ("flax==0.12.10", ("3.12", "3.13", "3.14")),
    ]
    for text, pythons in cases:
        recipe = Recipe.named(text)
        assert recipe.pythons == pythons, text
        assert all(release.pythons for release in recipe.releases), text


def test_a_version_that_does_not_fit_is_refused_with_the_reason():
    cases = [
        ("jax==0.4.30", "jax 0.4.30 does not fit jax", "libtpu-nightly"),
        ("flax==0.13.0", "flax 0.13.0 is not known to fit flax", ""),
        ("flax==new", '"new" is not a version of flax', ""),
        ("flax==", '"" is not a version of flax', ""),
        ("torch_xla==2.9.1", "torch_xla 2.9.1 is not known to fit torch_xla", ""),
        ("tensorflow==2.21.0", "tensorflow has only one version of tensorflow", ""),
    ]
    for text, what, why in cases:
        with pytest.raises(BadInput) as caught:
            Recipe.named(text)
        assert caught.value.what == what
        assert why in caught.value.why
        assert caught.value.fix


def test_torch_is_pinned_to_torch_xla():
    pins = {
        package.name: package.version for package in Recipe.named("torch_xla").releases[0].packages
    }
    assert pins["torch"] == pins["torch_xla"]


def test_vllm_takes_the_versions_that_its_plugin_pins_instead_of_jax_s_own():
    (release,) = Recipe.named("vllm").releases
    pins = {package.name: package.version for package in release.packages}
    lock = Recipe.named("vllm").lock_text("3.12", emulated=False)
    assert (pins["jax"], pins["libtpu"], pins["tpu-info"]) == ("0.11.2", "0.0.48", "0.7.1")
    assert "\ntorch==" in lock
    assert "\nflax==0.12.10 " in lock
    assert Recipe.named("vllm").environment["VLLM_XLA_CACHE_PATH"] == "{compilation_cache}"
    assert Recipe.named("jax").service is None


def test_vllm_for_gpus_is_refused_beside_vllm_for_tpus():
    for line in ("vllm==0.11.0", "vllm", "torch_xla"):
        with pytest.raises(BadInput, match="cannot share an environment with vllm"):
            Recipe.named("vllm").check_beside([Package.parse(line)])
    with pytest.raises(BadInput, match="but vllm has 0"):
        Recipe.named("vllm").check_beside([Package.parse("jax==0.12.0.1")])


def test_an_unknown_recipe_is_refused_with_the_nearest():
    every = f"one of {', '.join(recipe_names())}"
    cases = [
        ("jaxx", "did you mean jax?"),
        ("torch-xla", "did you mean torch_xla?"),
        ("pytorch", "did you mean torch_xla?"),
        ("", every),
        ("../../x", every),
        ("z" * 10_000, every),
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


def test_what_no_index_has_by_its_name_is_no_package():
    url = "jax @ https://example.com/jax.whl"
    for line in [url, "jax; rm", "jax; os_name", "--index-url=x", "jax==", "./x", ""]:
        with pytest.raises(ValueError, match="not a package"):
            Package.parse(line)


def test_the_interpreter_is_below_the_home_directory():
    assert venv_python("jax") == ".tpukit/venvs/jax/bin/python"

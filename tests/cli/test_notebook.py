"""`tpukit notebook` where there is nothing to open; Jupyter itself runs in the journeys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.conftest import Local

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def bare(local: Local) -> Iterator[str]:
    """A slice on which nothing was provisioned."""
    with local.slice("bare") as name:
        yield name


def test_a_recipe_that_does_not_exist_is_refused_before_anything_is_asked(local: Local) -> None:
    done = local.run("notebook", "nobody", "--with", "cobol").says(2)
    assert "there is no recipe cobol" in done.err


def test_a_lease_that_is_no_duration_is_refused(local: Local) -> None:
    done = local.run("notebook", "nobody", "--lease", "overnight").says(2)
    assert "fix: for example: --lease 20m" in done.err


@pytest.mark.parametrize("more", [(), ("--install",)])
def test_without_the_environment_it_says_how_to_get_it_and_starts_nothing(
    local: Local, bare: str, more: tuple[str, ...]
) -> None:
    done = local.run("notebook", bare, "--port", "0", *more).says(3)
    assert f"fix: tpukit --local provision {bare} jax" in done.err
    assert local.run("jobs", bare).out == ""


def test_it_takes_the_environment_that_is_there(local: Local, bare: str) -> None:
    made = "python3 -m venv --without-pip .tpukit/venvs/torch_xla"
    assert local.run("run", bare, "--", made).status == 0
    done = local.run("notebook", bare, "--port", "0").says(3)
    assert f"{bare} worker 0 has no Jupyter in its environment torch_xla" in done.err

"""Where the smoke test runs: home folders that share one real JAX environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from provision.local import LocalWorker, seconds

from tpukit.clock import SystemClock
from tpukit.provision.apply import provision
from tpukit.provision.recipes import Recipe


@pytest.fixture(scope="session")
def jax_home(tmp_path_factory) -> Path:
    """The home of an emulated worker that was provisioned with the recipe jax, twice."""
    home = tmp_path_factory.mktemp("jax")
    worker = LocalWorker(home, environment={"TPUKIT_EMULATED_DEVICES": "8"})
    for changes in (True, False):
        report = provision(
            [worker.remote()], Recipe.named("jax"), clock=SystemClock(), deadline=seconds(300)
        )
        assert report.workers[0].error == ""
        assert (report.changes > 0) is changes
    return home

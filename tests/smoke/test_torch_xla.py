"""PyTorch/XLA for real on virtual devices: gigabytes, so the default run leaves it out."""

from __future__ import annotations

import pytest
from support.local_worker import LocalWorker, seconds

from tpukit.accelerators import AcceleratorType
from tpukit.clock import SystemClock
from tpukit.provision.apply import provision
from tpukit.provision.recipes import Recipe
from tpukit.smoke.runner import smoke

CLOCK = SystemClock()


@pytest.mark.gigabytes
def test_a_worker_provisioned_with_torch_xla_passes_and_a_second_run_changes_nothing(tmp_path):
    worker = LocalWorker(tmp_path, environment={"TPUKIT_EMULATED_DEVICES": "8"}).remote()
    recipe = Recipe.named("torch_xla")
    first = provision([worker], recipe, deadline=seconds(1800))
    assert first.workers[0].error == ""
    assert provision([worker], recipe, deadline=seconds(60)).changes == 0
    report = smoke(
        [worker],
        AcceleratorType.parse("v3-8"),
        recipe,
        deadline=seconds(300),
    )
    assert report.workers[0].error == ""
    assert report.stand_in == "8 CPU devices standing in for 8 TPU cores"

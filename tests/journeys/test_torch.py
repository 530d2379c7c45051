"""The second framework. It brings gigabytes along, so it is asked for by its mark."""

from __future__ import annotations

import pytest
from support.command_line import Tpukit


@pytest.mark.gigabytes
def test_up_with_torch_xla_computes_on_every_device(alone: Tpukit) -> None:
    alone.succeeds("emulator", "start")
    words = ("--local", "up", "v3-8", "pt", "--with", "torch_xla")
    alone.succeeds(*words, timeout=3600)
    document = alone.document(*words)
    assert document["changes"] == 0
    assert document["smoke"]["stand_in"] == "8 CPU devices standing in for 8 TPU cores"
    (worker,) = document["smoke"]["workers"]
    assert (worker["framework"], worker["devices"]) == ("torch_xla", 8)
    assert worker["matmul"] == worker["matmul_expected"]
    assert worker["global_sum"] == worker["global_sum_expected"] == sum(range(1, 9))

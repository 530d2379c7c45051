"""What the toolkit knows of the slices that a command is about."""

from __future__ import annotations

import pytest
from support.local_cloud import ZONE, Cloud

from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import Fix

pytestmark = pytest.mark.process


def test_ctrl_c_names_every_slice_that_the_command_is_about_and_no_other(
    prompt_cloud: Cloud,
) -> None:
    for name in ("demo", "pair", "server"):
        prompt_cloud.tpu.create(prompt_cloud.request(name))
    toolkit = Toolkit(GlobalFlags(), environ=prompt_cloud.environment())
    assert toolkit.interrupted(KeyboardInterrupt()).fix is None
    toolkit.find("demo")
    toolkit.look_up("server")
    alone = toolkit.interrupted(KeyboardInterrupt())
    assert alone.fix == Fix.command("tpukit", "delete", "demo", "--zone", ZONE)
    toolkit.find_named("pair")
    both = toolkit.interrupted(KeyboardInterrupt())
    assert [line.split()[1] for line in both.exists] == ["demo", "pair"]
    assert both.fix == Fix.command("tpukit", "delete", "demo", "pair")

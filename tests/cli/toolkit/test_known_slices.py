"""What the toolkit knows of the slices that a command is about."""

from __future__ import annotations

import io
import sys

import pytest
from support.local_cloud import ZONE, Cloud

from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.main import status
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import Fix, NotAllowed, NotFound

pytestmark = pytest.mark.process


def test_ctrl_c_names_every_slice_that_the_command_is_about_and_no_other(
    prompt_cloud: Cloud,
) -> None:
    for name in ("demo", "pair", "server"):
        prompt_cloud.tpu.create(prompt_cloud.request(name))
    toolkit = Toolkit(GlobalFlags(), environ=prompt_cloud.environment())
    assert toolkit.seen.interrupted(KeyboardInterrupt()).fix is None
    toolkit.slices.find("demo")
    toolkit.slices.look_up("server")
    alone = toolkit.seen.interrupted(KeyboardInterrupt())
    assert alone.fix == Fix.command("tpukit", "delete", "demo", "--zone", ZONE)
    toolkit.slices.find_named("pair")
    both = toolkit.seen.interrupted(KeyboardInterrupt())
    assert [line.split()[1] for line in both.exists] == ["demo", "pair"]
    assert both.fix == Fix.command("tpukit", "delete", "demo", "pair")
    toolkit.slices.about("late")
    late = toolkit.seen.interrupted(KeyboardInterrupt())
    assert (late.exists, late.why) == (both.exists, "not looked up yet: late")
    assert late.fix == Fix.command("tpukit", "delete", "demo", "pair", "late", "--missing-ok")


def test_until_it_was_looked_for_a_slice_may_be_there_and_none_that_was_not_found(
    prompt_cloud: Cloud,
) -> None:
    toolkit = Toolkit(GlobalFlags(), environ=prompt_cloud.environment())
    for look in (toolkit.slices.find, toolkit.slices.find_named):
        prompt_cloud.fault(preset="permission-denied", method="nodes.list", times=1)
        with pytest.raises(NotAllowed):
            look("demo")
        unknown = toolkit.seen.interrupted(KeyboardInterrupt())
        assert unknown.fix == Fix.command("tpukit", "describe", "demo")
        assert unknown.otherwise == Fix.command("tpukit", "delete", "demo")
        with pytest.raises(NotFound):
            look("demo")
        assert toolkit.seen.interrupted(KeyboardInterrupt()).fix is None


class Pressing(io.TextIOWrapper):
    """A stream at whose first line Ctrl-C is pressed."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.tell() == written:
            raise KeyboardInterrupt
        return written


def test_ctrl_c_at_the_first_line_of_a_command_says_that_nobody_has_looked(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    for verb in ("create", "up"):
        said = Pressing(io.BytesIO(), "utf-8")
        monkeypatch.setattr(sys, "stderr", said)
        assert status([verb, "v3-8", "demo"]) == 130
        said.flush()
        told = said.buffer.getvalue().decode()
        assert told.startswith("slice demo: v3-8 in ")
        assert f"slice demo in {ZONE} was not looked up yet" in told
        assert f"fix: tpukit delete demo --zone {ZONE}" in told
    assert cloud.nodes() == []

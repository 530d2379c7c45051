"""Which engine runs the workers, and why."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tpukit.emulator.workers.engines.engine_choice import choose, lacking
from tpukit.emulator.workers.engines.portable import PortableEngine


@pytest.mark.parametrize(
    ("platform", "user", "programs", "lacks"),
    [
        ("linux", 0, {"ip", "mount", "nsenter", "setsid", "unshare"}, ""),
        ("linux", 0, {"mount", "nsenter", "setsid"}, "ip, unshare"),
        ("linux", 1000, {"ip", "mount", "nsenter", "setsid", "unshare"}, "root"),
        ("darwin", 0, {"mount"}, "Linux"),
    ],
)
def test_namespaces_need_root_on_linux_and_a_few_programs(platform, user, programs, lacks):
    assert lacking(platform, user, lambda name: name in programs or None) == lacks


def test_auto_is_the_engine_that_every_machine_can_run(tmp_path):
    choice = choose("auto", tmp_path, "identity", {})
    lacks = lacking(sys.platform, os.geteuid(), shutil.which)
    assert choice.engine.name == "portable"
    assert choice.engine.limits
    assert (lacks or "--engine namespaces") in choice.reason


def test_what_portable_workers_lack_says_whether_their_commands_are_root_s():
    python = Path(sys.executable)
    ours, root = (PortableEngine({}, python, is_root=who).limits for who in (False, True))
    assert not any("root" in limit for limit in ours)
    assert "every command on a worker is root on this machine" in root[0]

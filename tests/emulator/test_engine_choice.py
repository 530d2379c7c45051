"""Which engine runs the workers, and why."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from tpukit.emulator.process.home import EmulatorHome
from tpukit.emulator.process.worker_engine import worker_engine
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


def test_a_server_on_port_22_of_the_workers_addresses_is_told_where_it_would_be_met(tmp_path):
    home = EmulatorHome(tmp_path)
    home.create()
    address = "127.77.0.1"  # that no worker is given
    try:
        server = socket.create_server((address, 22))
    except OSError as error:
        pytest.skip(f"port 22 of {address}: {error.strerror}: NOT checked by this run")
    with server:
        assert worker_engine("portable", home).foreign_ssh
        assert not worker_engine("paper", home).foreign_ssh
    assert not worker_engine("portable", home).foreign_ssh


def test_what_portable_workers_lack_says_whether_their_commands_are_root_s():
    python = Path(sys.executable)
    ours, root = (PortableEngine({}, python, is_root=who).limits for who in (False, True))
    assert not any("root" in limit for limit in ours)
    assert "every command on a worker is root on this machine" in root[0]

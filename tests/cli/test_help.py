"""The help pages, read as a newcomer reads them."""

from __future__ import annotations

import re

import pytest

from cli.conftest import Run
from cli.test_commands import commands
from tpukit.cli.global_flags import GlobalFlags
from tpukit.emulator.faults.worker_faults import KINDS

GLOBAL = "|".join(GlobalFlags.__dataclass_fields__)


@pytest.mark.parametrize(
    "group",
    ["", "firewall", "emulator", "emulator fault", "emulator clock", "connections", "config"],
)
def test_the_list_of_commands_shows_each_summary_whole(run: Run, group: str) -> None:
    listed = run(*group.split(), "--help").out.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("command", commands())
def test_every_flag_says_in_words_what_it_takes(run: Run, command: str) -> None:
    page = run(*command.split(), "--help").out
    own = [line for line in page.splitlines() if not re.match(rf" +--({GLOBAL}) ", line)]
    assert not [line for line in own if re.search(r"--\S+ <", line)]


def test_the_page_of_worker_faults_names_every_kind(run: Run) -> None:
    page = run("emulator", "worker", "--help").out.partition("--fault")[2]
    words = re.sub(r"-\s+", "-", page)
    assert not [kind for kind in KINDS if kind not in words]

"""The help pages, read as a newcomer reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from cli.conftest import Run
from cli.test_commands import commands
from tpukit.cli.global_flags import GlobalFlags
from tpukit.cli.main import application
from tpukit.cli.pages import _SUBJECTS, GROUPS, SECTIONS, SUMMARIES, VERBS
from tpukit.emulator.faults.worker_faults import KINDS

GLOBAL = "|".join(GlobalFlags.__dataclass_fields__)


@pytest.mark.parametrize(
    "group",
    ["", "firewall", "emulator", "emulator fault", "emulator clock", "config"],
)
def test_the_list_of_commands_shows_each_summary_whole(run: Run, group: str) -> None:
    listed = run(*group.split(), "--help").out.partition("Commands:\n" if group else "job:\n")[2]
    assert listed
    assert "..." not in listed


def test_the_summaries_of_the_first_page_are_those_of_the_commands() -> None:
    tree = get_command(application())
    found = {name: each.get_short_help_str(1000) for name, each in tree.commands.items()}
    assert found == SUMMARIES


def test_every_flag_with_a_subject_exists() -> None:
    tree = get_command(application())
    flags = {flag.name for command in tree.commands.values() for flag in command.params}
    assert {name for names in _SUBJECTS.values() for name in names.split()} <= flags


@pytest.mark.parametrize("command", commands())
def test_every_flag_says_in_words_what_it_takes(run: Run, command: str) -> None:
    page = run(*command.split(), "--help").out
    own = [line for line in page.splitlines() if not re.match(rf" +--({GLOBAL}) ", line)]
    assert not [line for line in own if re.search(r"--\S+ <", line)]


def test_the_page_of_worker_faults_names_every_kind(run: Run) -> None:
    page = run("emulator", "worker", "--help").out.partition("--fault")[2]
    words = re.sub(r"-\s+", "-", page)
    assert not [kind for kind in KINDS if kind not in words]


def test_the_sections_are_those_of_the_readme(run: Run) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text().partition("## Commands")[2]
    rows = [line for line in readme.split("\n\n")[1].splitlines() if "`" in line]
    linked = {re.sub(r"[\[\]]|\(.*", "", row.split("|")[1]).strip(): row for row in rows}
    for (title, names), (named, row) in zip(SECTIONS.items(), linked.items(), strict=True):
        assert title.lower() == named.lower()
        listed = set(re.findall(r"`([a-z][a-z-]*)`", row.split("|")[2]))
        assert listed == set(names)
        assert f"\n{title}:\n" in run("--help").out


def test_every_command_is_on_the_page_and_none_shows_braces_or_global_flags(run: Run) -> None:
    assert set(VERBS) | set(GROUPS) == {name for names in SECTIONS.values() for name in names}
    for words in (["run"], ["firewall", "apply"], ["create"]):
        page = run(*words, "-h").out
        assert page == run(*words, "--help").out
        assert "{" not in re.sub(r"\{[a-z_]+\}", "", page)
        assert "--project" not in page
        assert "Global flags, --zone and --json among them: tpukit help flags" in page


def test_help_explains_flags_variables_codes_and_commands(run: Run) -> None:
    assert "--project PROJECT\tProject that pays." in run("help", "flags").out
    assert "--json\tPrint one JSON document, as -o json does." in run("help", "flags").out
    assert (
        "TPUKIT_ZONE\tthe setting zone, before CLOUDSDK_COMPUTE_ZONE\n"
        in run("help", "environment").out
    )
    assert "7 SliceLost\tpreempted" in run("help", "exit-codes").out
    assert run("help", "run").out == run("run", "--help").out
    assert "fix: tpukit help flags" in run("help", "nonsense").says(2).err


def test_a_flag_without_its_value_leads_to_the_page_of_its_command(run: Run) -> None:
    assert "fix: tpukit list --help" in run("list", "--zone").says(2).err
    assert "fix: tpukit --help" in run("--zone").says(2).err

"""The name of the only slice may be left out; a wrong guess is impossible."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.local_cloud import OTHER_ZONE, PROJECT, ZONE, Cloud

from cli.conftest import Run
from tpukit.slices import naming

pytestmark = pytest.mark.process


@pytest.fixture
def environment(
    run: Run, prompt_cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The environment of ada in a project's folder, which may be pushed."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    monkeypatch.chdir(folder)
    return prompt_cloud.environment()


def make(cloud: Cloud, name: str, owner: str = "ada", zone: str = ZONE) -> None:
    request = cloud.request(name, zone=zone)
    cloud.tpu.create(naming.labelled(request, owner, "nonce"))


def test_the_only_slice_is_chosen_and_named(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    make(prompt_cloud, "mine", zone=OTHER_ZONE)
    make(prompt_cloud, "yours", owner="eve")
    done = run("describe", "--json", environment=environment)
    assert done.status == 0, done.err
    assert done.document["slice"]["name"] == "mine"
    assert f"slice mine in {OTHER_ZONE}, your only one" in done.err


@pytest.mark.parametrize("verb", ["ssh", "run", "train", "diagnose"])
def test_a_remote_command_never_becomes_the_name(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], verb: str
) -> None:
    """The slice is STOPPED, so that no worker is asked."""
    make(prompt_cloud, "mine")
    assert run("stop", "mine", environment=environment).status == 0
    for flags in ((), ("--timeout", "1s")):
        told = run(verb, *flags, "--", "hostname", environment=environment).says(1).err
        assert "slice mine is STOPPED" in told
    told = run(verb, "mine", "--", "hostname", environment=environment).says(1).err
    assert "your only one" not in told


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run mine", "run mine -- hostname"),
        ("run hostname", "run -- hostname"),
        ("train train.py", "train -- python train.py"),
        ("run python train.py", "run -- python train.py"),
        ("train ls train.py", "train -- ls train.py"),
        ("kill 20261121-143355-3f2a", "jobs"),
    ],
)
def test_a_command_in_the_place_of_the_name_is_suggested_after_two_hyphens(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], words: str, meant: str
) -> None:
    make(prompt_cloud, "mine")
    done = run(*words.split(), environment=environment)
    assert done.status in (2, 3)
    assert f"fix: tpukit {meant}\n" in done.err


VERBS = [
    *("ssh", "logs", "attach", "smoke", "top", "notebook", "profile", "report", "push"),
    *("forward 80", "provision plan", "provision apply", "provision status"),
]


@pytest.mark.parametrize("words", VERBS)
def test_a_verb_without_a_name_works_on_the_only_slice(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], words: str
) -> None:
    make(prompt_cloud, "mine")
    assert run("stop", "mine", environment=environment).status == 0
    done = run(*words.split(), environment=environment)
    assert f"slice mine in {ZONE}, your only one" in done.err
    assert "slice mine is STOPPED" in done.err or (words, done.out) == ("report", "mine.html\n")


def test_two_slices_none_or_an_unread_one_are_no_choice(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    assert "you have no slice" in run("describe", environment=environment).says(3).err
    make(prompt_cloud, "one")
    make(prompt_cloud, "two", owner="eve")
    make(prompt_cloud, "three", zone=OTHER_ZONE)
    told = run("run", "--", "hostname", environment=environment).says(2).err
    assert "(one, three)" in told
    assert "fix: tpukit list" in told
    here = run("describe", "--zone", OTHER_ZONE, environment=environment)
    assert "slice three" in here.err


def test_a_slice_that_could_not_be_read_may_be_yours_too(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    make(prompt_cloud, "mine")
    make(prompt_cloud, "unread", owner="eve")
    prompt_cloud.change("unread", labels="none")
    told = run("describe", environment=environment).says(2).err
    assert "(mine, unread)" in told


def test_a_zone_that_is_silent_may_have_another_one(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str]
) -> None:
    make(prompt_cloud, "mine")
    prompt_cloud.fault(kind="unreachable", method="*.list", zone=OTHER_ZONE, times=9)
    told = run("describe", environment=environment).err
    assert "you may have several slices" in told


@pytest.mark.parametrize(
    "words",
    [
        *("delete", "stop", "start", "kill", "extend", "update", "wait", "cp x :y"),
        *("provision undo", "watch -- hostname", "describe ''", "run '' -- hostname"),
    ],
)
def test_no_name_is_guessed_for_what_ends_or_changes_a_slice_and_none_for_an_empty_word(
    run: Run, prompt_cloud: Cloud, environment: dict[str, str], words: str
) -> None:
    make(prompt_cloud, "mine")
    given = [word.strip("'") for word in words.split()]
    done = run(*given, environment=environment)
    assert done.status == 2, done.err
    assert "your only one" not in done.err
    assert PROJECT not in done.out

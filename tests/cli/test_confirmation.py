"""What belongs to another is changed after a question that names the owner, or with --force."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.local_cloud import ZONE, Cloud

from cli.conftest import Run
from tpukit.slices import naming

pytestmark = pytest.mark.process


@pytest.fixture
def alices(prompt_cloud: Cloud) -> Cloud:
    """A cloud with a slice of alice's, where the local user is ada."""
    request = naming.labelled(prompt_cloud.request("pod"), "alice", "nonce")
    prompt_cloud.tpu.create(request)
    return prompt_cloud


def answered(
    answer: str,
    words: list[str],
    environment: dict[str, str],
    meanwhile: Callable[[], object] = lambda: None,
) -> tuple[int, str]:
    """Run words on a terminal, type an answer, and return the status and what stderr showed.

    `meanwhile` happens between the question and the answer.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tpukit", *words]
    process = subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(ours, 4096)
    meanwhile()
    os.write(ours, f"{answer}\n".encode())
    status = process.wait(60)
    shown += os.read(ours, 4096)
    os.close(ours)
    return status, shown.decode()


@pytest.mark.parametrize("verb", ["delete", "stop", "start"])
def test_another_s_slice_is_refused_where_nobody_can_be_asked(
    run: Run, alices: Cloud, verb: str
) -> None:
    environment = alices.environment()
    told = run(verb, "pod", "--yes", environment=environment).says(4).err
    assert "error: slice pod belongs to alice (you are ada)" in told
    assert f"fix: tpukit {verb} pod --force --yes" in told
    assert alices.tpu.get(ZONE, "pod").ready
    if verb == "start":
        assert run("stop", "pod", "--force", environment=environment).status == 0
    assert run(verb, "pod", "--yes", "--force", environment=environment).status == 0


def test_one_of_another_refuses_all_before_the_first_is_deleted(run: Run, alices: Cloud) -> None:
    alices.tpu.create(naming.labelled(alices.request("mine"), "ada", "nonce"))
    run("delete", "mine", "pod", "--yes", environment=alices.environment()).says(4)
    assert len(alices.nodes()) == 2


@pytest.mark.parametrize("verb", ["delete", "stop"])
@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 2)])
def test_on_a_terminal_the_question_names_the_owner(
    alices: Cloud, verb: str, answer: str, status: int
) -> None:
    ended, shown = answered(answer, [verb, "pod"], alices.environment())
    assert f"{verb} pod ({ZONE}, of alice, made just now)? [y/N]" in shown
    assert ended == status


def test_on_a_terminal_several_slices_are_lines_above_the_question(prompt_cloud: Cloud) -> None:
    for name in ("one", "three"):
        made = naming.labelled(prompt_cloud.request(name), "ada", "nonce")
        prompt_cloud.tpu.create(made)
    ended, shown = answered("n", ["delete", "one", "three"], prompt_cloud.environment())
    lines = shown.splitlines()
    assert lines[0] == f"one    {ZONE}, made just now"
    assert lines[1] == f"three  {ZONE}, made just now"
    assert lines[2].startswith("delete these 2 slices? [y/N]")
    assert ended == 2


def test_a_question_comes_after_the_names_that_are_missing(prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("pod"), "ada", "nonce"))
    _, shown = answered("n", ["delete", "pod", "nope"], prompt_cloud.environment())
    assert shown.startswith("no slice nope in any zone of the project")
    assert prompt_cloud.tpu.get(ZONE, "pod").ready


def test_a_slice_that_takes_the_name_while_the_question_stands_stays(prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("pod"), "ada", "nonce"))

    def swap() -> None:
        prompt_cloud.vanish("pod")
        prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("pod"), "bob", "bobs"))

    status, shown = answered("y", ["delete", "pod"], prompt_cloud.environment(), swap)
    assert (status, "gone; another slice has its name now" in shown) == (0, True)
    assert prompt_cloud.tpu.get(ZONE, "pod").labels[naming.OWNER] == "bob"


def test_one_s_own_and_nobody_s_are_changed_without_force(run: Run, prompt_cloud: Cloud) -> None:
    prompt_cloud.tpu.create(naming.labelled(prompt_cloud.request("mine"), "ada", "nonce"))
    prompt_cloud.tpu.create(prompt_cloud.request("foreign"))
    environment = prompt_cloud.environment()
    assert run("stop", "mine", environment=environment).status == 0
    assert run("delete", "mine", "foreign", "--yes", environment=environment).status == 0


def test_root_of_one_machine_is_not_root_of_another(run: Run, prompt_cloud: Cloud) -> None:
    environment = {**prompt_cloud.environment(), "USER": "root"}
    name = run("create", "v3-8", environment=environment).out.strip()
    assert name == naming.default_name(f"tpukit-{socket.gethostname()}", "v3-8")
    owner = naming.owner(prompt_cloud.tpu.get(ZONE, name))
    assert owner == naming.label(f"tpukit-{socket.gethostname()}")
    prompt_cloud.change(name, labels={naming.MANAGED: "1", naming.OWNER: "tpukit-other"})
    told = run("up", "v3-8", name, environment=environment).says(5).err
    assert "belongs to tpukit-other" in told


@pytest.mark.parametrize("words", [("delete", "pod", "--yes"), ("reap", "--yes")])
def test_a_project_file_that_names_the_owner_gives_no_right_to_a_slice(
    run: Run, alices: Cloud, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "tpukit.toml").write_text('user = "alice"')
    environment = alices.environment()
    del environment["USER"]
    environment.pop("TPUKIT_USER", None)
    told = run(*words, environment=environment).says(9).err
    assert "tpukit.toml is not trusted to set user (it says alice)" in told
    assert alices.tpu.get(ZONE, "pod").ready

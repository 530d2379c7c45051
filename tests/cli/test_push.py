"""`tpukit push`: what it refuses, what it says before it sends, and what it asks."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import eventually

from cli.conftest import Local, Result

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def demo(local: Local) -> Iterator[str]:
    with local.slice("pushed") as name:
        yield name


@pytest.mark.parametrize("folder", ["~", "/"])
def test_the_home_folder_and_what_has_it_are_refused_before_anything_is_asked(
    local: Local, folder: str
) -> None:
    done = local.run("push", "nobody", folder).says(2)
    assert "your home folder is in it" in done.err
    assert "fix: name a project's folder" in done.err


_OTHERS = ("is not a folder that a push can replace", "--to {}, which is in the home folder")
_KEPT = ("is not a folder for a push", "choose another folder with --to")


@pytest.mark.parametrize(
    ("target", "words", "better"),
    [
        *((target, _OTHERS, "project") for target in ("~", "/", ".", "..")),
        ("../x", _OTHERS, "x"),
        *((target, _KEPT, "") for target in (".ssh", "~/.bashrc", ".tpukit/jobs", "app/.tpukit")),
    ],
)
def test_a_target_of_others_or_of_the_login_or_of_tpukit_is_refused(
    local: Local, tmp_path: Path, target: str, words: tuple[str, str], better: str
) -> None:
    (tmp_path / "train.py").touch()
    done = local.run("push", "nobody", str(tmp_path), "--to", target).says(2)
    what, fix = words
    assert what in done.err
    assert f"fix: {fix.format(better)}" in done.err


def test_two_folders_of_one_name_get_two_targets(local: Local, demo: str, tmp_path: Path) -> None:
    first, second = (tmp_path / place / "project" for place in "ab")
    for folder in (first, second):
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(str(folder))
    (first / "only").touch()
    assert local.run("push", demo, str(first)).status == 0
    refused = local.run("push", demo, str(second)).says(1)
    assert "error: project has the push of another folder: " in refused.err
    assert f":{first}\nwhy: the push would replace its files; nothing was changed" in refused.err
    (fix,) = (line for line in refused.err.splitlines() if line.startswith("fix: tpukit"))
    assert local.run(*fix.split()[2:]).status == 0
    there = local.run("run", demo, "--", "cat project/train.py project-2/train.py; ls project")
    assert there.out == f"{first}{second}only\ntrain.py\n"
    assert local.run("push", demo, str(second), "--overwrite").status == 0
    assert local.run("run", demo, "--", "ls project").out == "train.py\n"


def test_each_fresh_checkout_of_a_remote_pushes_to_the_same_target(
    local: Local, demo: str, tmp_path: Path
) -> None:
    """As in CI. Files that were never committed are not replaced."""

    def git(*words: str) -> None:
        author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--bare", "remote")
    for number in range(3):
        folder = tmp_path / str(number) / "checkout"
        git("clone", "remote", str(folder))
        (folder / "train.py").write_text(str(number))
        git("-C", str(folder), "add", ".")
        git("-C", str(folder), "commit", "-m", "next")
        git("-C", str(folder), "push", "origin", "HEAD")
        assert local.run("push", demo, str(folder)).status == 0
    (folder / "train.py").write_text("never committed")
    assert local.run("push", demo, str(folder)).status == 0
    refused = local.run("push", demo, str(tmp_path / "1" / "checkout")).says(1)
    assert "has the push of another folder" in refused.err
    assert local.run("run", demo, "--", "cat checkout/train.py").out == "never committed"


def test_it_says_what_it_leaves_out_and_what_it_sends_before_it_does(
    local: Local, demo: str, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "train.py").write_bytes(b"#" * 1500)
    (tree / ".env").write_text("TOKEN=hunter2\n")
    done = local.run("push", demo, str(tree))
    assert done.status == 0, done.err
    told = done.err.splitlines()
    assert told[0] == "left out as secrets: .env (--with-secrets sends them)"
    assert told[1] == "1 file, 1.5 kB changed, to 1 worker"
    assert local.run("run", demo, "--", "ls -A tree").out.split() == [".tpukit", "train.py"]
    again = local.run("push", demo, str(tree), "--with-secrets")
    assert again.err.splitlines()[0] == "1 file, 14 bytes changed, to 1 worker"
    assert local.run("run", demo, "--", "cat tree/.env").out == "TOKEN=hunter2\n"


#: Writes on when somebody writes to the pipe that it reads.
JOB = (
    "cd pp; mkfifo first second; "
    "{ seq 100; read -r _ <first; seq 50; read -r _ <second; seq 50; } >metrics.csv"
)


def test_a_job_that_writes_in_the_tree_loses_no_line_to_a_copy_that_was_brought_here(
    local: Local, demo: str, tmp_path: Path
) -> None:
    tree = tmp_path / "pp"
    tree.mkdir()
    (tree / "train.py").write_text("print(1)\n")

    def lines() -> int:
        return int(local.run("run", demo, "--", "cat pp/metrics.csv | wc -l").out)

    def push(*words: str) -> Result:
        return local.run("push", demo, str(tree), *words)

    assert push().status == 0
    detached = local.run("run", demo, "--detach", "--run-id", "lines", "--", JOB)
    assert detached.status == 0, detached.err
    eventually(lambda: lines() == 100)
    assert local.run("cp", f"{demo}:pp/metrics.csv", f"{tree}/").status == 0
    # It is the same by now: the push leaves it to the job, which has it open.
    assert push().status == 0
    local.run("run", demo, "--", "echo >pp/first")
    eventually(lambda: lines() == 150)
    (tree / "train.py").write_text("print(2)\n")
    refused = push().says(1)
    assert (
        "the push would replace 1 file whose content no push has brought: metrics.csv"
        in refused.err
    )
    assert "--overwrite" in refused.err
    local.run("run", demo, "--", "echo >pp/second")
    assert local.run("attach", demo, "lines").status == 0
    assert lines() == 200
    assert local.run("run", demo, "--", "cat pp/train.py").out == "print(1)\n"
    assert push("--overwrite").status == 0
    assert lines() == 100


def test_what_was_pushed_and_copied_here_is_pushed_again(
    local: Local, demo: str, tmp_path: Path
) -> None:
    tree = tmp_path / "app"
    tree.mkdir()
    (tree / "train.py").write_text("print(1)\n")
    assert local.run("push", demo, str(tree)).status == 0
    assert local.run("cp", f"{demo}:app", str(tmp_path)).status == 0
    assert [path.name for path in tree.iterdir()] == ["train.py"]
    (tree / ".tpukit").mkdir()
    (tree / ".tpukit" / "lock").touch()
    again = local.run("push", demo, str(tree))
    assert (again.status, again.err.splitlines()[-1]) == (0, "1 file; 0 of 1 workers changed")


@pytest.mark.journey
def test_many_files_are_asked_about_on_a_terminal(local: Local, demo: str, tmp_path: Path) -> None:
    tree = tmp_path / "many"
    tree.mkdir()
    for number in range(10_001):
        (tree / str(number)).touch()
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    done = subprocess.run(
        local.words("push", demo, str(tree)),
        env=local.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=300,
        check=False,
    )
    told = ""
    while select.select([ours], [], [], 0)[0]:  # one read gives 4 KiB at most
        told += os.read(ours, 1 << 16).decode(errors="replace")
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2, told
    assert "send 10001 files, 0 bytes, to 1 worker? [y/N]" in told
    assert "nothing was done" in told
    assert local.run("run", demo, "--", "ls -A").out.count("many") == 0

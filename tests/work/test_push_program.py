"""The program that puts a tree in place: whatever ends it half-way, each file is old or new."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpukit.remote.programs import program_text
from tpukit.work.pushes import Push
from tpukit.work.worktree import Tree

pytestmark = pytest.mark.process

#: What each path holds: a file's text, or where a link leads, after an arrow.
Files = Mapping[str, str]
OLD: Files = {
    "kept": "kept",
    "train.py": "old",
    "sub/deep/part.py": "old",
    "gone": "old",
    "going/with/its folder": "old",
    "-dash": "old",
    "becomes a folder": "old",
    "becomes a file/inner": "old",
    "link": "-> train.py",
    "link that becomes a folder": "-> sub",
    "link to nothing that becomes a folder": "-> nothing",
}
NEW: Files = {
    "kept": "kept",
    "train.py": "new",
    "sub/deep/part.py": "new",
    "fresh/deep/file": "new",
    "-dash": "new",
    "becomes a folder/inner": "new",
    "becomes a file": "new",
    "link": "-> kept",
    "link that becomes a folder/inside": "new",
    "link to nothing that becomes a folder/inside": "new",
}
THIRD: Files = {"kept": "kept", "train.py": "third"}
#: What a program on the worker has made in the tree.
OWN: Files = {"checkpoints/1": "precious", "sub/own": "precious"}
#: Programs that change something: each of their calls is a point at which all may end.
CHANGING = ("mkdir", "tar", "mv", "rm", "rmdir", "xargs", "find", "sort")
WRAPPER = """#!/bin/sh
echo x >>"$CALLS"
if [ "$(wc -l <"$CALLS")" -eq "$ENDS_AT" ]; then {end}; fi
PATH=$REAL_PATH exec {name} "$@"
"""


def write(root: Path, files: Files) -> None:
    for name, held in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if held.startswith("-> "):
            path.symlink_to(held.removeprefix("-> "))
        else:
            path.write_text(held)


def read(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_text()
        for path in root.rglob("*")
        if (path.is_symlink() or path.is_file()) and path.relative_to(root).parts[0] != ".tpukit"
    }


@dataclass
class Worker:
    """A home folder, in which the program runs as a worker's shell would run it."""

    folder: Path
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"]})

    @property
    def tree(self) -> Path:
        return self.folder / "home" / "project"

    def push(self, wanted: Files, changed: Sequence[str] | None = None) -> str:
        """Return what `apply` answers to a payload with these files, by default with all."""
        source = self.folder / "source"
        shutil.rmtree(source, ignore_errors=True)
        write(source, wanted)
        tree = Tree(source, list(wanted))
        payload = Push(tree, "project", (), list(wanted) if changed is None else changed).payload
        arrived = self.folder / "home" / ".tpukit" / "transfers" / payload.digest
        arrived.parent.mkdir(parents=True, exist_ok=True)
        arrived.write_bytes(b"".join(payload.chunks()))
        return self.run("apply", "project", payload.digest, tree.manifest.digest)

    def look(self) -> str:
        return self.run("look", "project").split()[0]

    def run(self, *words: str) -> str:
        program = "tpukit=$HOME/.tpukit\n" + program_text("work/push.sh")
        home = self.folder / "home"
        done = subprocess.run(
            ["sh", "-c", program, "sh", *words],
            cwd=home,
            env={**self.variables, "HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        return done.stdout.removeprefix("tpukit-push ").strip() or f"no answer: {done.stderr}"

    @contextmanager
    def ending(self, at: int, end: str, programs: Sequence[str] = CHANGING) -> Iterator[Path]:
        """Let the call of that number, of all calls of these programs, do `end` instead."""
        before, calls, folder = self.variables, self.folder / "calls", self.folder / "wrappers"
        calls.write_text("")
        folder.mkdir(exist_ok=True)
        for name in programs:
            (folder / name).write_text(WRAPPER.format(name=name, end=end))
            (folder / name).chmod(0o755)
        real = before["PATH"]
        self.variables = {
            "PATH": f"{folder}:{real}",
            "REAL_PATH": real,
            "CALLS": str(calls),
            "ENDS_AT": str(at),
        }
        yield calls
        self.variables = before


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    (tmp_path / "home").mkdir()
    return Worker(tmp_path)


def test_a_tree_becomes_another_one_and_what_was_made_there_stays(worker: Worker) -> None:
    assert worker.push(OLD) == "applied"
    assert (worker.look(), read(worker.tree)) == ("intact", OLD)
    write(worker.tree, OWN)
    changed = [name for name in NEW if OLD.get(name) != NEW[name]]
    assert worker.push(NEW, changed) == "applied"
    assert (worker.look(), read(worker.tree)) == ("intact", {**NEW, **OWN})
    assert not (worker.tree / "going").exists()
    assert {each.name for each in (worker.tree / ".tpukit").iterdir()} == {"manifest", "lock"}


@pytest.mark.journey
@pytest.mark.parametrize("end", ["kill -9 0", "exit 1"], ids=["killed", "failed"])
def test_wherever_it_ends_every_file_is_old_or_new_and_the_next_push_finishes(
    worker: Worker, end: str
) -> None:
    """At each call of a program in turn all is killed, or that program fails as on a full disk."""
    changed = [name for name in NEW if OLD.get(name) != NEW[name]]
    home, pristine = worker.folder / "home", worker.folder / "pristine"
    worker.push(OLD)
    write(worker.tree, OWN)
    shutil.copytree(home, pristine, symlinks=True)
    at, words = 0, set()
    while True:
        at += 1
        shutil.rmtree(home)
        shutil.copytree(pristine, home, symlinks=True)
        with worker.ending(at, end) as calls:
            answer = worker.push(NEW, changed)
            if len(calls.read_text().splitlines()) < at:
                break
        found, look = read(worker.tree), worker.look()
        words.add(look)
        assert found.keys() >= (OLD.keys() & NEW.keys()) | OWN.keys(), at
        for name, held in found.items():
            assert held in {each.get(name) for each in (OLD, NEW, OWN)}, (at, name)
        if look == "intact":
            assert found in ({**OLD, **OWN}, {**NEW, **OWN}), at
        if answer == "applied":
            assert found == {**NEW, **OWN}, at
        following = THIRD if at % 2 else NEW
        assert worker.push(following) == "applied", at
        assert (worker.look(), read(worker.tree)) == ("intact", {**following, **OWN}), at
    assert at > 20
    assert words == {"intact", "changed"}


def test_a_program_goes_on_in_its_folder_and_with_the_file_that_it_has_open(worker: Worker) -> None:
    worker.push(OLD)
    folder = os.open(worker.tree / "sub", os.O_RDONLY)
    with (worker.tree / "train.py").open() as file:
        assert worker.push(NEW) == "applied"
        assert file.read() == "old"
    # Its working folder is the one that the push has changed.
    with open(os.open("deep/part.py", os.O_RDONLY, dir_fd=folder)) as file:
        assert file.read() == "new"
    os.close(folder)


@pytest.mark.parametrize(
    ("own", "in_the_way"),
    [("becomes a file/own", "./becomes a file/own"), ("fresh", "./fresh")],
)
def test_what_a_worker_has_made_is_never_replaced_by_a_file_or_folder(
    worker: Worker, own: str, in_the_way: str
) -> None:
    worker.push(OLD)
    write(worker.tree, {own: "precious"})
    assert f"{in_the_way} is in the way" in worker.push(NEW)
    assert (worker.look(), read(worker.tree)) == ("intact", {**OLD, own: "precious"})


def test_what_was_changed_there_since_the_look_is_not_taken_for_what_was_pushed(
    worker: Worker,
) -> None:
    """Of what is to stay as it is nothing is sent: the worker has to have it."""
    sent = [name for name in NEW if name != "kept"]
    assert worker.push(OLD) == "applied"
    (worker.tree / "kept").write_text("changed there")
    before = read(worker.tree)
    assert worker.push(NEW, sent) == "differs"
    assert read(worker.tree) == before
    (worker.tree / "kept").write_text("kept")
    assert worker.push(NEW, sent) == "applied"
    assert read(worker.tree) == NEW


@pytest.mark.parametrize("leads_to", ["moved", "../elsewhere"])
def test_nothing_is_removed_through_a_link_that_took_a_folders_place(
    worker: Worker, leads_to: str
) -> None:
    worker.push({"data/set": "held", "data/more/set": "held", "moved/set": "held"})
    write(worker.tree.parent / "elsewhere", {"set": "precious"})
    empty = [
        folder / "more" for folder in (worker.tree / "moved", worker.tree.parent / "elsewhere")
    ]
    for folder in empty:
        folder.mkdir()
    linked = {"data": f"-> {leads_to}", "moved/set": "held"}
    # The first try ends when the link is there; the second one knows the old names still.
    with worker.ending(3, "exit 1", ["mv"]):
        assert "no answer" in worker.push(linked, ["data"])
    assert (worker.tree / "data").is_symlink()
    assert worker.push(linked, ["data"]) == "applied"
    assert (worker.look(), read(worker.tree)) == ("intact", linked)
    assert read(worker.tree.parent / "elsewhere") == {"set": "precious"}
    assert all(folder.is_dir() for folder in empty)


def test_what_cannot_be_removed_is_said(worker: Worker) -> None:
    worker.push(OLD)
    with worker.ending(2, "exit 1", ["xargs"]):
        assert "cannot be removed" in worker.push({"kept": "kept"})
    assert worker.look() == "changed"


def test_what_has_moved_is_at_its_new_place_before_it_leaves_the_old_one(worker: Worker) -> None:
    worker.push({"old/module": "code"})
    with worker.ending(2, "exit 1", ["xargs"]):
        worker.push({"new/module": "code"})
    assert read(worker.tree) == {"old/module": "code", "new/module": "code"}


def test_another_first_push_to_a_folder_that_workers_share_is_in_nobodys_way(
    worker: Worker,
) -> None:
    """It begins while this one looks whether the folder is empty."""
    with worker.ending(1, "mkdir .tpukit", ["ls"]):
        assert worker.push(OLD) == "applied"

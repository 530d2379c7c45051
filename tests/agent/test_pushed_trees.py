"""Pushes on a worker: wherever one ends, each file is old or new, and the user's files stay."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from support.agent_program import agent_words
from support.processes import eventually

from tpukit.agent.contents import manifest_digest
from tpukit.files.pushes import Lack, Push
from tpukit.files.worktree import Origin, Tree
from tpukit.ssh.fan_out import Outcome
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process

#: Paths and their contents: a file's text, or an arrow and the target of a link.
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
    "here and there": "made on both sides",
}
THIRD: Files = {"kept": "kept", "train.py": "third"}
#: What a program on the worker has made in the tree.
OWN: Files = {
    "checkpoints/1": "precious",
    "sub/own": "precious",
    "here and there": "made on both sides",
}
#: Python audits these calls before it changes something: all may end at each of them.
_CALLS = ("chmod", "mkdir", "remove", "rename", "rmdir", "symlink", "utime")
CHANGING = ("open", *(f"os.{name}" for name in _CALLS))
#: Runs a program, and at one of these calls does something.
HOOKED = """
import os, runpy, sys
calls, at, end, events, program = sys.argv[1:6]
sys.argv[:] = sys.argv[5:]
counted = os.open(calls, os.O_WRONLY | os.O_APPEND)
number = 0

def hook(event, words):
    global number
    if event in events.split() and (event != "open" or words[2] & (os.O_WRONLY | os.O_RDWR)):
        number += 1
        os.write(counted, b"x")
        if at in ("every", str(number)):
            exec(end)

sys.addaudithook(hook)
runpy.run_path(program, run_name="__main__")
"""
KILL = "os.kill(os.getpid(), 9)"
FULL_DISK = "raise OSError(28, 'No space left on device')"


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


#: The folder that pushes come from.
HOME = Origin("laptop:/home/ada/project", "", False)


@dataclass
class Worker:
    """A home folder, and the agent as it runs for it."""

    folder: Path
    hooked: Sequence[str] = ()
    origin: Origin = HOME

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def payload(self) -> Path:
        return self.tree / ".tpukit/.tpukit-upload-0.part"

    @property
    def output(self) -> Path:
        """What the agent has written to standard output."""
        return self.folder / f"output-{id(self)}"

    @property
    def tree(self) -> Path:
        return self.home / "project"

    def push(self, wanted: Files, *, overwrite: bool = False) -> str:
        """Return the state that a push is answered with, or its error."""
        answer = self.apply(wanted, overwrite=overwrite)
        return answer.get("state") or answer["error"]

    def apply(
        self, wanted: Files, *, overwrite: bool = False, meanwhile: Callable[[], object] = str
    ) -> dict[str, Any]:
        """Push as a client does, and let something happen after the trees were compared."""
        tree = self._source(wanted)
        compared = self.compare(tree.manifest, tree.digest)
        if compared.get("other") and not overwrite:
            return {"state": f"refused: {compared['other']}"}
        if "error" in compared:
            return compared
        if compared["intact"]:
            return {"state": "intact"}
        if compared["conflicts"] and not overwrite:
            return {"state": "conflict"} | compared
        meanwhile()
        lack = Lack(set(compared["lacks"]), set(compared["gone"]))
        look = Outcome(RemoteWorker(0, lambda: pytest.fail("it connects")), lack, None)
        payload = Push(tree, "project", [look], overwrite).payload
        self.payload.parent.mkdir(parents=True, exist_ok=True)
        self.payload.write_bytes(b"".join(payload.chunks()))
        request = {"kind": "push", "path": str(self.payload), "sparse": False, "gzip": False}
        request |= {"size": payload.size, "digest": payload.digest, "offset": payload.size}
        request |= {"manifest": tree.digest, "overwrite": overwrite}
        request |= {"origin": asdict(self.origin)}
        return self.ask("receive_upload", self.hooked, **request)

    def compare(
        self, manifest: Files, digest: str, results: Sequence[str] = (), *, strict: bool = False
    ) -> dict[str, Any]:
        files = base64.b64encode(zlib.compress(json.dumps(manifest).encode())).decode()
        request = {"digest": digest, "files": files, "results": results, "strict": strict}
        return self.ask("compare_push", origin=asdict(self.origin), **request)

    def look(self) -> str:
        """Return if the tree is as the last push has left it."""
        try:
            files = json.loads((self.tree / ".tpukit/pushed").read_text())["files"]
        except ValueError:
            return "changed"
        return "intact" if self.compare(files, manifest_digest(files))["intact"] else "changed"

    def ask(self, verb: str, hooks: Sequence[str] = (), **request: object) -> dict[str, Any]:
        python, isolated, bare, *words = agent_words(self.home, verb)
        hooked = ["-c", HOOKED, *hooks] if hooks else []
        with self.output.open("wb") as output:
            done = subprocess.run(
                [python, isolated, bare, *hooked, *words],
                input=json.dumps({"target": "project", **request}).encode() + b"\n",
                stdout=output,
                stderr=subprocess.PIPE,
                check=False,
            )
        said = self.output.read_text().rpartition("tpukit-agent ")[2]
        return json.loads(said) if said and not done.returncode else {"error": done.stderr.decode()}

    @contextmanager
    def ending(self, at: int | str, end: str, events: Sequence[str] = CHANGING) -> Iterator[Path]:
        """Let the call of that number, or every call that Python audits as these events, do `end`.

        Yields the file that counts these calls, a letter for each.
        """
        calls = self.folder / f"calls-{at}"
        calls.write_text("")
        self.hooked = (str(calls), str(at), end, " ".join(events))
        yield calls
        self.hooked = ()

    def _source(self, files: Files) -> Tree:
        root = self.folder / f"source-{id(self)}"
        shutil.rmtree(root, ignore_errors=True)
        write(root, files)
        return Tree(root, sorted(files))


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    (tmp_path / "home").mkdir()
    return Worker(tmp_path)


def test_a_tree_becomes_another_one_and_what_was_made_there_stays(worker: Worker) -> None:
    assert worker.push(OLD) == "sent"
    assert (worker.look(), read(worker.tree)) == ("intact", OLD)
    write(worker.tree, OWN)
    assert worker.push(NEW) == "sent"
    assert (worker.look(), read(worker.tree)) == ("intact", {**NEW, **OWN})
    assert not (worker.tree / "going").exists()
    assert {path.name for path in (worker.tree / ".tpukit").iterdir()} == {"pushed", "lock"}


@pytest.mark.journey
@pytest.mark.parametrize("end", [KILL, FULL_DISK], ids=["killed", "full disk"])
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_wherever_it_ends_every_file_is_old_or_new_and_the_next_push_finishes(
    worker: Worker, end: str, every: int
) -> None:
    """At each call, or each fourth, that changes something, the agent is killed or the call fails.

    The first call is chosen at random.
    """
    home, pristine = worker.folder / "home", worker.folder / "pristine"
    worker.push(OLD)
    write(worker.tree, OWN)
    shutil.copytree(home, pristine, symlinks=True)
    words: set[str] = set()
    for at in itertools.count(random.randint(1, every), every):
        shutil.rmtree(home)
        shutil.copytree(pristine, home, symlinks=True)
        with worker.ending(at, end) as calls:
            answer = worker.push(NEW)
            if len(calls.read_text()) < at:
                break
        found, look = read(worker.tree), worker.look()
        words.add(look)
        assert found.keys() >= (OLD.keys() & NEW.keys()) | OWN.keys(), at
        for name, held in found.items():
            assert held in {each.get(name) for each in (OLD, NEW, OWN)}, (at, name)
        if look == "intact":
            assert found in ({**OLD, **OWN}, {**NEW, **OWN}), at
        if answer == "sent":
            assert found == {**NEW, **OWN}, at
        following = THIRD if at // every % 2 else NEW
        assert worker.push(following) in ("sent", "intact"), at
        assert (worker.look(), read(worker.tree)) == ("intact", {**following, **OWN}), at
    assert at > 20
    assert words == {"intact", "changed"}


def test_a_program_goes_on_in_its_folder_and_with_the_file_that_it_has_open(worker: Worker) -> None:
    worker.push(OLD)
    folder = os.open(worker.tree / "sub", os.O_RDONLY)
    with (worker.tree / "train.py").open() as file:
        assert worker.push(NEW) == "sent"
        assert file.read() == "old"
    # Its working folder is the one that the push has changed.
    with open(os.open("deep/part.py", os.O_RDONLY, dir_fd=folder)) as file:
        assert file.read() == "new"
    os.close(folder)


@pytest.mark.parametrize(
    ("own", "in_the_way"),
    [("becomes a file/own", "becomes a file/own"), ("fresh", "fresh")],
)
def test_what_a_worker_has_made_is_never_replaced_by_a_file_or_folder(
    worker: Worker, own: str, in_the_way: str
) -> None:
    worker.push(OLD)
    write(worker.tree, {own: "precious"})
    assert f"{in_the_way} is in the way" in worker.push(NEW)
    assert (worker.look(), read(worker.tree)) == ("intact", {**OLD, own: "precious"})


def test_a_file_that_no_push_has_brought_is_named_and_kept_unless_it_may_be_overwritten(
    worker: Worker,
) -> None:
    worker.push(OLD)
    names = [f"results/{number}" for number in range(7)]
    before = OLD | dict.fromkeys(names, "precious") | {"a link": "-> kept"}
    write(worker.tree, dict.fromkeys(names, "precious") | {"a link": "-> kept"})
    wanted = THIRD | dict.fromkeys(names, "old copy") | {"a link": "-> train.py"}
    answer = worker.apply(wanted)
    assert (answer["conflicts"], answer["names"]) == (8, ["a link", *names[:4]])
    assert (worker.look(), read(worker.tree)) == ("intact", before)
    assert worker.push(wanted, overwrite=True) == "sent"
    assert (worker.look(), read(worker.tree)) == ("intact", wanted)
    # A push has brought them now.
    following = THIRD | dict.fromkeys(names, "new")
    assert worker.push(following) == "sent"
    assert read(worker.tree) == following


HERE, THERE = "laptop:/a/project", "laptop:/b/project"
REMOTE = "github.com/ada/project"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "may"),
    [
        (Origin(HERE, "", False), Origin(HERE, "", False), True),
        (Origin(HERE, "", False), Origin(THERE, "", False), False),
        (Origin(HERE, "", True), Origin(THERE, "", True), False),
        (Origin(HERE, REMOTE, True), Origin(THERE, REMOTE, False), True),
        (Origin(HERE, REMOTE, False), Origin(THERE, REMOTE, True), False),
        (Origin(HERE, REMOTE, True), Origin(THERE, f"{REMOTE}-2", True), False),
        (Origin(HERE, REMOTE, False), Origin(HERE, "", False), True),
    ],
)
def test_a_push_replaces_that_of_its_own_folder_or_what_a_commit_of_its_remote_has(
    worker: Worker, first: Origin, second: Origin, may: bool
) -> None:
    worker.origin = first
    assert worker.push(OLD) == "sent"
    worker.origin = second
    assert worker.push(OLD) == "intact"
    assert worker.push(NEW) == ("sent" if may else f"refused: {HERE}")
    assert read(worker.tree) == (NEW if may else OLD)
    assert worker.push(NEW, overwrite=True) == ("intact" if may else "sent")
    assert worker.push(THIRD) == "sent"


def test_a_push_that_was_cut_off_is_that_of_its_own_folder(worker: Worker) -> None:
    worker.push(OLD)
    before, worker.origin = worker.origin, Origin(THERE, "", False)
    with worker.ending(4, FULL_DISK, ["os.rename"]):
        assert "No space left" in worker.push(NEW, overwrite=True)
    worker.origin = before
    assert worker.push(OLD) == f"refused: {THERE}"


def test_the_push_of_another_folder_since_the_look_is_not_replaced(worker: Worker) -> None:
    other = Worker(worker.folder, origin=Origin(THERE, "", False))
    answer = worker.apply(OLD, meanwhile=lambda: other.push(NEW))
    assert answer["state"] == "differs"
    assert read(worker.tree) == NEW
    assert worker.push(OLD) == f"refused: {THERE}"


def test_a_tree_without_a_known_origin_is_anybodys(worker: Worker) -> None:
    """An older tpukit has pushed it."""
    worker.push(OLD)
    record = worker.tree / ".tpukit/pushed"
    record.write_text(json.dumps({**json.loads(record.read_text()), "origin": {}}))
    assert worker.push(NEW) == "sent"


def test_a_file_that_only_pushes_have_written_is_a_source(worker: Worker) -> None:
    write(worker.tree / ".tpukit", {})
    write(worker.tree, {"same": "held"})
    (worker.tree / ".tpukit").mkdir()
    worker.push({"same": "held", "train.py": "code", "table": "old"})
    write(worker.tree, {"result": "made here"})
    (worker.tree / "table").write_text("made here")
    names = ["result", "same", "table", "train.py", "absent"]
    assert worker.compare({}, "", names)["sources"] == ["train.py"]
    assert worker.compare({}, "", names, strict=True)["sources"] == ["train.py", "absent"]


@pytest.mark.parametrize("target", [".ssh", ".bashrc", "sub/.tpukit", "link", "{home}/.cache/x"])
def test_files_of_the_login_and_of_tpukit_are_no_target(worker: Worker, target: str) -> None:
    (worker.home / ".ssh").mkdir()
    (worker.home / "link").symlink_to(".ssh")
    request = {"target": target.format(home=worker.home), "digest": "", "files": ""}
    request |= {"origin": asdict(worker.origin), "results": [], "strict": False}
    answer = worker.ask("compare_push", **request)
    assert answer["error"].strip() == "files of the login or of tpukit have such a name"


def test_a_file_with_the_same_content_stays_that_of_the_program_that_has_it_open(
    worker: Worker,
) -> None:
    worker.push(OLD)
    table = worker.tree / "results.csv"
    with table.open("w") as file:
        file.write("1\n")
        file.flush()
        table.chmod(0o600)
        with_results = OLD | {"results.csv": "1\n"}
        assert worker.push(with_results) == "sent"
        assert (worker.look(), table.stat().st_mode & 0o777) == ("intact", 0o644)
        file.write("2\n")
    assert table.read_text() == "1\n2\n"
    # That push has not brought it: no other one replaces or removes it.
    assert worker.push(with_results) == "conflict"
    assert worker.push(NEW) == "sent"
    assert table.read_text() == "1\n2\n"


def test_what_is_no_file_is_in_the_way_of_one(worker: Worker) -> None:
    worker.push(OLD)
    os.mkfifo(worker.tree / "here and there")
    assert worker.apply(NEW)["names"] == ["here and there"]
    assert worker.push(NEW, overwrite=True) == "sent"


def test_without_its_state_a_tree_is_the_users(worker: Worker) -> None:
    """The disk was full of errors, say: what is not known to be a push's is not replaced."""
    worker.push(OLD)
    (worker.tree / ".tpukit/pushed").write_text('{"files"')
    assert worker.look() == "changed"
    assert worker.apply(THIRD)["names"] == ["train.py"]
    assert worker.push(THIRD, overwrite=True) == "sent"
    assert worker.look() == "intact"


def test_a_name_may_hold_anything(worker: Worker) -> None:
    odd = dict.fromkeys(
        ["line\nend", "back\\slash", os.fsdecode(b"\xff"), " ", "-> x", "ü"], "held"
    )
    assert worker.push(odd) == "sent"
    assert (worker.look(), read(worker.tree)) == ("intact", odd)
    assert worker.push(THIRD) == "sent"
    assert read(worker.tree) == THIRD


def test_another_disk_that_is_mounted_in_the_tree_gets_its_files(worker: Worker) -> None:
    crossing = "raise OSError(18, 'Invalid cross-device link')"
    with worker.ending(3, crossing, ["os.rename"]):
        assert worker.push({"only": "held"}) == "sent"
    assert (worker.look(), read(worker.tree)) == ("intact", {"only": "held"})


def test_of_two_pushes_at_once_one_waits(worker: Worker, tmp_path: Path) -> None:
    """As on workers that share a home folder: both get the same payload."""
    worker.push(OLD)
    os.mkfifo(tmp_path / "go on")
    answers = []
    wait = f"open('{tmp_path}/go on').read()"
    with worker.ending(3, wait, ["os.rename"]) as renames:
        first = threading.Thread(target=lambda: answers.append(worker.push(NEW)))
        first.start()
        eventually(lambda: len(renames.read_text()) == 3)
    try:
        other = Worker(tmp_path)
        with other.ending(0, "", ["fcntl.flock"]) as tries:
            second = threading.Thread(target=lambda: answers.append(other.push(NEW)))
            second.start()
            eventually(lambda: len(tries.read_text()) > 1)
    finally:
        (tmp_path / "go on").write_text("")
        first.join()
        second.join()
    assert answers == ["sent", "sent"]
    assert (worker.look(), read(worker.tree)) == ("intact", NEW)


def test_a_full_disk_keeps_nothing_of_what_arrived(worker: Worker) -> None:
    worker.push(OLD)
    with worker.ending(5, FULL_DISK, ["open"]):
        assert "No space left" in worker.push(NEW)
    assert not worker.payload.exists()
    assert {path.name for path in (worker.tree / ".tpukit").iterdir()} == {"pushed", "lock"}
    assert (worker.look(), read(worker.tree)) == ("intact", OLD)


@pytest.mark.slow
def test_a_worker_that_reads_much_or_waits_says_how_far_it_is(worker: Worker) -> None:
    worker.push(OLD)
    os.truncate(worker.tree / "train.py", 1 << 30)
    worker.look()
    assert progress(worker.output)
    worker.output.write_text("")
    with (worker.tree / ".tpukit/lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        push = threading.Thread(target=worker.push, args=(NEW,))
        push.start()
        eventually(lambda: len(progress(worker.output)) > 1)
    push.join()
    assert progress(worker.output) == sorted(set(progress(worker.output)))


def progress(output: Path) -> list[int]:
    return [int(number) for number in re.findall(r'{"progress": (\d+)}', output.read_text())]


def test_what_was_changed_there_since_the_look_is_not_taken_for_what_was_pushed(
    worker: Worker,
) -> None:
    """Of what is to stay as it is nothing is sent: the worker has to have it."""
    assert worker.push(OLD) == "sent"
    kept = worker.tree / "kept"
    answer = worker.apply(NEW, meanwhile=lambda: kept.write_text("changed there"))
    assert answer["state"] == "differs"
    assert read(worker.tree) == {**OLD, "kept": "changed there"}
    assert worker.push(NEW) == "conflict"
    assert worker.push(NEW, overwrite=True) == "sent"
    assert read(worker.tree) == NEW


def test_a_file_that_was_made_there_since_the_look_is_not_replaced(worker: Worker) -> None:
    worker.push(OLD)
    made = {"here and there": "made there"}
    answer = worker.apply(NEW, meanwhile=lambda: write(worker.tree, made))
    assert answer["state"] == "differs"
    assert (worker.look(), read(worker.tree)) == ("intact", {**OLD, **made})


def test_a_file_that_a_program_changed_stays_if_the_next_push_lacks_it(worker: Worker) -> None:
    """For example a checkpoint whose folder was added to .gitignore."""
    assert worker.push({"train.py": "a", "out/model": "first", "old.py": "b"}) == "sent"
    (worker.tree / "out/model").write_text("trained")
    assert worker.push({"train.py": "a"}) == "sent"
    assert (worker.tree / "out/model").read_text() == "trained"
    assert not (worker.tree / "old.py").exists()
    assert worker.push({"train.py": "a", "out/model": "first"}) == "conflict"


@pytest.mark.parametrize("leads_to", ["moved", "../elsewhere"])
def test_nothing_is_removed_through_a_link_that_took_a_folders_place(
    worker: Worker, leads_to: str
) -> None:
    first = {"data/set": "held", "data/more/set": "held", "moved/set": "held"}
    worker.push(first)
    write(worker.tree.parent / "elsewhere", {"set": "precious"})
    empty = [
        folder / "more" for folder in (worker.tree / "moved", worker.tree.parent / "elsewhere")
    ]
    for folder in empty:
        folder.mkdir()
    linked = {"data": f"-> {leads_to}", "moved/set": "held"}
    # The first try ends when the link is there; the second one knows the old names still.
    with worker.ending(4, FULL_DISK, ["os.rename"]):
        assert "No space left" in worker.push(linked)
    assert (worker.tree / "data").is_symlink()
    assert worker.push(linked) == "sent"
    assert (worker.look(), read(worker.tree)) == ("intact", linked)
    assert read(worker.tree.parent / "elsewhere") == {"set": "precious"}
    assert all(folder.is_dir() for folder in empty)


def test_what_cannot_be_removed_is_said(worker: Worker) -> None:
    worker.push(OLD)
    with worker.ending(1, "raise OSError(13, 'Permission denied', words[0])", ["os.remove"]):
        assert f"{worker.tree}/-dash: Permission denied" in worker.push({"kept": "kept"})
    assert worker.look() == "changed"


def test_what_has_moved_is_at_its_new_place_before_it_leaves_the_old_one(worker: Worker) -> None:
    worker.push({"old/module": "code"})
    with worker.ending(1, FULL_DISK, ["os.remove"]):
        worker.push({"new/module": "code"})
    assert read(worker.tree) == {"old/module": "code", "new/module": "code"}


def test_another_first_push_to_a_folder_that_workers_share_is_in_nobodys_way(
    worker: Worker,
) -> None:
    """It begins while this one looks whether the folder is empty."""
    worker.tree.mkdir()
    begin = f"if words[0] == '{worker.tree}': os.makedirs('{worker.tree}/.tpukit', exist_ok=True)"
    with worker.ending("every", begin, ["os.listdir"]):
        assert worker.push(OLD) == "sent"

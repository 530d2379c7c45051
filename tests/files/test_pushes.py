"""Pushes to real SSH servers: only what changed, sent once, each file replaced in one step."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from support.agent_program import agent_words, put_agent
from support.transfer_workers import NEVER, ByteCounter, Fleet, fleet, verbs

from tpukit.errors import BadInput, TpukitError
from tpukit.files.pushes import prepare, target_path
from tpukit.files.upload import TransferContext
from tpukit.files.worktree import Tree, read_tree
from tpukit.ssh.fan_out import Outcome
from tpukit.ssh.keys import KeyPair, ensure_key_pair
from tpukit.ssh.worker import RemoteWorker

pytestmark = pytest.mark.process

Again = Callable[..., list[str | TpukitError]]
TARGET = "./project"


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_key_pair(tmp_path_factory.mktemp("keys") / "private")


@pytest.fixture
def three(tmp_path: Path, key: KeyPair) -> Iterator[Fleet]:
    with fleet(tmp_path, key, 3) as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    (place / "sub" / "deep").mkdir(parents=True)
    (place / "a.py").write_text("print(1)\n")
    (place / "sub" / "deep" / "b.py").write_text("print(2)\n")
    (place / "large").write_text("0123456789\n" * 20_000)
    (place / "run").write_text("#!/bin/sh\n")
    (place / "run").chmod(0o755)
    (place / "link").symlink_to("a.py")
    return place


@pytest.fixture
def counter() -> ByteCounter:
    return ByteCounter()


@pytest.fixture
def context(counter: ByteCounter) -> TransferContext:
    return TransferContext(NEVER, counter)


@pytest.fixture
def again(three: Fleet, root: Path, counter: ByteCounter, context: TransferContext) -> Again:
    """Push the tree to every worker and return what came of it on each."""

    def again(overwrite: bool = False) -> list[str | TpukitError]:
        counter.moved = 0
        look = prepare(read_tree(root), TARGET, three.workers, context, overwrite=overwrite)
        done = look.send(context)
        return [outcome.error or outcome.value or "" for outcome in done]

    return again


def push(
    tree: Tree, target: str, to: Sequence[RemoteWorker], context: TransferContext
) -> list[Outcome[RemoteWorker, str]]:
    return prepare(tree, target, to, context).send(context)


def files(home: Path, target: str = "project") -> dict[str, str]:
    place = home / target
    return {
        str(path.relative_to(place)): path.read_text()
        for path in place.rglob("*")
        if path.is_file() and ".tpukit" not in path.parts
    }


def test_every_worker_has_the_tree_from_one_upload(
    three: Fleet, root: Path, again: Again, counter: ByteCounter
) -> None:
    assert again() == ["sent"] * 3
    wanted = {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}
    for index in range(3):
        assert files(three.home(index)) == wanted
        assert (three.home(index) / "project" / "run").stat().st_mode & 0o111
        assert (three.home(index) / "project" / "link").is_symlink()
    assert sum(three.taken(index) for index in range(3)) == 1


def test_what_is_unchanged_is_not_sent_again(
    three: Fleet, again: Again, counter: ByteCounter
) -> None:
    again()
    assert again() == ["unchanged"] * 3
    assert counter.moved == 0
    assert sum(three.taken(index) for index in range(3)) == 1


def test_only_the_file_that_changed_is_sent(
    three: Fleet, root: Path, again: Again, counter: ByteCounter
) -> None:
    again()
    (root / "a.py").write_text("print(3)\n")
    assert again() == ["sent"] * 3
    assert counter.moved < 10_000
    assert files(three.home(2))["a.py"] == "print(3)\n"
    assert files(three.home(2))["large"] == (root / "large").read_text()


def test_what_is_gone_here_goes_there_and_what_was_made_there_stays(
    three: Fleet, root: Path, again: Again
) -> None:
    again()
    place = three.home(1) / "project"
    (place / "checkpoints").mkdir()
    (place / "checkpoints" / "1").write_text("precious")
    (place / "sub" / "own").write_text("kept")
    (root / "sub" / "deep" / "b.py").unlink()
    (root / "run").unlink()
    assert again() == ["sent"] * 3
    assert files(three.home(1))["checkpoints/1"] == "precious"
    assert files(three.home(1))["sub/own"] == "kept"
    assert "run" not in files(three.home(1))
    assert not (place / "sub" / "deep").exists()
    assert not (three.home(0) / "project" / "sub").exists()


def test_a_program_that_writes_in_the_tree_goes_on_writing_to_the_same_file(
    three: Fleet, root: Path, again: Again
) -> None:
    again()
    with (three.home(0) / "project" / "log").open("a") as log:
        log.write("before\n")
        log.flush()
        (root / "a.py").write_text("print(3)\n")
        again()
        log.write("after\n")
    assert files(three.home(0))["log"] == "before\nafter\n"


def test_a_file_becomes_a_folder_and_a_folder_a_file(
    three: Fleet, root: Path, again: Again
) -> None:
    again()
    (root / "sub" / "deep" / "b.py").unlink()
    (root / "sub" / "deep").rmdir()
    (root / "sub" / "deep").write_text("now a file")
    (root / "run").unlink()
    (root / "run").mkdir()
    (root / "run" / "inner").write_text("now a folder")
    assert again() == ["sent"] * 3
    found = files(three.home(0))
    assert found["sub/deep"] == "now a file"
    assert found["run/inner"] == "now a folder"


def test_a_file_that_was_changed_on_a_worker_is_replaced_only_if_that_is_asked_for(
    three: Fleet, again: Again
) -> None:
    again()
    (three.home(1) / "project" / "a.py").write_text("edited there")
    first, refused, last = again()
    assert (first, last) == ("unchanged", "unchanged")
    assert "replace 1 file whose content no push has brought: a.py" in str(refused)
    assert files(three.home(1))["a.py"] == "edited there"
    assert again(overwrite=True) == ["unchanged", "sent", "unchanged"]
    assert files(three.home(1))["a.py"] == "print(1)\n"


def test_what_was_brought_here_by_hand_as_well_is_no_conflict(
    three: Fleet, root: Path, again: Again
) -> None:
    again()
    for place in (root, three.home(1) / "project"):
        (place / "a.py").write_text("print(7)\n")
    assert again() == ["sent"] * 3
    assert files(three.home(1))["a.py"] == "print(7)\n"


@pytest.mark.parametrize("text", ["", "elsewhere"], ids=["removed", "changed"])
def test_a_link_that_was_changed_on_a_worker_is_put_right(
    three: Fleet, again: Again, text: str
) -> None:
    again()
    link = three.home(1) / "project" / "link"
    link.unlink()
    link.symlink_to(text) if text else None
    assert again(overwrite=bool(text)) == ["unchanged", "sent", "unchanged"]
    assert link.readlink() == Path("a.py")


def test_a_worker_that_never_had_it_gets_everything(three: Fleet, root: Path, again: Again) -> None:
    again()
    (three.home(2) / "project").rename(three.home(2) / "moved away")
    (root / "a.py").write_text("print(3)\n")
    assert again() == ["sent"] * 3
    assert files(three.home(2)) == files(three.home(0))


def test_workers_whose_last_pushes_differ_get_everything(
    three: Fleet, root: Path, again: Again, context: TransferContext
) -> None:
    again()
    (root / "a.py").write_text("print(3)\n")
    (root / "sub" / "deep" / "b.py").write_text("print(4)\n")
    push(read_tree(root), TARGET, three.workers[:1], context)
    (root / "sub" / "deep" / "b.py").write_text("print(2)\n")  # as the others have it
    assert again() == ["sent"] * 3


def test_a_file_that_no_push_has_brought_is_named_before_anything_is_changed_on_that_worker(
    three: Fleet, root: Path, again: Again, context: TransferContext
) -> None:
    again()
    for number in range(7):
        (three.home(1) / f"project/{number}.csv").write_text("precious")
        (root / f"{number}.csv").write_text("old copy")
    (root / "a.py").write_text("print(3)\n")
    before = files(three.home(1))
    first, refused, third = again()
    assert (first, third) == ("sent", "sent")
    assert isinstance(refused, TpukitError)
    assert refused.what == (
        "the push would replace 7 files whose content no push has brought: "
        "0.csv, 1.csv, 2.csv, 3.csv, 4.csv and 2 more"
    )
    assert files(three.home(1)) == before
    assert verbs(three.servers[1])[-1] == "compare_push", "nothing was sent to it"
    push_ = prepare(read_tree(root), TARGET, three.workers, context, overwrite=True)
    assert [done.value for done in push_.send(context)] == ["unchanged", "sent", "unchanged"]
    assert files(three.home(1)) == files(three.home(0))


@pytest.mark.slow
def test_one_file_of_two_thousand_costs_a_few_kilobytes(
    three: Fleet, root: Path, again: Again, counter: ByteCounter
) -> None:
    for number in range(2000):
        (root / f"module_{number}.py").write_text(f"print({number})\n")
    again()
    (root / "a.py").write_text("print(3)\n")
    (root / "module_7.py").unlink()
    assert again() == ["sent"] * 3
    assert counter.moved < 8_000
    assert "module_7.py" not in files(three.home(2))


def test_a_folder_that_no_push_made_is_left_alone(three: Fleet, again: Again) -> None:
    place = three.home(0) / "project"
    place.mkdir()
    (place / "thesis").write_text("years")
    first, *others = again()
    assert isinstance(first, TpukitError)
    assert "it holds files and no push has made it" in first.reason
    assert others == ["sent", "sent"]
    assert files(three.home(0)) == {"thesis": "years"}


@pytest.mark.parametrize("target", [".", "~", "~/", "", "/", "..", "a/../..", "a\nb", "./", "/."])
def test_a_target_that_is_no_folder_of_its_own_is_refused(target: str) -> None:
    with pytest.raises(BadInput, match="that a push can replace"):
        target_path(target)


@pytest.mark.parametrize(
    "target",
    [".ssh", "~/.ssh/", ".bashrc", "./.tpukit/venvs", ".cache/x", "x/.tpukit", "/x/.tpukit"],
)
def test_a_place_for_files_of_the_login_or_of_tpukit_is_refused(target: str) -> None:
    with pytest.raises(BadInput, match="is not a folder for a push"):
        target_path(target)


def test_the_push_of_another_folder_is_named_with_another_target_for_this_one(
    three: Fleet, root: Path, again: Again, context: TransferContext, tmp_path: Path
) -> None:
    again()
    other = read_tree(shutil.copytree(root, tmp_path / "b" / "tree", symlinks=True))
    assert [done.value for done in push(other, TARGET, three.workers, context)] == ["unchanged"] * 3
    (other.root / "a.py").write_text("print(3)\n")
    before, other = files(three.home(0)), read_tree(other.root)
    for done in push(other, TARGET, three.workers, context):
        assert done.error
        assert (
            done.error.what
            == f"project has the push of another folder: {read_tree(root).origin.place}"
        )
        assert done.error.fix
        assert done.error.fix.arguments[-3:] == (str(other.root), "--to", "project-2")
    assert files(three.home(0)) == before
    done = prepare(other, TARGET, three.workers, context, overwrite=True).send(context)
    assert [outcome.value for outcome in done] == ["sent"] * 3
    assert all(isinstance(refused, TpukitError) for refused in again())
    assert files(three.home(0))["a.py"] == "print(3)\n"


def test_results_that_only_a_push_has_written_stop_a_push_on_the_first_worker(
    three: Fleet, root: Path, again: Again, context: TransferContext
) -> None:
    (root / "results").mkdir()
    (root / "results" / "1").write_text("old\n")
    again()
    tree = read_tree(root).without("results")
    first, *others = push(tree, TARGET, three.workers, context)
    assert isinstance(first.error, BadInput)
    assert "results/1 is no result: no program on demo worker 0 has written it" in first.error.what
    assert [done.error for done in others] == [None, None]
    (three.home(0) / "project" / "results" / "1").write_text("new\n")
    assert [done.error for done in push(tree, TARGET, three.workers, context)] == [None] * 3
    assert files(three.home(0))["results/1"] == "new\n"


@pytest.mark.parametrize("above", [0, 1])
def test_a_folder_that_holds_the_home_folder_is_refused(
    three: Fleet, root: Path, context: TransferContext, above: int
) -> None:
    home = three.home(0)
    target = str([home, home.parent][above])
    (outcome,) = push(read_tree(root), target, three.workers[:1], context)
    assert outcome.error is not None
    assert "the home folder is in it" in outcome.error.reason
    assert home.is_dir()
    assert not (state := Path(target, ".tpukit", "pushed")).exists(), state


def test_a_file_in_the_way_is_refused(three: Fleet, again: Again) -> None:
    (three.home(0) / "project").write_text("mine")
    first, *_ = again()
    assert isinstance(first, TpukitError)
    assert (three.home(0) / "project").read_text() == "mine"


def test_a_link_to_a_folder_stays_a_link(three: Fleet, again: Again) -> None:
    for index in range(3):
        (three.home(index) / "disk").mkdir()
        (three.home(index) / "project").symlink_to("disk")
    assert again() == ["sent"] * 3
    assert (three.home(0) / "project").is_symlink()
    assert "a.py" in files(three.home(0), "disk")


def test_a_payload_that_is_not_what_the_manifest_says_changes_nothing(
    three: Fleet, root: Path, context: TransferContext, again: Again
) -> None:
    again()
    before = files(three.home(0))
    tree = read_tree(root)
    assert tree.digest
    (root / "a.py").write_text("changed after the manifest was made\n")
    (root / "new").write_text("1")
    stale = read_tree(root)
    assert stale.digest
    (root / "new").write_text("2")
    (outcome, *_) = push(stale, TARGET, three.workers, context)
    assert outcome.error is not None
    assert "does not fit the files on the worker" in outcome.error.what
    assert files(three.home(0)) == before


def test_workers_that_share_the_folder_do_not_race(
    three: Fleet, root: Path, context: TransferContext, tmp_path: Path
) -> None:
    shared = tmp_path / "shared" / "project"
    for _ in range(3):
        done = push(read_tree(root), str(shared), three.workers, context)
        assert [outcome.error for outcome in done] == [None] * 3
        assert (shared / "a.py").read_text() == (root / "a.py").read_text()
        (root / "a.py").write_text((root / "a.py").read_text() + "#\n")
    assert {path.name for path in (shared / ".tpukit").iterdir()} == {"pushed", "lock"}


def replace_program(to: Fleet, folder: Path, name: str, before: str) -> None:
    """Let worker 0, which has the agent, do something before it runs a program."""
    put_agent(to.home(0))
    folder.mkdir()
    (folder / name).write_text(f'#!/bin/sh\n{before}\nexec {shutil.which(name)} "$@"\n')
    (folder / name).chmod(0o755)
    to.servers[0].path = f"{folder}:{to.servers[0].path}"


#: Starts the agent with sleeps that end at once.
HURRIED = '''shift 2; exec %s -I -S -c "
import runpy, sys, time
del sys.argv[0]
time.sleep = lambda seconds: None
runpy.run_path(sys.argv[0], run_name='__main__')" "$@"'''


def test_a_push_that_waits_in_vain_for_another_says_how_to_end_that(
    three: Fleet, root: Path, again: Again, tmp_path: Path
) -> None:
    again()
    holder = subprocess.Popen(
        agent_words(three.home(0), "hold_lock"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin
    assert holder.stdout
    holder.stdin.write(b'{"path": "project/.tpukit/lock"}\n')
    holder.stdin.flush()
    assert any(b"locked" in line for line in holder.stdout)
    replace_program(three, tmp_path / "tools", "python3", HURRIED % shutil.which("python3"))
    (root / "a.py").write_text("print(3)\n")
    failed, *others = again()
    assert others == ["sent"] * 2
    assert isinstance(failed, TpukitError)
    assert f"another push is going on there: PID {holder.pid}," in failed.reason
    assert failed.fix
    ssh = ("tpukit", "ssh", "demo", "--worker", "0", "--")
    assert failed.fix.arguments == (*ssh, "kill", str(holder.pid))
    holder.kill()
    holder.communicate()
    assert again() == ["sent", "unchanged", "unchanged"]


def test_a_worker_that_loses_what_it_got_is_given_up(
    three: Fleet, again: Again, tmp_path: Path
) -> None:
    lost = {"state": "partial", "size": 0}
    let_answer(three, tmp_path / "tools", receive_upload=lost, fetch_upload=lost)
    failed, *others = again()
    assert isinstance(failed, TpukitError)
    assert failed.what == "the staged upload disappeared 10 times"
    assert others == ["sent"] * 2


LACKS = {"intact": False, "other": "", "sources": []}
LACKS |= {"lacks": [], "gone": [], "conflicts": 0, "names": []}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {**LACKS, "intact": "no"},
        {**LACKS, "lacks": [1]},
        {**LACKS, "gone": "a.py"},
        {**LACKS, "other": None},
        {**LACKS, "sources": "a.py"},
    ],
)
def test_a_worker_that_says_odd_things_of_its_tree_is_an_error_of_that_worker(
    three: Fleet, again: Again, tmp_path: Path, answer: dict[str, object]
) -> None:
    let_answer(three, tmp_path / "tools", compare_push=answer)
    failed, *others = again()
    assert isinstance(failed, TpukitError)
    assert others == ["sent"] * 2


def test_a_hostile_worker_lets_no_other_one_lose_a_file_that_is_here(
    three: Fleet, again: Again, root: Path, tmp_path: Path
) -> None:
    again()
    gone = {**LACKS, "lacks": ["../x"], "gone": ["a.py", "../precious", "/etc/passwd"]}
    let_answer(three, tmp_path / "tools", compare_push=gone)
    (three.home(1) / "precious").write_text("kept")
    (root / "run").write_text("#!/bin/bash\n")
    assert again()[1:] == ["sent"] * 2
    assert (three.home(1) / "precious").read_text() == "kept"
    assert files(three.home(1)) == files(three.home(2))
    assert files(three.home(1))["a.py"] == "print(1)\n"


def test_a_worker_that_compares_a_large_tree_for_long_is_waited_for(
    three: Fleet, root: Path, tmp_path: Path
) -> None:
    """It handles many times the bytes that it is sent."""
    with (root / "data").open("wb") as file:
        file.truncate(256 << 20)
    let_answer(three, tmp_path / "tools", compare_push={**LACKS, "lacks": ["a.py"]})
    python = tmp_path / "tools/python3"
    steps = (
        "for n in 1 2 3 4 5; do echo 'tpukit-agent {\"progress\": '$n'00000000}'; sleep 0.5; done"
    )
    answer = 'echo \'tpukit-agent {"state": "sent", "size": 0}\'; exit'
    lines = f'case "$*" in *receive_upload) cat >/dev/null; {steps}; {answer} ;; esac\n'
    python.write_text(python.read_text().replace("exec", f"{lines}exec", 1))
    patient = TransferContext(NEVER, ByteCounter(), silence=1.5)
    (outcome,) = push(read_tree(root), TARGET, three.workers[:1], patient)
    assert outcome.value == "sent", outcome.error


def let_answer(to: Fleet, folder: Path, **answers: Mapping[str, object]) -> None:
    """Let the agent of worker 0 give other answers to some verbs."""
    cases = [
        f"*{verb}) cat >/dev/null; echo; echo 'tpukit-agent {json.dumps(fields)}'; exit ;;"
        for verb, fields in answers.items()
    ]
    replace_program(to, folder, "python3", f'case "$*" in {" ".join(cases)} esac')


def test_a_hostile_manifest_removes_nothing_on_other_workers(
    three: Fleet, root: Path, again: Again
) -> None:
    """A worker names a file outside the tree as pushed before; nobody removes it."""
    again()
    for index in range(3):
        (three.home(index) / "precious").write_text("kept")
        file = three.home(index) / "project" / ".tpukit" / "pushed"
        state = json.loads(file.read_text())
        for name in ("../precious", str(three.home(index) / "precious")):
            state["files"][name] = hashlib.sha256(b"kept").hexdigest()
        file.write_text(json.dumps(state))
    (root / "a.py").write_text("print(3)\n")
    assert again() == ["sent"] * 3
    for index in range(3):
        assert (three.home(index) / "precious").read_text() == "kept"

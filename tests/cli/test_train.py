"""`tpukit train`, `run --push` and `push --watch` against the real emulator."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.processes import eventually

from cli.conftest import Local, Result

pytestmark = pytest.mark.slow

#: Numbers for the folders, because the slice keeps what other tests have pushed.
NUMBERS = count()
#: A stand-in for a provisioned environment: a virtual environment in its place.
MAKE = "python3 -m venv --without-pip .tpukit/venvs/{}"


@pytest.fixture(scope="module")
def pair(local: Local) -> Iterator[str]:
    """A slice of two workers whose rule admits us, with one environment."""
    with local.slice("pair", "v4-16") as name:
        assert local.run("run", name, "--", MAKE.format("jax")).status == 0
        yield name


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A repository with one commit: a program that writes a result, different on each worker."""
    folder = tmp_path / f"app-{next(NUMBERS)}"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import os, sys\n"
        "worker = os.environ['TPUKIT_WORKER']\n"
        "print(worker, sys.prefix.split('/')[-1], os.path.basename(os.getcwd()), *sys.argv[1:])\n"
        "with open('result.txt', 'w') as file: file.write(' '.join([worker, *sys.argv[1:]]))\n"
        "sys.exit(3 if 'fail' in sys.argv and worker == '1' else 0)\n"
    )
    author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "-qm", "First")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def commits(local: Local, slice_: str, run: str) -> set[str]:
    return {job["commit"] for job in local.run("jobs", slice_, run, "--json").document["jobs"]}


def test_it_pushes_runs_in_the_environment_follows_and_fetches(
    local: Local, pair: str, app: Path
) -> None:
    words = ("train", pair, "--run-id", "one", "--fetch", "result.txt", "--", "python", "train.py")
    done = local.run(*words, "first", cwd=app)
    assert done.status == 0, done.err
    assert sorted(done.out.splitlines()) == [
        f"[0] 0 jax {app.name} first",
        f"[1] 1 jax {app.name} first",
        "result.txt",
    ]
    assert "python: of the environment jax (/usr/bin/python3: the system's)\n" in done.err
    assert (app / "result.txt").read_text() == "0 first"
    head = ("git", "rev-parse", "--short=12", "HEAD")
    commit = subprocess.check_output(head, cwd=app, text=True).strip()
    assert commits(local, pair, "one") == {commit}


def test_a_fetched_result_stands_in_no_later_way(local: Local, pair: str, app: Path) -> None:
    """Worker 1 has another result than the fetched one: a push of it would be refused there."""
    words = ("train", pair, "--fetch", "result.txt", "--", "python", "train.py")
    assert local.run(*words, "second", cwd=app).status == 0
    (app / "notes.txt").touch()
    again = local.run(*words, "third", cwd=app)
    assert again.status == 0, again.err
    assert "2 files; 2 of 2 workers changed" in again.err
    assert (app / "result.txt").read_text() == "0 third"


def test_its_status_is_the_highest_of_all_workers_and_results_come_all_the_same(
    local: Local, pair: str, app: Path
) -> None:
    (app / "new.py").touch()
    words = ("train", pair, "--run-id", "bad", "--fetch", "result.txt", "--", "python", "train.py")
    done = local.run(*words, "fail", cwd=app)
    assert done.status == 3
    assert f"warning: {pair} worker 1 exited with status 3\n" in done.err
    assert (app / "result.txt").read_text() == "0 fail"
    (commit,) = commits(local, pair, "bad")
    assert commit.endswith("+changes")


def test_a_folder_is_fetched_and_what_the_workers_wrote_there_stays(
    local: Local, pair: str, app: Path
) -> None:
    """An earlier push may have sent it: with --fetch, a push neither sends nor deletes it."""
    (app / "out").mkdir()
    (app / "out" / "step").write_text("100\n")
    assert local.run("train", pair, "--", "true", cwd=app).status == 0
    assert local.run("run", pair, "--", f"echo 200 > {app.name}/out/step").status == 0
    for _ in range(2):
        done = local.run("train", pair, "--fetch", "out", "--", "cat out/step", cwd=app)
        assert (done.status, done.out.count("200")) == (0, 2), done.err
    assert (app / "out" / "step").read_text() == "200\n"
    nested = local.run("train", pair, "--fetch", "out/step", "--", "echo 300 > out/step", cwd=app)
    assert (nested.status, nested.out.splitlines()[-1]) == (0, "out/step"), nested.err
    assert (app / "out" / "step").read_text() == "300\n"
    assert not (app / "step").exists()
    (app / "out" / "step").unlink()
    (app / "out").rmdir()
    (app / ".tpukit-1a2b.part").write_text("half")
    again = local.run("train", pair, "--fetch", "out", "--", "ls -A", cwd=app)
    assert again.status == 0, again.err
    assert ".part" not in again.out
    assert (app / "out" / "step").read_text() == "300\n"


def test_several_results_are_fetched_and_the_next_lines_name_those_that_are_left(
    local: Local, pair: str, app: Path
) -> None:
    paths = ("logs/a", "none", "b", "logs/none")
    fetched = [word for path in paths for word in ("--fetch", path)]
    make = "mkdir -p logs; echo 1 >logs/a; echo 2 >b"
    failed = local.run("train", pair, *fetched, "--", make, cwd=app)
    assert failed.status == 1
    assert "the run has succeeded, but its results were not copied: there is no" in failed.err
    assert (app / "logs" / "a").read_text() == "1\n"
    assert (app / "b").read_text() == "2\n"
    lines = suggested(failed.err)
    folders = {f"{pair}:{app.name}/none ./", f"{pair}:{app.name}/logs/none ./logs/"}
    assert {line.removeprefix("tpukit --local cp ") for line in lines} == folders
    local.run("run", pair, "--", f"touch {app.name}/none {app.name}/logs/none")
    for line in lines:
        assert typed(local, line, app).status == 0
    assert (app / "none").exists()
    assert (app / "logs" / "none").exists()
    done = local.run("train", pair, *fetched, "--", "echo 3 >b", cwd=app)
    assert done.status == 0, done.err
    assert done.out.splitlines()[-4:] == [*paths]
    assert (app / "b").read_text() == "3\n"


def test_a_result_that_is_missing_hides_no_failure(local: Local, pair: str, app: Path) -> None:
    words = ("train", pair, "--push", str(app), "--fetch", "none.txt", "--")
    failed = local.run(*words, "exit 4")
    assert failed.status == 4
    assert f"warning: {pair} worker 0 exited with status 4\n" in failed.err
    assert f"warning: there is no ./{app.name}/none.txt on the worker" in failed.err
    missing = local.run(*words, "true").says(1).err
    assert "the run has succeeded, but its results were not copied" in missing
    assert f"there is no ./{app.name}/none.txt" in missing
    assert f"fix: tpukit --local cp {pair}:{app.name}/none.txt" in missing


def interrupted(process: subprocess.Popen[str], moment: str) -> str:
    """Send Ctrl-C after a line of stderr with the moment; return what is said from there on."""
    assert process.stderr
    assert next(line for line in iter(process.stderr.readline, "") if moment in line)
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130, said
    assert "tpukit --local delete" not in said
    return said


def typed(local: Local, line: str, folder: Path) -> Result:
    """Type a suggested line in a folder."""
    program, *words = shlex.split(line)
    assert program == "tpukit"
    return local.run(*words, cwd=folder)


def suggested(said: str) -> list[str]:
    """Return the suggested lines."""
    return re.findall(r"^(?:next|fix): (tpukit .*)$", said, re.MULTILINE)


def test_ctrl_c_leaves_its_run_running(local: Local, pair: str, app: Path) -> None:
    """It names the run, and each line that it suggests works, also that for the results."""
    run, folder = ("--push", str(app), "--run-id", "long"), app.parent
    command = "echo 7 >out.txt; echo here; sleep 300"
    words = ("train", pair, *run, "--fetch", "out.txt", "--", command)
    process = local.start(*words, cwd=folder)
    assert process.stdout
    assert process.stdout.readline().endswith("here\n")
    said = interrupted(process, "started it")
    assert "run long goes on\n" in said
    assert "error:" not in said
    attach, kill, copy = suggested(said)
    assert [attach, kill] == [f"tpukit --local {verb} {pair} long" for verb in ("attach", "kill")]
    states = local.run("jobs", pair, "long", "--json").document["jobs"]
    assert [job["state"] for job in states] == ["running", "running"]
    assert copy.endswith(f" {pair}:{app.name}/out.txt ./{app.name}/")
    assert typed(local, copy, folder).status == 0
    assert (app / "out.txt").read_text() == "7\n"
    assert typed(local, kill, folder).status == 0
    followed = typed(local, attach, folder)
    assert {"[0] here", "[1] here"} <= {*followed.out.splitlines()}
    assert f"{pair} worker 1 exited with status 143" in followed.err


def test_ctrl_c_before_the_start_says_that_nothing_was_started(
    local: Local, pair: str, app: Path
) -> None:
    """While it pushes, and while it waits for a worker that stands still."""
    (app / "large").write_bytes(os.urandom(2_000_000))
    words = ("train", pair, "--push", str(app), "--run-id", "never", "--", "true")
    kept = "exists: files that have arrived stay; the same command continues from there\n"
    for fault, moment, exists in (
        (("slow", "--rate", "50000"), "changed, to", kept),
        (("frozen",), "trying for", ""),
    ):
        assert local.run("emulator", "worker", pair, "1", "--fault", *fault).status == 0
        try:
            said = interrupted(local.start(*words), moment)
        finally:
            assert local.run("emulator", "worker", pair, "1", "--clear").status == 0
        assert said.endswith(f"error: interrupted\nwhy: nothing was started\n{exists}")
        assert not suggested(said)
    local.run("jobs", pair, "never").says(3)


def test_ctrl_c_before_a_run_is_followed_names_it(local: Local, pair: str) -> None:
    assert local.run("run", pair, "--detach", "--run-id", "slow", "--", "sleep 300").status == 0
    assert local.run("emulator", "worker", pair, "1", "--fault", "frozen").status == 0
    try:
        said = interrupted(local.start("attach", pair, "slow"), "trying for")
    finally:
        assert local.run("emulator", "worker", pair, "1", "--clear").status == 0
    assert "error: interrupted\nexists: run slow was not ended\n" in said
    attach, kill = suggested(said)
    assert attach == f"tpukit --local attach {pair} slow"
    assert typed(local, kill, Path()).status == 0


@pytest.mark.parametrize("status", [0, 5])
def test_ctrl_c_during_the_fetch_gives_the_line_that_continues_it(
    local: Local, pair: str, app: Path, tmp_path: Path, status: int
) -> None:
    """The same command would start another run, so it is not that; whatever the run's status."""
    command = f"head -c 3000000 /dev/urandom >big; sleep 3; exit {status}"
    words = ("train", pair, "--push", str(app), "--fetch", "big", "--", command)
    process = local.start(*words, cwd=tmp_path)
    assert process.stderr
    assert next(line for line in iter(process.stderr.readline, "") if "started it" in line)
    slow = ("emulator", "worker", pair, "0", "--fault", "slow", "--rate", "200000")
    assert local.run(*slow).status == 0
    try:
        eventually(lambda: any(app.glob(".tpukit-*.part")), 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        assert local.run("emulator", "worker", pair, "0", "--clear").status == 0
    said = process.stderr.read()
    assert "exists: the run has ended; files that have arrived stay\n" in said
    assert "the same command" not in said
    (copy,) = suggested(said)
    assert typed(local, copy, tmp_path).status == 0
    assert (app / "big").stat().st_size == 3_000_000


def test_run_with_push_starts_in_the_pushed_folder(local: Local, pair: str, app: Path) -> None:
    words = ("run", pair, "--push", str(app), "--to", f"code/{app.name}", "--worker", "1")
    done = local.run(*words, "--", "python3", "train.py")
    assert done.out.split() == ["1", "jax", app.name]
    elsewhere = local.run(*words, "--workdir", "/", "--", "pwd")
    assert elsewhere.out == "/\n"
    started = local.run(*words, "--detach", "--run-id", "pushed", "--", "pwd")
    assert started.status == 0
    assert local.run("attach", pair, "pushed").out.endswith(f"/code/{app.name}\n")
    assert all(commits(local, pair, "pushed"))


def test_a_run_of_another_program_has_no_environment_and_no_commit(local: Local, pair: str) -> None:
    done = local.run("run", pair, "--detach", "--run-id", "plain", "--", 'echo "<$VIRTUAL_ENV>"')
    assert done.status == 0
    assert "environment" not in done.err
    assert local.run("attach", pair, "plain", "--worker", "0").out == "<>\n"
    assert commits(local, pair, "plain") == {""}


def test_of_two_environments_none_is_chosen(local: Local, pair: str, app: Path) -> None:
    make, remove = MAKE.format("flax"), "rm -r .tpukit/venvs/flax"
    assert local.run("run", pair, "--", make).status == 0
    words = ("run", pair, "--push", str(app), "--worker", "0", "--", "python3", "train.py")
    done = local.run(*words)
    missing = [local.run(verb, pair, "--", "no-such-program", cwd=app) for verb in ("run", "train")]
    by_path = local.run("run", pair, "--", "./python train.py")
    assert local.run("run", pair, "--", remove).status == 0
    assert done.out.split()[1] not in ("jax", "flax")
    assert "environment" not in done.err
    for hinted in missing:
        assert hinted.status == 127
        assert "\nnext: add --with flax or --with jax: then its programs are found" in hinted.err
    assert by_path.status == 127
    assert "--with" not in by_path.err


def test_python_that_is_not_the_same_on_every_slice_starts_nowhere(
    local: Local, pair: str, app: Path
) -> None:
    """Before it starts on one of them. With the same environment on both, it starts."""
    assert local.run("create", "v3-8", "other").status == 0
    assert local.run("firewall", "apply", "other").status == 0
    try:
        words = ("--", "env", "A=1", "python", "train.py")
        for verb in (("run", "--push", str(app)), ("train",), ("train", "--run-id", "no")):
            done = local.run(verb[0], f"{pair},other", *verb[1:], *words, cwd=app)
            assert "the slices have different environments for python\n" in done.says(2).err
            assert f"why: {pair} has jax\n     other has none\n" in done.err
            assert "fix: tpukit --local provision other jax\n" in done.err
        assert local.run("jobs", "other").out == ""
        assert local.run("run", "other", "--", MAKE.format("jax")).status == 0
        done = local.run("run", f"{pair},other", "--push", str(app), *words)
        assert sorted(line.split()[2] for line in done.out.splitlines()) == ["jax"] * 3
        assert local.run("run", "other", "--", MAKE.format("flax")).status == 0
        done = local.run("run", f"{pair},other", *words)
        assert "fix: add --with jax\n" in done.says(2).err
    finally:
        assert local.run("delete", "other", "--yes").status == 0


BUSY = "RuntimeError: The TPU is already in use by process with pid 4711."


def test_a_known_error_of_a_program_is_explained(local: Local, pair: str) -> None:
    """Attached or detached, once for all workers; with the name of the slice in the remedy."""
    line = f"echo '{BUSY}' >&2; exit 1"
    cause = f"warning: {pair} worker 0 and 1 more: Another process holds the chips"
    remedy = f"next: tpukit --local smoke {pair} --level 0\nnote: shows it, "
    attached = local.run("run", pair, "--", line)
    assert local.run("run", pair, "--detach", "--run-id", "busy", "--", line).status == 0
    for done in (attached, local.run("attach", pair, "busy")):
        assert done.status == 1
        assert done.err.count(cause) == 1
        assert remedy in done.err
    fine = local.run("run", pair, "--", f"echo '{BUSY}' >&2")
    assert "Another process" not in fine.err
    unknown = local.run("run", pair, "--", "echo nothing special >&2; exit 1")
    assert "next:" not in unknown.err


def test_a_taken_run_id_is_refused_before_anything_is_sent(
    local: Local, pair: str, app: Path
) -> None:
    words = ("--push", str(app), "--run-id", "taken")
    assert local.run("train", pair, *words, "--", "true").status == 0
    (app / "new.py").touch()
    for verb in (("train", pair), ("run", pair, "--detach")):
        refused = local.run(*verb, *words, "--", "true").says(5)
        assert "run taken is already on pair worker" in refused.err
        assert "workers changed" not in refused.err
    missing = local.run("run", pair, "--detach", *words[:2], "--with", "torch_xla", "--", "true")
    assert "pair has no environment torch_xla on workers 0, 1" in missing.says(3).err
    assert "new.py" not in local.run("run", pair, "--", f"ls {app.name}").out


def test_a_source_is_not_fetched(local: Local, pair: str, app: Path) -> None:
    words = ("train", pair, "--fetch", "train.py", "--", "true")
    tracked = local.run(*words, cwd=app).says(2)
    assert "train.py is no result of a program (git tracks it)" in tracked.err
    plain = app.with_name(f"{app.name}-plain")
    plain.mkdir()
    (plain / "train.py").write_text("print(1)\n")
    fresh = local.run(*words, cwd=plain).says(2)
    assert "train.py is no result: no program on pair worker 0 has written it" in fresh.err
    make = ("train", pair, "--fetch", "result.txt", "--", "cat train.py; echo made > result.txt")
    for _ in range(2):
        assert local.run(*make, cwd=plain).status == 0
    (plain / "train.py").write_text("print(2)\n")
    assert "no program on pair worker 0 has written it" in local.run(*words, cwd=plain).says(2).err
    assert (plain / "train.py").read_text() == "print(2)\n"
    (plain / "out").symlink_to(app)
    led = local.run("train", pair, "--fetch", "out/x", "--", "true", cwd=plain).says(2)
    assert f"out/x leads out of {plain} through a link" in led.err


def test_secrets_are_sent_with_the_flag_that_is_named(local: Local, pair: str, app: Path) -> None:
    (app / ".env").write_text("TOKEN=hunter2\n")
    words = ("--push", str(app), "--worker", "0", "--", "ls -A")
    without = local.run("run", pair, *words)
    assert "left out as secrets: .env (--with-secrets sends them)" in without.err
    assert ".env" not in without.out
    assert ".env" in local.run("run", pair, "--with-secrets", *words).out
    assert ".env" in local.run("train", pair, "--with-secrets", *words[:2], *words[4:]).out


def test_another_folder_s_push_is_replaced_only_if_that_is_said(
    local: Local, pair: str, app: Path
) -> None:
    other = app.with_name("other") / app.name
    other.mkdir(parents=True)
    (other / "train.py").write_text("print('other')\n")
    (other / "other.py").touch()
    line = ("--", "cat train.py")
    assert local.run("run", pair, "--push", str(other), *line).status == 0
    for verb in ("run", "train"):
        words = (verb, pair, "--push", str(app))
        refused = local.run(*words, *line).says(1)
        assert f"{app.name} has the push of another folder: " in refused.err
        assert f"{other}\n" in refused.err
        assert f"fix: tpukit --local push pair {app} --to {app.name}-2\n" in refused.err
    assert "print('other')" in local.run("run", pair, "--", f"cat {app.name}/train.py").out
    assert local.run(*words, "--overwrite", *line).status == 0
    assert "other.py" not in local.run("run", pair, "--", f"ls {app.name}").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("train", "demo"), "there is no command to run"),
        (("train", "demo", "--fetch", "..", "--", "x"), "--fetch cannot copy .."),
        (("train", "demo", "--fetch", ".", "--", "x"), "--fetch cannot copy ."),
        (("train", "demo", "--fetch", "*.txt", "--", "x"), "--fetch cannot copy *.txt"),
        (("train", "a-*", "--fetch", "out", "--", "x"), "--fetch needs one slice"),
        (("train", "demo", "--fetch", "a", "--fetch", "/b", "--", "x"), "--fetch cannot copy /b"),
        (("train", "demo", "--run-id", "Bad Id", "--", "x"), "'Bad Id' cannot be a run id"),
        (("run", "demo", "-d", "--run-id", "Bad Id", "--", "x"), "'Bad Id' cannot be a run id"),
        (("train", "demo", "--push", "nowhere", "--", "x"), "nowhere is not a folder"),
        (("run", "demo", "--to", "app", "--", "x"), "--to needs --push"),
        (("run", "demo", "--overwrite", "--", "x"), "--overwrite needs --push"),
        (("run", "demo", "--with-secrets", "--", "x"), "--with-secrets needs --push"),
        (("run", "demo", "--push", "nowhere", "--", "x"), "nowhere is not a folder"),
    ],
)
def test_a_wrong_line_is_refused_before_anything_is_asked(
    local: Local, words: tuple[str, ...], told: str
) -> None:
    assert told in local.run(*words).says(2).err


def test_a_log_cannot_be_one_document(local: Local) -> None:
    done = local.run("train", "demo", "--json", "--", "x")
    assert done.status == 2
    assert done.document["error"]["message"] == "--json cannot show a log"
    assert "run --push . --detach --json" in done.document["error"]["fix_note"]


def test_a_push_that_watches_sends_each_change(local: Local, pair: str, app: Path) -> None:
    process = local.start("push", pair, str(app), "--watch", "--worker", "0")
    assert process.stderr
    lines = iter(process.stderr.readline, "")
    assert next(line for line in lines if "workers changed" in line)
    (app / "train.py").write_text("print('changed')\n")
    assert "1 of 1 workers changed" in next(line for line in lines if "workers changed" in line)
    there = local.run("run", pair, "--worker", "0", "--", f"cat {app.name}/train.py")
    assert there.out == "print('changed')\n"
    (app / "train.py").unlink()
    (app / "other.py").touch()
    there = ""
    while "other.py" not in there or "train.py" in there:
        # Once this line is out, nothing is sent that Ctrl-C could interrupt.
        assert next(line for line in lines if "workers changed" in line)
        there = local.run("run", pair, "--worker", "0", "--", f"ls {app.name}").out
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "error:" not in process.stderr.read()


def test_a_push_that_watches_ends_with_its_folder(local: Local, pair: str, app: Path) -> None:
    process = local.start("push", pair, str(app), "--watch")
    assert process.stderr
    assert next(line for line in iter(process.stderr.readline, "") if "workers changed" in line)
    app.rename(app.with_name("elsewhere"))
    assert process.wait(60) == 2
    assert f"error: {app} is not a folder\n" in process.stderr.read()


def test_a_push_that_watches_tells_a_refusal_once_and_tries_again(
    local: Local, pair: str, app: Path
) -> None:
    process = local.start("push", pair, str(app), "--watch")
    lines = told(process)
    assert next(line for line in lines if "workers changed" in line)
    notes = f"{app.name}/notes.txt"
    assert local.run("run", pair, "--worker", "1", "--", f"echo mine > {notes}").status == 0
    (app / "notes.txt").write_text("yours\n")
    assert "1 of 2 workers changed" in next(line for line in lines if "workers changed" in line)
    assert next(lines).startswith(f"warning: {pair} worker 1: the push would replace 1 file")
    assert next(lines).startswith("next: copy them with cp")
    assert next(lines) == "tried again at each change, and after 10 s if a worker failed\n"
    (app / "more.txt").touch()
    assert "1 of 2 workers changed" in next(line for line in lines if "changed" in line[-20:])
    assert local.run("run", pair, "--worker", "1", "--", f"rm {notes}").status == 0
    # It succeeds without another change here.
    rest = [next(lines) for _ in range(3)]
    assert "1 of 2 workers changed" in rest[-1], rest
    assert local.run("run", pair, "--worker", "1", "--", f"cat {notes}").out == "yours\n"


def test_a_push_that_watches_waits_for_its_slice(local: Local, app: Path) -> None:
    assert local.run("create", "v3-8", "watched").status == 0
    assert local.run("firewall", "apply", "watched").status == 0
    process = local.start("push", "watched", str(app), "--watch")
    lines = told(process)
    assert next(line for line in lines if "workers changed" in line)
    assert local.run("stop", "watched").status == 0
    (app / "train.py").write_text("print('changed')\n")
    assert next(lines) == "warning: slice watched is STOPPED\n"
    assert next(lines).startswith("next: tpukit --local start watched")
    assert local.run("start", "watched").status == 0
    assert next(line for line in lines if "1 of 1 workers changed" in line)
    there = local.run("run", "watched", "--", f"cat {app.name}/train.py")
    assert there.out == "print('changed')\n"
    assert local.run("delete", "watched", "--yes").status == 0


@pytest.mark.parametrize("pause", [0.002, 0.01])
def test_a_second_ctrl_c_kills_no_push_that_watches(
    local: Local, pair: str, app: Path, pause: float
) -> None:
    process = local.start("push", pair, str(app), "--watch", "--worker", "0")
    lines = told(process)
    assert next(line for line in lines if "workers changed" in line)
    (app / "new.py").touch()
    assert next(line for line in lines if "workers changed" in line)
    process.send_signal(signal.SIGINT)
    time.sleep(pause)  # it is ending, or has ended
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr
    assert process.stderr.read() == ""


def told(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield each line of stderr when it comes."""
    assert process.stderr
    return iter(process.stderr.readline, "")

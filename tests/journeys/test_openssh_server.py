"""The same commands where OpenSSH's own server answers, which is what runs on a TPU VM."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import Finished, Tpukit
from support.login_account import GREETING, TITLE
from support.openssh_workers import OpenSshWorkers, openssh_workers, running
from support.processes import eventually, sleepers

from tpukit.text import sanitize

pytestmark = pytest.mark.journey

ALL = range(4)


def printed(done: Finished) -> list[str]:
    """Return the lines of stdout, sorted, without what .bashrc prints: ssh passes that on too."""
    plain = done.stdout.replace(TITLE, "").replace(sanitize(TITLE), "")
    return sorted(line for line in plain.splitlines() if not line.endswith(GREETING))


@pytest.fixture(scope="module")
def workers() -> Iterator[OpenSshWorkers]:
    """Four servers, one slice named pod. A worker's number is the last word of its home."""
    with openssh_workers("v3-32") as found:
        yield found


@pytest.fixture
def tpukit(workers: OpenSshWorkers) -> Tpukit:
    return workers.tpukit


def test_run_keeps_each_worker_s_streams_and_status_apart(tpukit: Tpukit) -> None:
    command = 'n=${HOME##*-}; echo "out $n"; echo "err $n" >&2; test $n != 2 || exit 7'
    done = tpukit.ends_with(7, "run", "pod", "--", command)
    assert printed(done) == [f"[{n}] out {n}" for n in ALL]
    told = done.stderr.splitlines()
    assert sorted(told[:4]) == [f"[{n}] err {n}" for n in ALL]
    assert told[4:] == [
        "warning: pod worker 2 exited with status 7",
        "warning: pod worker 2: err 2",
    ]


@pytest.mark.full_size
def test_a_worker_that_stands_still_for_14_seconds_is_not_lost(workers: OpenSshWorkers) -> None:
    with _stalled_run(workers) as process:
        time.sleep(14)  # what is claimed of real time
    assert process.returncode == 0


def test_how_long_a_worker_may_be_silent_is_a_setting(workers: OpenSshWorkers) -> None:
    with _stalled_run(workers, TPUKIT_SILENCE="2") as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == 255
    assert "it was silent for 2 s" in told


@contextmanager
def _stalled_run(workers: OpenSshWorkers, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command on worker 3, whose server stands still from then on until the block ends."""
    tpukit = replace(workers.tpukit, variables={**workers.tpukit.variables, **variables})
    command = "echo started; sleep 1; echo went on"
    with running(tpukit, "run", "pod", "--worker", "3", "--", command) as process:
        assert process.stdout
        assert any("started" in line for line in iter(process.stdout.readline, ""))
        with workers.host.stalled(3):
            yield process
        process.wait(60)


def test_a_command_that_a_signal_ends_has_128_and_its_number(tpukit: Tpukit) -> None:
    """OpenSSH says so in a message of its own, not with a status."""
    done = tpukit("run", "pod", "--worker", "1", "--", "kill -9 $$")
    assert (done.returncode, printed(done)) == (128 + signal.SIGKILL, [])


def test_ten_megabytes_arrive_whole_from_every_worker(tpukit: Tpukit) -> None:
    folder = tpukit.home / "ten"
    size = 10_000_000
    command = f'yes "${{HOME##*-}}" | head -c {size}'
    tpukit.succeeds("run", "pod", "--output-directory", str(folder), "--", command)
    for n in ALL:
        expected = hashlib.sha256(f"{n}\n".encode() * (size // 2)).hexdigest()
        output = (folder / f"pod-{n}.stdout").read_bytes()
        commands = output.removeprefix(f"{GREETING}\n{TITLE}".encode())
        assert hashlib.sha256(commands).hexdigest() == expected, n


def test_ctrl_c_ends_the_command_on_every_worker(workers: OpenSshWorkers) -> None:
    """Also one that ignores INT, and what it has started."""
    beats = [workers.host.home(n) / "beat" for n in ALL]
    command = "trap '' INT; (while :; do : >beat; sleep 0.1; done) & wait"
    with running(workers.tpukit, "run", "pod", "--", command) as process:
        eventually(lambda: all(beat.exists() for beat in beats))
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "its processes that could be found were ended on every worker" in told
    assert not workers.processes()


def test_ctrl_c_waits_for_what_the_command_leaves_behind(workers: OpenSshWorkers) -> None:
    """It ignores TERM and holds none of the command's streams: the command itself ends before."""
    beat = workers.host.home(0) / "stray"
    stray = "trap '' TERM; while :; do : >stray; sleep 0.1; done"
    command = f"({stray}) >/dev/null 2>&1 & wait"
    words = ("run", "pod", "--worker", "0", "--grace", "1s", "--", command)
    with running(workers.tpukit, *words) as process:
        eventually(beat.exists)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "its processes that could be found were ended on every worker" in told
    assert not workers.processes()


def test_a_reader_of_the_output_that_goes_ends_the_command_at_once(
    workers: OpenSshWorkers,
) -> None:
    """As `head -1` does, of a command that writes nothing more."""
    words = ("run", "pod", "--worker", "0", "--", "echo first; exec sleep 1000")
    with running(workers.tpukit, *words) as process:
        assert process.stdout
        assert any("first" in line for line in iter(process.stdout.readline, ""))
        process.stdout.close()
        assert process.wait(120) == 141
        assert process.stderr
        assert process.stderr.read() == ""
    assert not workers.processes()


def test_output_that_cannot_be_kept_ends_the_command_at_once(
    workers: OpenSshWorkers, tmp_path: Path
) -> None:
    with full_disk(tmp_path / "disk") as disk:
        words = ("--output-directory", str(disk / "out"), "--", "yes | head -c 9999999; sleep 1000")
        done = workers.tpukit.ends_with(1, "run", "pod", *words)
    assert "error: cannot write " in done.stderr
    assert "/out/pod-" in done.stderr
    assert "No space left on device" in done.stderr
    assert not workers.processes()


def test_input_that_cannot_be_kept_is_no_end_of_the_input(
    workers: OpenSshWorkers, tmp_path: Path
) -> None:
    with full_disk(tmp_path / "disk") as disk:
        variables = {**workers.tpukit.variables, "TMPDIR": str(disk)}
        tpukit = replace(workers.tpukit, variables=variables)
        words = ("run", "pod", "--stdin", "--", "cat >arrived && : >whole")
        done = tpukit.ends_with(1, *words, stdin="x" * 2_000_000)
    assert done.stderr == "error: standard input was cut short (No space left on device)\n"
    assert not any((workers.host.home(n) / "whole").exists() for n in ALL)
    assert not workers.processes()


@contextmanager
def full_disk(path: Path) -> Iterator[Path]:
    """Mount a disk with little room."""
    if os.getuid():
        pytest.skip("a full disk is a mount that only root can make: it is NOT checked")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def test_files_and_folders_come_and_go(workers: OpenSshWorkers, tmp_path: Path) -> None:
    tpukit, data = workers.tpukit, tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "it's a name").write_bytes(os.urandom(300_000))
    (data / os.fsdecode(b"not UTF-8 \xff")).write_text("text")
    (data / "tool").write_text("#!/bin/sh\n")
    (data / "tool").chmod(0o755)
    tpukit.succeeds("cp", str(data), "pod:")
    for n in ALL:
        copy = workers.host.home(n) / "data"
        assert (copy / "deep" / "it's a name").read_bytes() == (
            data / "deep" / "it's a name"
        ).read_bytes()
        assert os.access(copy / "tool", os.X_OK)
    back = tmp_path / "back"
    odd = os.fsdecode(b"pod:data/not UTF-8 \xff")
    tpukit.succeeds("cp", odd, str(tmp_path / "odd"))
    assert (tmp_path / "odd").read_text() == "text"
    tpukit.succeeds("cp", "pod:data/deep", str(back), "--worker", "3")
    (file,) = [path for path in back.rglob("*") if path.is_file()]
    assert file.read_bytes() == (data / "deep" / "it's a name").read_bytes()


def test_a_working_tree_is_pushed_to_every_worker_once(
    workers: OpenSshWorkers, tmp_path: Path
) -> None:
    tree = tmp_path / "project"
    tree.mkdir()
    (tree / "train.py").write_text("print('trained')\n")
    subprocess.run(["git", "init", "-q", tree], check=True)
    workers.tpukit.succeeds("push", "pod", str(tree))
    done = workers.tpukit.succeeds("run", "pod", "--", "python3 project/train.py")
    assert printed(done) == [f"[{n}] trained" for n in ALL]
    again = workers.tpukit.document("push", "pod", str(tree))
    assert [each["result"] for each in again["copied"]] == ["unchanged"] * 4


def test_a_push_that_is_cut_off_anywhere_leaves_each_file_old_or_new_and_the_next_one_finishes(
    workers: OpenSshWorkers, tmp_path: Path
) -> None:
    """At a random moment the client is killed, or a worker's server is restarted."""
    seed = secrets.randbits(32)
    tree, chance = tmp_path / "cut", random.Random(seed)
    tree.mkdir()
    trees = [workers.host.home(n) / "cut" for n in ALL]
    #: What shows on a worker how far a push has come.
    signs = [".tpukit/.tpukit-upload-*", ".tpukit/new", ".tpukit/new/files/c", "only-in-{number}"]

    def version(number: int) -> dict[str, bytes]:
        names = [f"{folder}/{name}" for folder in "abc" for name in range(30)]
        return dict.fromkeys([*names, f"only-in-{number}"], b"%d\n" % number * 10_000)

    def found(place: Path) -> dict[str, bytes]:
        files = {}
        for folder, names, here in os.walk(place):  # what unpacks there may be at work still
            names[:] = set(names) - {".tpukit"}
            for each in here:
                with suppress(FileNotFoundError):  # it goes at last
                    path = Path(folder, each)
                    files[str(path.relative_to(place))] = path.read_bytes()
        return files

    def write(number: int) -> None:
        shutil.rmtree(tree)
        for name, held in version(number).items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(held)

    def came(process: subprocess.Popen[str], place: Path, sign: str) -> None:
        eventually(lambda: process.poll() is not None or any(place.glob(sign)))

    write(0)
    workers.tpukit.succeeds("push", "pod", str(tree))
    for number in range(1, 7):
        write(number)
        place, sign = chance.choice(trees), chance.choice(signs).format(number=number)
        with running(workers.tpukit, "push", "pod", str(tree)) as process:
            came(process, place, sign)
            if number % 2:
                process.kill()
            else:
                workers.restart(trees.index(place))
            process.wait(120)
        versions = [version(each) for each in range(number + 1)]
        for each in trees:
            now = found(each)
            assert now.keys() >= version(0).keys() & version(1).keys(), (seed, number, sign)
            for name, held in now.items():
                assert held in [one.get(name) for one in versions], (seed, number, sign, name)
    workers.tpukit.succeeds("push", "pod", str(tree))
    assert [found(tree) == version(6) for tree in trees] == [True] * 4


def test_a_detached_run_outlives_its_connection_and_is_followed_listed_and_killed(
    workers: OpenSshWorkers,
) -> None:
    tpukit = workers.tpukit
    command = "echo began ${HOME##*-}; sleep 1000"
    tpukit.succeeds("run", "pod", "--detach", "--run-id", "long", "--", command)
    eventually(lambda: tpukit.succeeds("logs", "pod", "long").stdout.count("began") == 4)
    lines = tpukit.succeeds("logs", "pod", "long").stdout.splitlines()
    assert sorted(lines) == [f"[{n}] began {n}" for n in ALL]
    assert _stand(tpukit, "long") == [("running", None)] * 4
    for n in ALL:  # what runs is nobody's child but init's
        workers.restart(n)
    assert _stand(tpukit, "long") == [("running", None)] * 4
    tpukit.succeeds("kill", "pod", "long")
    assert _stand(tpukit, "long") == [("finished", 143)] * 4
    assert not workers.processes()
    tpukit.ends_with(143, "attach", "pod", "long")


def test_ssh_passes_input_output_and_status_through(tpukit: Tpukit) -> None:
    words = ("ssh", "pod", "--worker", "2", "--")
    done = tpukit.ends_with(3, *words, "tr a-z A-Z; echo err >&2; exit 3", stdin="hello\n")
    assert (printed(done), done.stderr) == (["HELLO"], "err\n")
    literal = tpukit.succeeds(*words, "printf", "%s|", "a b", "$HOME", "*")
    assert printed(literal) == ["a b|$HOME|*|"]


def test_openssh_joins_a_shell_to_openssh(tpukit: Tpukit) -> None:
    done = tpukit.ends_with(4, "ssh", "pod", "--worker", "3", stdin="echo ${HOME##*-}; exit 4\n")
    assert printed(done) == ["3"]


def test_a_worker_that_is_not_who_it_should_be_gets_no_command_and_the_others_do(
    workers: OpenSshWorkers,
) -> None:
    variables = {**workers.tpukit.variables, "TPUKIT_KEEP_HINTS": "no"}  # or it proves the old key
    fresh = replace(workers.tpukit, variables=variables)
    with workers.forged(1):
        done = fresh.ends_with(9, "run", "pod", "--", ": >ran; echo ran")
    assert "is not pod worker 1" in done.stderr
    assert "our key was not used" in done.stderr
    assert printed(done) == ["[0] ran", "[2] ran", "[3] ran"]
    assert [(workers.host.home(n) / "ran").exists() for n in ALL] == [True, False, True, True]
    workers.tpukit.succeeds("run", "pod", "--", "true")


def _stand(tpukit: Tpukit, run: str) -> list[tuple[str, int | None]]:
    jobs = tpukit.document("jobs", "pod", run)["jobs"]
    return [(job["state"], job["status"]) for job in jobs]


@pytest.fixture
def ordinary(workers: OpenSshWorkers) -> OpenSshWorkers:
    """The workers, where an ordinary user with sudo logs in."""
    if not workers.host.account.made:
        pytest.skip("no ordinary user can be made: sudo and unreadable files are NOT checked")
    return workers


def test_a_file_that_only_root_reads_is_an_error_and_empties_no_copy(
    ordinary: OpenSshWorkers, tmp_path: Path
) -> None:
    copy = tmp_path / "secret"
    copy.write_text("the copy of yesterday\n")
    done = ordinary.tpukit.ends_with(1, "cp", "pod:secret", str(copy))
    assert "error: the worker's user may not read all of ./secret" in done.stderr
    assert f"fix: tpukit cp --sudo --worker 0 pod:secret {copy}\n" in done.stderr
    assert copy.read_text() == "the copy of yesterday\n"
    ordinary.tpukit.succeeds("cp", "--sudo", "pod:secret", str(copy))
    assert copy.read_text() == "only root reads this\n"
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_folder_with_a_file_that_only_root_reads_is_an_error(
    ordinary: OpenSshWorkers, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    done = ordinary.tpukit.ends_with(1, "cp", "pod:by-root", str(copy), "--worker", "0")
    assert "by-root/secret" in done.stderr
    assert not copy.exists()
    ordinary.tpukit.succeeds("cp", "--sudo", "pod:by-root", str(copy))
    assert (copy / "secret").read_text() == "only root reads this\n"


def test_ctrl_c_ends_what_sudo_runs(ordinary: OpenSshWorkers) -> None:
    seconds = f"3600.{secrets.randbelow(10**9)}"
    command = f"sudo -n sleep {seconds}"
    with running(ordinary.tpukit, "run", "pod", "--worker", "0", "--", command) as process:
        eventually(lambda: sleepers(seconds))
        process.send_signal(signal.SIGINT)  # of two at once one is from the terminal
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    left = sleepers(seconds)
    for program in left:
        program.kill()
    assert not left


def test_kill_ends_what_a_detached_run_does_under_sudo(ordinary: OpenSshWorkers) -> None:
    seconds = f"3600.{secrets.randbelow(10**9)}"
    words = ("run", "pod", "--worker", "0", "--detach", "--run-id", "as-root")
    ordinary.tpukit.succeeds(*words, "--", f"sudo -n sleep {seconds}")
    eventually(lambda: sleepers(seconds))
    ordinary.tpukit.succeeds("kill", "pod", "as-root", "--worker", "0")
    assert not sleepers(seconds)


def test_a_greeting_that_ends_no_line_is_in_nobody_s_way(
    ordinary: OpenSshWorkers, tmp_path: Path
) -> None:
    tpukit, tree = ordinary.tpukit, tmp_path / "greeted"
    tree.mkdir()
    (tree / "file").write_text("contents\n")
    tpukit.succeeds("run", "pod", "--detach", "--run-id", "greeted", "--", "sleep 1000")
    assert _stand(tpukit, "greeted") == [("running", None)] * 4
    tpukit.succeeds("kill", "pod", "greeted")
    tpukit.succeeds("cp", str(tree / "file"), "pod:")
    tpukit.succeeds("cp", "pod:file", str(tmp_path / "back"))
    tpukit.succeeds("push", "pod", str(tree))
    assert (tmp_path / "back").read_text() == "contents\n"


def test_a_worker_that_is_lost_while_its_log_is_followed_is_told_and_given_up(
    workers: OpenSshWorkers,
) -> None:
    """The others are followed to the end."""
    command = "echo begun; until [ -e ~/go-on ]; do sleep 0.05; done; echo over"
    run = workers.tpukit.succeeds("run", "pod", "--detach", "--", command).stdout.strip()
    words = ("logs", "pod", run, "-f", "--timeout", "5s")
    try:
        with running(workers.tpukit, *words) as process:
            assert process.stdout
            assert process.stderr
            assert sorted(process.stdout.readline() for _ in ALL) == [f"[{n}] begun\n" for n in ALL]
            workers.host.stop(2)
            while "pod worker 2: lost, connecting again" not in (line := process.stderr.readline()):
                assert line, "it ended"
            for n in (0, 1, 3):
                (workers.host.home(n) / "go-on").touch()
            out, told = process.communicate(timeout=120)
    finally:
        workers.host.serve(workers.workers[2])
    assert process.returncode == 255
    assert sorted(out.splitlines()) == [f"[{n}] over" for n in (0, 1, 3)]
    assert "warning: pod worker 2: " in told
    (workers.host.home(2) / "go-on").touch()
    done = workers.tpukit.succeeds("logs", "pod", run, "-f", "--worker", "2")
    assert done.stdout == "begun\nover\n"

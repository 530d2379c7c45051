"""The same commands where OpenSSH's own server answers, which is what runs on a TPU VM."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeys.command_line import Tpukit
from journeys.openssh_crew import OpenSshCrew, eventually, openssh_crew, running

pytestmark = pytest.mark.journey

ALL = range(4)


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSshCrew]:
    """Four servers, one slice named pod. A worker's number is the last word of its home."""
    with openssh_crew(tmp_path_factory.mktemp("openssh"), "v3-32") as found:
        yield found


@pytest.fixture
def tpukit(crew: OpenSshCrew) -> Tpukit:
    return crew.tpukit


def test_run_keeps_each_worker_s_streams_and_status_apart(tpukit: Tpukit) -> None:
    command = 'n=${HOME##*-}; echo "out $n"; echo "err $n" >&2; test $n != 2 || exit 7'
    done = tpukit.ends_with(7, "run", "pod", "--", command)
    assert sorted(done.stdout.splitlines()) == [f"[{n}] out {n}" for n in ALL]
    told = done.stderr.splitlines()
    assert sorted(told[:4]) == [f"[{n}] err {n}" for n in ALL]
    assert told[4:] == [
        "warning: pod worker 2 exited with status 7",
        "warning: pod worker 2: err 2",
    ]


def test_a_command_that_a_signal_ends_has_128_and_its_number(tpukit: Tpukit) -> None:
    """OpenSSH says so in a message of its own, not with a status."""
    done = tpukit("run", "pod", "--worker", "1", "--", "kill -9 $$")
    assert (done.returncode, done.stdout) == (128 + signal.SIGKILL, "")


def test_ten_megabytes_arrive_whole_from_every_worker(tpukit: Tpukit) -> None:
    folder = tpukit.home / "ten"
    size = 10_000_000
    command = f'yes "${{HOME##*-}}" | head -c {size}'
    tpukit.succeeds("run", "pod", "--output-directory", str(folder), "--", command)
    for n in ALL:
        expected = hashlib.sha256(f"{n}\n".encode() * (size // 2)).hexdigest()
        found = hashlib.sha256((folder / f"pod-{n}.stdout").read_bytes()).hexdigest()
        assert found == expected, n


def test_ctrl_c_ends_the_command_on_every_worker(crew: OpenSshCrew) -> None:
    """Also one that ignores INT, and what it has started."""
    beats = [crew.host.home(n) / "beat" for n in ALL]
    command = "trap '' INT; (while :; do : >beat; sleep 0.1; done) & wait"
    with running(crew.tpukit, "run", "pod", "--", command) as process:
        eventually(lambda: all(beat.exists() for beat in beats))
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "the command was ended on every worker" in told
    assert not crew.processes()


def test_ctrl_c_waits_for_what_the_command_leaves_behind(crew: OpenSshCrew) -> None:
    """It ignores TERM and holds none of the command's streams: the command itself ends before."""
    beat = crew.host.home(0) / "stray"
    stray = "trap '' TERM; while :; do : >stray; sleep 0.1; done"
    command = f"({stray}) >/dev/null 2>&1 & wait"
    with running(crew.tpukit, "run", "pod", "--worker", "0", "--", command) as process:
        eventually(beat.exists)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "the command was ended on every worker" in told
    assert not crew.processes()


def test_files_and_folders_come_and_go(crew: OpenSshCrew, tmp_path: Path) -> None:
    tpukit, data = crew.tpukit, tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "it's a name").write_bytes(os.urandom(300_000))
    (data / "tool").write_text("#!/bin/sh\n")
    (data / "tool").chmod(0o755)
    tpukit.succeeds("cp", str(data), "pod:")
    for n in ALL:
        copy = crew.host.home(n) / "data"
        assert (copy / "deep" / "it's a name").read_bytes() == (
            data / "deep" / "it's a name"
        ).read_bytes()
        assert os.access(copy / "tool", os.X_OK)
    back = tmp_path / "back"
    tpukit.succeeds("cp", "pod:data/deep", str(back), "--worker", "3")
    (found,) = [each for each in back.rglob("*") if each.is_file()]
    assert found.read_bytes() == (data / "deep" / "it's a name").read_bytes()


def test_a_working_tree_is_pushed_to_every_worker_once(crew: OpenSshCrew, tmp_path: Path) -> None:
    tree = tmp_path / "project"
    tree.mkdir()
    (tree / "train.py").write_text("print('trained')\n")
    subprocess.run(["git", "init", "-q", tree], check=True)
    crew.tpukit.succeeds("push", "pod", str(tree))
    done = crew.tpukit.succeeds("run", "pod", "--", "python3 project/train.py")
    assert sorted(done.stdout.splitlines()) == [f"[{n}] trained" for n in ALL]
    again = crew.tpukit.document("push", "pod", str(tree))
    assert [each["result"] for each in again["copied"]] == ["unchanged"] * 4


def test_a_detached_run_outlives_its_connection_and_is_followed_listed_and_killed(
    crew: OpenSshCrew,
) -> None:
    tpukit = crew.tpukit
    command = "echo began ${HOME##*-}; sleep 1000"
    tpukit.succeeds("run", "pod", "--detach", "--run-id", "long", "--", command)
    eventually(lambda: tpukit.succeeds("logs", "pod", "long").stdout.count("began") == 4)
    lines = tpukit.succeeds("logs", "pod", "long").stdout.splitlines()
    assert sorted(lines) == [f"[{n}] began {n}" for n in ALL]
    assert _stand(tpukit, "long") == [("running", None)] * 4
    for n in ALL:  # what runs is nobody's child but init's
        crew.restart(n)
    assert _stand(tpukit, "long") == [("running", None)] * 4
    tpukit.succeeds("kill", "pod", "long")
    assert _stand(tpukit, "long") == [("finished", 143)] * 4
    assert not crew.processes()
    tpukit.ends_with(143, "attach", "pod", "long")


def test_ssh_passes_input_output_and_status_through(tpukit: Tpukit) -> None:
    words = ("ssh", "pod", "--worker", "2", "--")
    done = tpukit.ends_with(3, *words, "tr a-z A-Z; echo err >&2; exit 3", stdin="hello\n")
    assert (done.stdout, done.stderr) == ("HELLO\n", "err\n")
    literal = tpukit.succeeds(*words, "printf", "%s|", "a b", "$HOME", "*")
    assert literal.stdout == "a b|$HOME|*|"


def test_openssh_joins_a_shell_to_openssh(tpukit: Tpukit) -> None:
    done = tpukit.ends_with(4, "ssh", "pod", "--worker", "3", stdin="echo ${HOME##*-}; exit 4\n")
    assert done.stdout == "3\n"


def test_a_worker_that_is_not_who_it_should_be_gets_no_command_and_the_others_do(
    crew: OpenSshCrew,
) -> None:
    with crew.forged(1):
        done = crew.tpukit.ends_with(9, "run", "pod", "--", ": >ran; echo ran")
    assert "is not pod worker 1" in done.stderr
    assert "our key was not used" in done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] ran", "[2] ran", "[3] ran"]
    assert [(crew.host.home(n) / "ran").exists() for n in ALL] == [True, False, True, True]
    crew.tpukit.succeeds("run", "pod", "--", "true")


def _stand(tpukit: Tpukit, run: str) -> list[tuple[str, int | None]]:
    jobs = tpukit.document("jobs", "pod", run)["jobs"]
    return [(each["state"], each["status"]) for each in jobs]

"""Workers that change under a user's hands: made anew, impersonated, moved, restarted, asleep."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest
from support.command_line import Finished, Tpukit
from support.openssh_workers import OpenSshWorkers, openssh_workers, running
from support.processes import eventually

from tpukit.emulator.core.places import PROJECT, ZONE

pytestmark = pytest.mark.journey

#: Lines that a followed run writes; it waits for its reader at the marks.
LINES, MARKS = 300, (100, 200)
#: Seconds of silence after which a connection is given up, and some more.
LONGER_THAN_SILENCE = 13


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tpukit]:
    """The program with a slice named pod, of one worker that shares this machine's files."""
    variables = {"TPUKIT_LOCAL": "1", "TPUKIT_SILENCE": f"{LONGER_THAN_SILENCE - 1}"}
    tpukit = Tpukit(tmp_path_factory.mktemp("trust"), variables)
    tpukit.succeeds("emulator", "start", "--engine", "portable", "--create-seconds", "0.2")
    create(tpukit, "pod")
    yield tpukit
    tpukit("emulator", "stop")


@pytest.fixture
def pod(one: Tpukit) -> Iterator[Tpukit]:
    """The same, and no fault left behind."""
    yield one
    one.emulator.clear_worker_faults()


def create(tpukit: Tpukit, name: str) -> None:
    tpukit.succeeds("create", "v3-8", name)
    tpukit.succeeds("firewall", "apply", name)


class Followed:
    """A command that follows a detached run of numbered lines, line by line."""

    def __init__(self, tpukit: Tpukit, run: str, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._tpukit = tpukit
        self._run = run

    def read_to(self, number: int) -> None:
        """Read until a line was told."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if self.lines[-1] == f"line {number}":
                return
        raise AssertionError(f"it ended after {self.lines[-3:]}: {self.rest()}")

    def written(self, number: int) -> bool:
        """Return whether the run has come to a line, told or not."""
        (log,) = self._tpukit.home.rglob(f".tpukit/jobs/run.{self._run}@*/log")
        return f"line {number}\n" in log.read_text()

    def rest(self) -> tuple[int, str]:
        """Read to the end; return the exit status and what was said on stderr."""
        out, told = self.process.communicate(timeout=300)
        self.lines += out.splitlines()
        return self.process.returncode, told

    def ends_whole(self, status: int) -> None:
        """Read to the end, where every line was told once."""
        for mark in MARKS:
            release(self._tpukit, self._run, mark)
        found, told = self.rest()
        assert found == status, told
        assert self.lines == [f"line {number}" for number in range(1, LINES + 1)]


def begin(tpukit: Tpukit, run: str) -> None:
    """Start a detached run that ends with status 5."""
    go_on = tpukit.home / run
    go_on.mkdir()
    command = (
        f"echo x >>{run}.starts; i=0; while [ $i -lt {LINES} ]; do i=$((i + 1)); echo line $i; "
        f"case $i in {'|'.join(map(str, MARKS))}) "
        f"until [ -e {go_on}/$i ]; do sleep 0.05; done;; esac; done; exit 5"
    )
    tpukit.succeeds("run", "pod", "--detach", "--run-id", run, "--", command)


@contextmanager
def following(tpukit: Tpukit, run: str, verb: str, *flags: str) -> Iterator[Followed]:
    with running(tpukit, verb, "pod", run, *flags) as process:
        yield Followed(tpukit, run, process)


def release(tpukit: Tpukit, run: str, number: int) -> None:
    """Let the run go on after a line at which it waits."""
    (tpukit.home / run / str(number)).touch()


@pytest.fixture(scope="module")
def workers() -> Iterator[OpenSshWorkers]:
    """One worker that is OpenSSH's own server: what ran there goes on where it moves."""
    with openssh_workers("v3-8") as found:
        yield found


def test_a_slice_made_anew_under_its_name_and_address_is_known_by_its_new_keys(
    pod: Tpukit,
) -> None:
    """Whoever deleted the old one told nobody here, so that its pins are still about."""
    pod.succeeds("ssh-config", "pod")
    assert by_openssh(pod).returncode == 0
    before = place_and_key(pod)
    assert holding(pod, before[1])
    make_anew(pod)
    after = place_and_key(pod)
    assert after[0] == before[0], "the address is not the same: nothing would be in the way"
    assert after[1] != before[1]
    # OpenSSH's own configuration is as it was: it refuses what it does not know.
    refused = by_openssh(pod)
    assert refused.returncode == 255
    assert "verification failed" in refused.stderr

    assert pod.succeeds("run", "pod", "--", "echo here").stdout == "here\n"
    pod.ends_with(3, "ssh", "pod", stdin="exit 3\n")
    pod.succeeds("run", "pod", "--detach", "--run-id", "anew", "--", "echo from the new one")
    assert pod.succeeds("logs", "pod", "anew", "-f").stdout == "from the new one\n"
    pod.succeeds("ssh-config", "pod")
    assert by_openssh(pod).returncode == 0
    assert not holding(pod, before[1])


def test_a_deleted_slice_leaves_no_pin(pod: Tpukit) -> None:
    pod.succeeds("create", "v3-8", "brief")
    pod.succeeds("ssh-config", "brief")
    pod.succeeds("ssh", "brief", stdin="exit\n")
    key = place_and_key(pod, "brief")[1]
    assert {each.parent.name for each in holding(pod, key)} >= {"ssh"}
    pod.succeeds("delete", "brief", "--yes")
    assert not holding(pod, key)


def test_who_follows_a_slice_that_is_made_anew_is_told_that_the_run_is_gone(pod: Tpukit) -> None:
    begin(pod, "old")
    with following(pod, "old", "attach") as followed:
        followed.read_to(MARKS[0])
        with asleep(followed.process):  # else it may look while there is no slice
            make_anew(pod)
        status, told = followed.rest()
    assert status == 7, told
    assert "slice pod is gone" in told
    assert followed.lines == [f"line {number}" for number in range(1, MARKS[0] + 1)]


def test_an_impostor_at_the_worker_s_address_is_refused_in_the_middle_of_a_run(
    pod: Tpukit,
) -> None:
    begin(pod, "watched")
    with following(pod, "watched", "logs", "-f") as followed:
        followed.read_to(MARKS[0])
        pod.emulator.add_worker_fault({"node": "pod", "fault": "swapped-host-key"})
        cut_off(pod)
        status, told = followed.rest()
    assert status == 9, told
    assert "is not pod worker 0" in told
    assert pod.ends_with(9, "run", "pod", "--", ": >ran").stdout == ""
    pod.emulator.clear_worker_faults("pod")
    # The run itself knows nothing of it.
    with following(pod, "watched", "attach") as followed:
        followed.ends_whole(5)
    done = pod.succeeds("run", "pod", "--", "echo ran*; cat watched.starts")
    assert done.stdout == "ran*\nx\n"


@pytest.mark.parametrize(
    ("words", "status", "stranger"),
    [(("logs", "-f"), 0, True), (("attach",), 5, False)],
    ids=["logs-from-a-stranger-s", "attach-from-nobody-s"],
)
def test_a_worker_that_moves_is_followed_to_its_new_address(
    workers: OpenSshWorkers, words: tuple[str, ...], status: int, stranger: bool
) -> None:
    """What answers at its old address is not shown our key."""
    run = f"moving-{words[0]}"
    begin(workers.tpukit, run)
    with following(workers.tpukit, run, *words) as followed:
        followed.read_to(MARKS[0])
        workers.move(0, stranger)
        release(workers.tpukit, run, MARKS[0])
        followed.read_to(MARKS[1])
        followed.ends_whole(status)
    assert (workers.host.home(0) / f"{run}.starts").read_text() == "x\n"
    if stranger:
        met = workers.host.stranger_log.read_text()
        assert "remote software version paramiko" in met
        assert "userauth-request" not in met


@pytest.mark.full_size
def test_a_worker_that_moves_long_after_it_was_lost_is_found_too(workers: OpenSshWorkers) -> None:
    """Once it was looked for, it is looked for again."""
    begin(workers.tpukit, "late")
    with following(workers.tpukit, "late", "logs", "-f") as followed:
        followed.read_to(MARKS[0])
        workers.host.stop(0)
        assert followed.process.stderr
        assert any("trying for" in line for line in followed.process.stderr)
        workers.move(0, stranger=False)
        followed.ends_whole(0)


def test_a_server_that_restarts_loses_no_line(workers: OpenSshWorkers) -> None:
    """The run goes on while nobody answers."""
    begin(workers.tpukit, "restarted")
    with following(workers.tpukit, "restarted", "logs", "-f") as followed:
        followed.read_to(MARKS[0])
        workers.host.stop(0)
        release(workers.tpukit, "restarted", MARKS[0])
        eventually(lambda: followed.written(MARKS[1]))
        workers.host.serve(workers.workers[0])
        followed.ends_whole(0)
    assert (workers.host.home(0) / "restarted.starts").read_text() == "x\n"


def test_a_server_that_refuses_for_a_while_loses_no_line(pod: Tpukit) -> None:
    begin(pod, "refused")
    with following(pod, "refused", "logs", "-f") as followed:
        followed.read_to(MARKS[0])
        pod.emulator.add_worker_fault({"node": "pod", "fault": "refusing"})
        release(pod, "refused", MARKS[0])
        eventually(lambda: followed.written(MARKS[1]))
        pod.emulator.clear_worker_faults("pod")
        followed.ends_whole(0)


def test_a_laptop_that_slept_loses_no_line_of_a_followed_run(pod: Tpukit) -> None:
    """While it sleeps the run goes on and the connection is reset."""
    begin(pod, "slept")
    with following(pod, "slept", "logs", "-f") as followed:
        followed.read_to(MARKS[0])
        with asleep(followed.process):
            cut_off(pod)
            release(pod, "slept", MARKS[0])
            eventually(lambda: followed.written(MARKS[1]))
        followed.ends_whole(0)


def test_a_laptop_that_slept_is_told_what_may_have_become_of_an_attached_command(
    pod: Tpukit,
) -> None:
    with running(pod, "run", "pod", "--", "echo x >>attached; echo began; sleep 1000") as process:
        assert process.stdout
        assert process.stdout.readline() == "began\n"
        with asleep(process):
            cut_off(pod)
        out, told = process.communicate(timeout=300)
    assert (process.returncode, out) == (255, ""), told
    assert "lost pod worker 0 while a command ran" in told
    assert "may still be running" in told
    assert pod.succeeds("run", "pod", "--", "cat attached").stdout == "x\n"


def test_a_sleep_that_the_connection_outlasts_is_not_taken_for_silence(pod: Tpukit) -> None:
    """Who is asleep does not wait, however long it is."""
    command = "echo began; until [ -e go ]; do sleep 0.1; done; echo went; exit 6"
    with running(pod, "run", "pod", "--", command) as process:
        assert process.stdout
        assert process.stdout.readline() == "began\n"
        with asleep(process):
            time.sleep(LONGER_THAN_SILENCE)
        pod.succeeds("run", "pod", "--", ": >go")
        out, told = process.communicate(timeout=300)
    assert (process.returncode, out) == (6, "went\n"), told


def make_anew(tpukit: Tpukit) -> None:
    """Delete the slice as from elsewhere; make it again where it was, with new host keys."""
    tpukit.emulator.add_worker_fault({"node": "pod", "fault": "reused-address", "times": 1})
    tpukit.succeeds("emulator", "preempt", "pod", "--vanish")
    create(tpukit, "pod")


def cut_off(tpukit: Tpukit) -> None:
    """Reset every connection to the worker."""
    anything = "po*"  # another pattern than that of the faults that stay
    tpukit.emulator.add_worker_fault({"node": anything, "fault": "refusing"})
    tpukit.emulator.clear_worker_faults(anything)


@contextmanager
def asleep(process: subprocess.Popen[str]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    sleeper = psutil.Process(process.pid)
    eventually(lambda: sleeper.status() == psutil.STATUS_STOPPED)
    yield
    process.send_signal(signal.SIGCONT)


def place_and_key(tpukit: Tpukit, name: str = "pod") -> tuple[str, str]:
    """Return worker 0's address with its port, and the body of its host key."""
    api = tpukit.emulator
    path = f"{api.url}/v2/projects/{PROJECT}/locations/{ZONE}/nodes/{name}"
    head = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    with urlopen(Request(path, headers=head), timeout=60) as answer:
        (endpoint,) = json.load(answer)["networkEndpoints"]
    asked = Request(f"{path}:getGuestAttributes", b"{}", head)
    with urlopen(asked, timeout=60) as answer:
        (worker,) = json.load(answer)["guestAttributes"]
    entries = worker["queryValue"]["items"]
    published = {entry["namespace"]: entry["value"] for entry in entries}
    return f"{endpoint['ipAddress']}:{published.get('ssh', 22)}", published["hostkeys"]


def holding(tpukit: Tpukit, key: str) -> list[Path]:
    """Return the files of tpukit's own, the emulator's left out, that speak of a host key."""
    home = tpukit.home / "tpukit"
    files = [path for path in home.rglob("*") if path.is_file() and "emulator" not in path.parts]
    return [file for file in files if key.encode() in file.read_bytes()]


def by_openssh(tpukit: Tpukit) -> Finished:
    """Run `true` with the system's OpenSSH and the configuration that tpukit has written."""
    (config,) = (tpukit.home / "tpukit").rglob("ssh/config")
    return subprocess.run(
        ["ssh", "-F", str(config), "-o", "BatchMode=yes", "tpu.pod", "true"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

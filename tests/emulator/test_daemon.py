"""The emulator as a process: started, found, stopped, and killed without warning."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.emulated_workers import USER, make_key, needs_curl, needs_root
from support.processes import alive, eventually

from tpukit.emulator.process import daemon
from tpukit.emulator.process.home import LARGEST_LOG, EmulatorHome, RunningEmulator, exclusively
from tpukit.emulator.workers import processes
from tpukit.errors import BadInput, NotFound, TpukitError

pytestmark = pytest.mark.process

PARENT = "v2/projects/tpukit-local/locations/us-central1-a/nodes"


@dataclass
class Emulation:
    """An emulator in a directory of its own, with a READY node that lets `ada` in."""

    directory: Path
    key: Path

    def call(self, path: str, body: Any = None) -> Any:
        running = daemon.running(self.directory)
        assert running is not None
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{running.url}/{path}", data)
        request.add_header("Authorization", f"Bearer {running.token}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def node(self, name: str = "n1") -> dict[str, Any]:
        """Create a node behind a rule that admits this machine, and return it READY."""
        key = self.key.with_suffix(".pub").read_text().strip()
        body = {
            "acceleratorType": "v3-8",
            "runtimeVersion": "tpu-ubuntu2204-base",
            "networkConfig": {"enableExternalIps": True},
            "metadata": {"ssh-keys": f"{USER}:{key}"},
        }
        self.call(f"{PARENT}?nodeId={name}", body)
        rule = {"name": f"ssh-{name}", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
        self.call("compute/v1/projects/tpukit-local/global/firewalls", rule)
        eventually(lambda: self.get(name)["state"] == "READY")
        return self.get(name)

    def get(self, name: str = "n1") -> dict[str, Any]:
        return dict(self.call(f"{PARENT}/{name}"))

    def host_key(self, name: str = "n1") -> tuple[str, str, int]:
        """Return the address, the host key and the SSH port as the API answers them."""
        path = f"{PARENT}/{name}:getGuestAttributes"
        (answer,) = self.call(path, {"workerIds": []})["guestAttributes"]
        items = {
            (item["namespace"], item["key"]): item["value"]
            for item in answer["queryValue"]["items"]
        }
        address = self.get(name)["networkEndpoints"][0]["ipAddress"]
        port = int(items.get(("ssh", "port"), 22))
        return address, items["hostkeys", "ssh-ed25519"], port

    def ssh(self, command: str) -> str:
        """Run a command on worker 0 with OpenSSH, pinned to the key of the guest attributes."""
        address, key, port = self.host_key()
        known = self.key.with_name("known")
        name = address if port == 22 else f"[{address}]:{port}"
        body = key if key.startswith("ssh-") else f"ssh-ed25519 {key}"
        known.write_text(f"{name} {body}\n")
        options = ["-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={known}"]
        line = ["ssh", "-F", "none", "-i", str(self.key), *options, "-p", str(port)]
        line += ["-o", "LogLevel=ERROR", f"{USER}@{address}", command]
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=True
        )
        return done.stdout.decode().strip()

    def jobs(self) -> list[int]:
        """Start jobs that try to stay: detached, and deaf to TERM."""
        lines = ["setsid sleep 1000", "(trap '' TERM HUP; exec sleep 1001)"]
        return [self.job(line) for line in lines]

    def job(self, line: str) -> int:
        return int(self.ssh(f"{line} </dev/null >/dev/null 2>&1 & echo $!"))


@contextlib.contextmanager
def emulated(place: Path) -> Iterator[Emulation]:
    daemon.start(place / "emulator", create_seconds=0.05)
    try:
        yield Emulation(place / "emulator", make_key(place / "key"))
    finally:
        daemon.stop(place / "emulator")


@pytest.fixture
def emulation(tmp_path: Path) -> Iterator[Emulation]:
    """An emulator for one test, which may stop, kill or damage it."""
    with emulated(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """One emulator with a READY node for every test that leaves it as it is."""
    with emulated(tmp_path_factory.mktemp("shared")) as found:
        found.node()
        yield found


def deaf(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def found(emulation: Emulation) -> RunningEmulator:
    running = daemon.running(emulation.directory)
    assert running is not None
    return running


def test_start_gives_an_emulator_that_answers(shared):
    running = found(shared)
    assert shared.call("_emulator/v1/status") is not None
    assert psutil.Process(running.pid).ppid() == running.guardian
    assert running.engine == "portable"


def test_starting_again_gives_the_same_emulator(shared):
    assert daemon.start(shared.directory) == found(shared)


def test_an_engine_that_does_not_exist_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(BadInput, match="unknown engine: docker"):
        daemon.start(tmp_path / "emulator", engine="docker")
    assert list(tmp_path.iterdir()) == []


def test_starting_many_times_at_once_gives_one_emulator(tmp_path):
    directory = tmp_path / "emulator"
    started: list[RunningEmulator] = []
    threads = [
        threading.Thread(target=lambda: started.append(daemon.start(directory))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    daemon.stop(directory)
    assert len(started) == 4
    assert len({running.pid for running in started}) == 1


def test_two_directories_are_two_emulators_that_never_meet(shared, tmp_path):
    other = tmp_path / "other"
    try:
        running = daemon.start(other)
        assert running.url != found(shared).url
        assert running.token != found(shared).token
        daemon.stop(other)
        assert shared.ssh("echo here") == "here"
    finally:
        daemon.stop(other)


def test_everything_in_the_directory_is_for_its_owner_alone(shared):
    assert stat.S_IMODE(shared.directory.stat().st_mode) == 0o700
    open_to_others = [
        path.name for path in shared.directory.iterdir() if path.stat().st_mode & 0o077
    ]
    assert open_to_others == []


def test_environment_names_the_variables_of_gcloud(shared):
    url = found(shared).url
    variables = daemon.environment(shared.directory)
    assert variables["CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"] == f"{url}/"
    assert variables["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] == f"{url}/compute/v1/"
    token = Path(variables["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]).read_text().strip()
    assert token == found(shared).token
    # What gcloud's TPU commands call beside: without an override they call Google.
    for name in ("OSLOGIN", "CLOUDRESOURCEMANAGER", "SERVICEUSAGE", "IAM"):
        assert variables[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}"] == f"{url}/"


def test_environment_leads_past_proxies_where_there_are_any(shared):
    """A proxy does not reach this machine, and would be told the token."""
    for around, exceptions in (
        ({}, None),
        ({"HTTPS_PROXY": "", "NO_PROXY": "a"}, None),
        ({"HTTPS_PROXY": "http://p:1"}, "127.0.0.1"),
        ({"all_proxy": "http://p:1", "no_proxy": "a,b", "NO_PROXY": "c"}, "a,b,127.0.0.1"),
        ({"http_proxy": "http://p:1", "NO_PROXY": "127.0.0.1"}, "127.0.0.1"),
        ({"http_proxy": "http://p:1", "NO_PROXY": "*"}, "*"),
    ):
        variables = daemon.environment(shared.directory, around=around)
        assert variables.get("no_proxy") == variables.get("NO_PROXY") == exceptions


def test_environment_without_an_emulator_says_how_to_start_one(tmp_path):
    with pytest.raises(NotFound) as caught:
        daemon.environment(tmp_path)
    assert str(caught.value.fix) == "tpukit emulator start"


@needs_curl
def test_a_project_has_one_number_for_its_workers_and_in_the_apis(shared):
    number = shared.call("compute/v1/projects/tpukit-local")["id"]
    ask = "curl -s -H 'Metadata-Flavor: Google' --noproxy '*' http://$GCE_METADATA_HOST"
    ask += "/computeMetadata/v1"
    told = shared.ssh(f"{ask}/project/numeric-project-id; echo; {ask}/instance/attributes/tpu-env")
    first, *lines = told.splitlines()
    assert first == number
    assert f"CONSUMER_PROJECT_NUMBER: '{number}'" in lines


def test_stop_ends_everything_and_says_whether_anything_ran(emulation):
    emulation.node()
    address, _, port = emulation.host_key()
    jobs = [*emulation.jobs(), emulation.job("env -i setsid sleep 1002")]
    running = found(emulation)
    assert daemon.stop(emulation.directory) is True
    assert daemon.stop(emulation.directory) is False
    assert daemon.running(emulation.directory) is None
    assert [alive(pid) for pid in [running.pid, running.guardian, *jobs]] == [False] * 5
    # The kernel takes back the sockets of a process that has ended.
    eventually(lambda: deaf(address, port))


def test_signals_that_come_at_once_end_the_emulator_all_the_same(emulation):
    running = found(emulation)
    for _ in range(200):
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGTERM)
    eventually(lambda: not alive(running.guardian))


@pytest.mark.parametrize("victim", ["pid", "guardian"])
def test_after_kill_9_of_either_process_nothing_of_the_emulator_is_left(emulation, victim):
    emulation.node()
    address, _, port = emulation.host_key()
    jobs = emulation.jobs()
    if sys.platform == "linux":  # elsewhere a job that clears its environment is out of sight
        jobs.append(emulation.job("env -i setsid sleep 1002"))
    running = found(emulation)
    with marked_elsewhere(emulation) as process:
        os.kill(getattr(running, victim), signal.SIGKILL)
        survivors = [running.pid, running.guardian, process.pid, *jobs]
        eventually(lambda: not any(alive(pid) for pid in survivors))
    eventually(lambda: deaf(address, port))
    assert daemon.running(emulation.directory) is None


@contextlib.contextmanager
def marked_elsewhere(emulation: Emulation) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of a worker that another one has adopted: only its mark tells whose it is."""
    variables = {processes.MARKER: f"{EmulatorHome(emulation.directory).identity()}/n1"}
    with subprocess.Popen(["sleep", "1000"], env=variables) as process:
        try:
            yield process
        finally:
            process.kill()


def test_orphans_that_ended_do_not_stay_as_zombies(shared):
    orphans = [shared.job("setsid sleep 0.1") for _ in range(3)]
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in orphans))


def test_stop_all_ends_every_emulator_and_what_killed_ones_have_left(emulation, tmp_path):
    """Those of this test alone: another emulator of this user may be at work."""
    other = tmp_path / "other"
    daemon.start(other)
    emulation.node()
    job = emulation.job("setsid sleep 1000")
    # The shell that started it may take a moment longer to go than the connection.
    eventually(lambda: [worker.pid for worker in of_workers(tmp_path)] == [job])
    running = found(emulation)
    kill_both(running)
    shutil.rmtree(emulation.directory)  # nothing but the processes themselves is left of it
    stopped, left = daemon.stop_all(tmp_path / "none", mine=lambda each: mentions(each, tmp_path))
    assert (stopped, left) == ([other], 1)
    assert not alive(job)
    assert daemon.running(other) is None


def kill_both(running: RunningEmulator) -> None:
    """Kill the emulator and its guardian at once, so that neither cleans up after the other."""
    os.kill(running.guardian, signal.SIGSTOP)
    os.kill(running.pid, signal.SIGKILL)
    os.kill(running.guardian, signal.SIGKILL)
    eventually(lambda: not alive(running.pid) and not alive(running.guardian))


def test_stop_all_where_nothing_runs_makes_nothing(tmp_path):
    assert daemon.stop_all(tmp_path / "none", mine=lambda each: False) == ([], 0)
    assert list(tmp_path.iterdir()) == []


def of_workers(place: Path) -> list[psutil.Process]:
    return [each for each in processes.marked_by_any() if mentions(each, place)]


def mentions(process: psutil.Process, place: Path) -> bool:
    try:
        return any(str(place) in text for text in (*process.cmdline(), *process.environ().values()))
    except psutil.Error:
        return False


@needs_root
@pytest.mark.parametrize("victims", [["pid"], ["guardian"], ["guardian", "pid"]])
def test_after_kill_9_nothing_of_workers_with_namespaces_is_left(tmp_path, victims):
    before = mounts(tmp_path)
    directory = tmp_path / "emulator"
    running = daemon.start(directory, create_seconds=0.05, engine="namespaces")
    assert running.engine == "namespaces"
    try:
        emulation = Emulation(directory, make_key(tmp_path / "key"))
        emulation.node()
        address, _, port = emulation.host_key()
        nap = f"1003.{secrets.randbelow(10**9):09}"  # no other test of this machine sleeps so long
        emulation.ssh(f"env -i setsid sleep {nap} </dev/null >/dev/null 2>&1 &")
        # The command has returned, and its child may not be the sleep yet.
        eventually(lambda: len(napping(nap)) == 1)
        sleeps = napping(nap)
        for victim in victims:
            os.kill(getattr(running, victim), signal.SIGKILL)
        eventually(lambda: not any(alive(sleep.pid) for sleep in sleeps))
        eventually(lambda: not alive(running.pid) and not alive(running.guardian))
        # A killed process counts as dead before the last of its threads has closed its sockets.
        eventually(lambda: deaf(address, port))
        assert mounts(tmp_path) <= before
    finally:
        daemon.stop(directory)


def mounts(folder: Path) -> set[str]:
    """Return all mounts except those of other tests, which come and go."""
    others = folder.parents[1]
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return {line for line in lines if f"{others}/" not in line or f"{folder}/" in line}


def napping(nap: str) -> list[psutil.Process]:
    """Return the processes whose program is a sleep of `nap` seconds."""
    return [process for process in psutil.process_iter() if command(process)[:2] == ["sleep", nap]]


def command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_what_both_left_when_killed_at_once_is_ended_by_the_next_start(emulation):
    emulation.node()
    jobs = emulation.jobs()
    running = found(emulation)
    kill_both(running)
    daemon.start(emulation.directory)
    assert not any(alive(pid) for pid in jobs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_keeps_nodes_addresses_host_keys_and_files_and_not_the_token(emulation, number):
    """Who has an old token, as a shell that was left open, may ask whoever took the port since."""
    emulation.node()
    before = emulation.host_key()
    emulation.ssh("echo kept > note")
    running = found(emulation)
    os.kill(running.pid, number)
    eventually(lambda: not alive(running.guardian))
    assert daemon.start(emulation.directory).token != running.token
    assert emulation.host_key() == before
    assert emulation.ssh("cat note") == "kept"


@pytest.fixture
def home(tmp_path: Path) -> EmulatorHome:
    """The directory of an emulator that does not run."""
    found = EmulatorHome(tmp_path / "emulator")
    found.create()
    return found


def test_an_emulator_that_cannot_start_says_why(home):
    (home.path / "state.db").write_text("no database")
    with pytest.raises(BadInput, match=r"state\.db cannot be used") as caught:
        daemon.start(home.path)
    assert caught.value.why.startswith("it is cut off or damaged")
    assert str(caught.value.fix).startswith(f"mv {home.path}/state.db ")


def test_an_emulator_that_ends_without_a_word_leaves_its_log(home):
    home.token_file.mkdir()
    with pytest.raises(TpukitError, match="did not start") as caught:
        daemon.start(home.path)
    assert "Is a directory" in caught.value.why
    assert str(caught.value.fix) == f"less {home.path}/emulator.log"


def test_a_stale_document_of_a_dead_emulator_is_not_believed(home, shared):
    """Not even where its numbers and its address are those of an emulator that runs elsewhere."""
    home.publish(found(shared))
    assert daemon.running(home.path) is None
    assert daemon.stop(home.path) is False
    assert daemon.running(shared.directory) == found(shared)


@pytest.mark.parametrize("content", ["", '{"pid": "x"}'])
def test_an_emulator_whose_document_is_unreadable_is_stopped_by_its_lock(emulation, content):
    home = EmulatorHome(emulation.directory)
    pids = [home.published().pid, home.published().guardian]
    home.document.write_text(content)
    began = time.monotonic()
    assert daemon.stop(emulation.directory)
    # It was asked to end: only who does not is killed, after this time.
    assert time.monotonic() - began < daemon.STOP_SECONDS
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_large_log_begins_anew_and_the_one_before_is_kept(home):
    home.log.write_bytes(bytes(LARGEST_LOG + 1))
    home.token_file.mkdir()  # it cannot start
    with pytest.raises(TpukitError):
        daemon.start(home.path)
    assert home.log.stat().st_size < LARGEST_LOG
    assert home.log.with_suffix(".log.1").stat().st_size == LARGEST_LOG + 1


def test_a_log_that_grows_large_in_one_run_begins_anew_too(home):
    program = (
        "import logging, pathlib, sys\n"
        "from tpukit.emulator.process.emulator_process import keep_log\n"
        "from tpukit.emulator.process.home import EmulatorHome\n"
        "keep_log(EmulatorHome(pathlib.Path(sys.argv[1])))\n"
        "for number in range(9):\n"
        "    logging.warning('%d %s', number, 300_000 * 'x')\n"
        "print('and what is printed')\n"
    )
    with open(home.open_log(), "wb") as log:
        words = [sys.executable, "-c", program, str(home.path)]
        subprocess.run(words, stdout=log, stderr=log, check=True)
    kept = [home.log.with_suffix(".log.1").read_text(), home.log.read_text()]
    assert max(map(len, kept)) < LARGEST_LOG + 310_000
    assert [line.split()[3] for text in kept for line in text.splitlines()] == [*"45678", "printed"]


def test_a_number_that_another_program_has_by_now_is_not_killed(emulation):
    """Process numbers are used again: a published one may be a stranger's."""
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        stale = {**vars(found(emulation)), "guardian": stranger.pid}
        (emulation.directory / "emulator.json").write_text(json.dumps(stale))
        assert daemon.stop(emulation.directory) is True
        survived = stranger.poll() is None
        stranger.kill()
    assert survived


def test_only_processes_of_this_user_are_this_user_s():
    other = {"user": 65534} if os.getuid() == 0 else None
    if other is None and psutil.Process(1).uids().real == os.getuid():
        pytest.skip("no process of another user is here: whose emulators are ended is NOT checked")
    assert processes.of_this_user(psutil.Process())
    if other is None:
        assert not processes.of_this_user(psutil.Process(1))
        return
    with subprocess.Popen(["sleep", "1000"], **other) as process:
        foreign = processes.of_this_user(psutil.Process(process.pid))
        process.kill()
    assert not foreign


@pytest.mark.parametrize("published", [True, False])
def test_an_emulator_that_does_not_answer_is_neither_running_nor_gone(home, published):
    """Nothing is started beside it, and the way out ends no slice."""
    with closed_at_once() as url, exclusively(home.lock):
        home.hold()
        if published:
            home.publish(RunningEmulator(os.getpid(), os.getpid(), url, "t", "1", "paper", 0.0))
        for ask in (daemon.running, daemon.start):
            with pytest.raises(TpukitError) as caught:
                ask(home.path, answer_seconds=0.2)
            assert caught.value.what == f"the emulator in {home.path} runs but does not answer"
            assert caught.value.reason == f"process {os.getpid()}"
            assert str(caught.value.fix).startswith("tpukit emulator status")
    assert daemon.running(home.path) is None


@contextlib.contextmanager
def closed_at_once() -> Iterator[str]:
    """Yield the address of a listener that closes what comes, as one that is overrun does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_close_all, args=(listener,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _close_all(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_the_foreground_refuses_a_directory_in_use(shared):
    line = [sys.executable, "-m", "tpukit.emulator", "--directory", str(shared.directory)]
    done = subprocess.run(line, capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    assert b"another emulator runs in" in done.stderr


def test_finding_an_emulator_loads_neither_ssh_nor_cryptography():
    """`tpukit list --local` pays for this import."""
    code = "import sys, tpukit.emulator.process.daemon; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    assert not loaded & {"asyncssh", "cryptography", "psutil", "asyncio", "http.client"}

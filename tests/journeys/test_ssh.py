"""`tpukit ssh` where OpenSSH is at both ends: it becomes OpenSSH on every route."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import Tpukit
from support.openssh_workers import OpenSshWorkers, openssh_workers
from support.processes import eventually
from support.warm_tpukit import TPUKIT

from tpukit.paths import Paths

pytestmark = pytest.mark.journey

#: Notes how it was called. One without -F is the user's own, whose configuration is beside it.
NOTING_SSH = """#!/bin/sh
printf '%s\\n' "$*" >>{notes}
case "$*" in *"-F none"*) exec {ssh} "$@" ;; *) exec {ssh} -F {config} "$@" ;; esac
"""
#: Stands for `gcloud … start-iap-tunnel NAME PORT …`, which leads to worker 0 here.
STAND_IN = """#!/bin/sh
printf 'gcloud %s\\n' "$*" >>{notes}
exec {python} -c '
import os, socket, sys, threading
worker = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def back():
    while data := worker.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    worker.sendall(data)
' {address} "$5"
"""


@pytest.fixture(scope="module")
def workers() -> Iterator[OpenSshWorkers]:
    """Four servers. A worker's number is the last word of its home."""
    with openssh_workers("v3-32") as found:
        yield found


class Programs:
    """What stands before the system's programs, and notes how it is called."""

    def __init__(self, folder: Path, workers: OpenSshWorkers) -> None:
        self.ssh = shutil.which("ssh") or "ssh"
        self.folder, self._notes = folder, folder / "notes"
        folder.mkdir()
        first, second = workers.workers[:2]
        key = Paths.from_environment(workers.tpukit.environment).key_directory / "tpukit_ed25519"
        (folder / "config").write_text(
            f"Host gate.example\n  HostName {second.address}\n  Port {second.port}\n"
            f"  User {workers.host.account.name}\n"
            f"  IdentityFile {key}\n"
            f"  HostKeyAlias gate.example\n  UserKnownHostsFile {folder}/known\n"
        )
        (folder / "known").write_text(f"gate.example {second.host_public_key}\n")
        values = {"notes": self._notes, "ssh": self.ssh, "config": folder / "config"}
        self._put("ssh", NOTING_SSH.format(**values))
        gcloud = {"notes": self._notes, "python": sys.executable, "address": first.address}
        self._put("gcloud", STAND_IN.format(**gcloud))

    @property
    def calls(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def _put(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)


@pytest.fixture
def programs(workers: OpenSshWorkers, tmp_path: Path) -> Programs:
    return Programs(tmp_path / "bin", workers)


@pytest.fixture
def tpukit(workers: OpenSshWorkers, programs: Programs) -> Tpukit:
    path = f"{programs.folder}:{os.environ['PATH']}"
    return replace(workers.tpukit, variables={**workers.tpukit.variables, "PATH": path})


#: Flags, and what then has to be among the calls of programs.
ROUTES = {
    "direct": ((), "-F none"),
    "internal": (("--internal-ips",), "-F none"),
    "worker": (("--jump", "pod:1"), "HostKeyAlias=tpukit.demo-project.us-central1-a.pod.1"),
    "host": (("--jump", "gate.example"), "-- gate.example"),
    "proxy": (("--iap",), "gcloud alpha compute start-iap-tunnel t1v-n-"),
}
#: The same; those that differ in their ProxyCommand alone are for CI.
FEWER = [
    pytest.param(route, marks=() if route in ("direct", "worker") else pytest.mark.full_size)
    for route in ROUTES
]


class OnTerminal:
    """A command line on a terminal of its own, of 100 columns and 30 rows."""

    def __init__(self, tpukit: Tpukit, *words: str) -> None:
        self.far, self._near = pty.openpty()
        self.resize(100, 30)
        self.before = termios.tcgetattr(self._near)
        self.seen = ""
        self.process = subprocess.Popen(
            [*TPUKIT, *words],
            env={**tpukit.environment, "TERM": "xterm"},
            cwd=tpukit.home,
            stdin=self._near,
            stdout=self._near,
            stderr=self._near,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    @property
    def raw(self) -> bool:
        return not termios.tcgetattr(self._near)[3] & termios.ICANON

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.far, text.encode())

    def read_until(self, wanted: str) -> None:
        give_up_at = time.monotonic() + 60
        while wanted not in self.seen:
            ended = self.process.poll() is not None
            assert time.monotonic() < give_up_at, self.seen
            if select.select([self.far], [], [], 0.1)[0]:
                self.seen += os.read(self.far, 4096).decode(errors="replace")
            else:
                assert not ended, self.seen

    def ends_with(self, status: int) -> None:
        """Hold the command to its status, and to a terminal that is as it was before."""
        assert self.process.wait(60) == status, self.seen
        assert termios.tcgetattr(self._near) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._near)
        os.close(self.far)


@contextmanager
def on_terminal(tpukit: Tpukit, *words: str) -> Iterator[OnTerminal]:
    """Run a command on a terminal, and end it where the test has failed."""
    terminal = OnTerminal(tpukit, *words)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.mark.parametrize("route", FEWER)
def test_a_script_from_a_file_is_the_shell_s_input_on_every_route(
    tpukit: Tpukit, programs: Programs, route: str
) -> None:
    flags, called = ROUTES[route]
    script = "echo worker ${HOME##*-}; exit 4\n"
    done = tpukit.ends_with(4, "ssh", "pod", *flags, stdin=script, timeout=60)
    assert "worker 0\n" in done.stdout
    assert "Pseudo-terminal" not in done.stderr, "OpenSSH was asked for one"
    assert any(called in line for line in programs.calls), programs.calls


@pytest.mark.parametrize("route", FEWER)
def test_keys_a_new_size_and_the_status_pass_on_every_route(tpukit: Tpukit, route: str) -> None:
    flags, _ = ROUTES[route]
    with on_terminal(tpukit, "ssh", "pod", *flags) as shell:
        shell.type("stty -echo; echo $((40 + 2)) columns $(tput cols || stty size)\n")
        shell.read_until("42 columns")
        shell.resize(120, 40)
        shell.type("until stty size | grep '40 120'; do sleep 0.1; done; exit 5\n")
        shell.read_until("\n40 120")
        shell.ends_with(5)


@pytest.mark.parametrize("route", ["direct", "worker"])
def test_a_terminated_shell_gives_the_terminal_back(tpukit: Tpukit, route: str) -> None:
    with on_terminal(tpukit, "ssh", "pod", *ROUTES[route][0]) as shell:
        shell.type("echo $((40 + 2))\n")
        shell.read_until("42")
        assert shell.raw
        shell.process.send_signal(signal.SIGTERM)
        shell.ends_with(255)


def test_a_lost_connection_gives_the_terminal_back(workers: OpenSshWorkers, tpukit: Tpukit) -> None:
    with on_terminal(tpukit, "ssh", "pod") as shell:
        shell.type("echo $((40 + 2))\n")
        shell.read_until("42")
        workers.restart(0)
        shell.ends_with(255)


def test_openssh_gives_a_silent_worker_up_after_the_seconds_of_the_setting(
    workers: OpenSshWorkers, tpukit: Tpukit
) -> None:
    soon = replace(tpukit, variables={**tpukit.variables, "TPUKIT_SILENCE": "3"})
    with on_terminal(soon, "ssh", "pod") as shell:
        shell.type("echo $((40 + 2))\n")
        shell.read_until("42")
        with workers.host.stalled(0):
            shell.ends_with(255)


@pytest.mark.parametrize("route", ROUTES)
def test_ssh_config_leads_openssh_by_the_same_route(
    tpukit: Tpukit, programs: Programs, route: str
) -> None:
    flags, called = ROUTES[route]
    config = tpukit.document("ssh-config", "pod", *flags)["ssh_config"]["path"]
    done = subprocess.run(
        [programs.ssh, "-F", config, "tpu.pod", "echo worker ${HOME##*-}; exit 4"],
        env=tpukit.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "worker 0\n" in done.stdout) == (4, True), done.stderr
    assert not programs.calls or any(called in line for line in programs.calls), programs.calls
    assert programs.calls or route in ("direct", "internal")


@pytest.mark.parametrize("route", ["direct", "worker"])
def test_a_connection_that_openssh_keeps_serves_shells_and_other_programs(
    workers: OpenSshWorkers, tpukit: Tpukit, programs: Programs, route: str
) -> None:
    """The setting is for our shells, --persist for the hosts: both find the same connection."""
    flags, _ = ROUTES[route]
    staying = replace(tpukit, variables={**tpukit.variables, "TPUKIT_PERSIST": "300"})
    script = "echo $SSH_CONNECTION\n"
    first = staying.succeeds("ssh", "pod", *flags, stdin=script).stdout
    assert staying.succeeds("ssh", "pod", *flags, stdin=script).stdout == first
    hosts = ("ssh-config", "pod", *flags, "--persist", "5m")
    assert f"next: tpukit {' '.join(hosts)} --install\n" in tpukit.succeeds(*hosts).stderr
    config = tpukit.document(*hosts)["ssh_config"]["path"]
    by_name = [programs.ssh, "-F", config, "tpu.pod"]

    def openssh(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=tpukit.environment, capture_output=True, text=True, timeout=60, check=False
        )

    assert openssh(*by_name, "echo $SSH_CONNECTION").stdout == first
    assert openssh(*by_name[:3], "-O", "exit", "tpu.pod").returncode == 0
    assert staying.succeeds("ssh", "pod", *flags, stdin=script).stdout != first
    assert openssh(*by_name[:3], "-O", "exit", "tpu.pod").returncode == 0


def test_a_command_has_a_terminal_where_it_is_asked_for(tpukit: Tpukit) -> None:
    with on_terminal(tpukit, "ssh", "pod", "-t", "--", "tty && stty size; exit 3") as command:
        command.read_until("30 100")
        command.ends_with(3)
    with on_terminal(tpukit, "ssh", "pod", "--", "tty; echo that was it") as command:
        command.read_until("that was it")
        assert "not a tty" in command.seen


def test_what_may_go_on_after_an_interrupt_is_said(tpukit: Tpukit) -> None:
    """As with OpenSSH: where there is no terminal the worker learns of no Ctrl-C."""
    with on_terminal(tpukit, "ssh", "pod", "--", "echo begun; sleep 5") as command:
        command.read_until("begun")
        command.type("\x03")
        command.ends_with(130)
        assert "the command may still run on pod worker 0" in os.read(command.far, 4096).decode()


def test_a_command_without_standard_input_leaves_it_to_the_next(tpukit: Tpukit) -> None:
    """Otherwise a loop that reads a list of commands runs the first alone."""

    def rest(*flags: str) -> str:
        words = [*TPUKIT, "ssh", "pod", *flags, "--", "cat >/dev/null"]
        done = subprocess.run(
            ["sh", "-c", '"$@" >/dev/null; cat', "sh", *words],
            env=tpukit.environment,
            input="the next line\n",
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    assert (rest("-n"), rest()) == ("the next line\n", "")


def test_a_tmux_session_is_made_and_found_again(workers: OpenSshWorkers, tpukit: Tpukit) -> None:
    if not (workers.host.account.made and shutil.which("tmux")):
        pytest.skip("no tmux, or no user of its own for it: --tmux is NOT checked here")
    with on_terminal(tpukit, "ssh", "pod", "--tmux") as session:
        session.type('kept=$((40 + 2)); clear; echo "has $kept"\n')
        session.read_until("has 42")
        workers.restart(0)
        session.ends_with(255)
    with on_terminal(tpukit, "ssh", "pod", "--tmux") as session:
        session.type('clear; echo "was $kept"\n')
        session.read_until("was 42")  # before it exits: tmux paints nothing after its last shell
        session.type("exit\n")
        session.ends_with(0)


def test_a_worker_without_tmux_is_told_of_before_there_is_a_terminal(
    workers: OpenSshWorkers, tpukit: Tpukit, programs: Programs
) -> None:
    if not workers.host.account.made:
        pytest.skip("no ordinary user can be made: a worker without tmux is NOT checked here")
    rc = workers.host.home(1) / ".bashrc"
    before = rc.read_text()
    rc.write_text("PATH=/nowhere\n")
    done = tpukit.ends_with(3, "ssh", "pod", "--worker", "1", "--tmux")
    rc.write_text(before)
    assert "there is no tmux on pod worker 1" in done.stderr
    install = "fix: tpukit ssh pod --worker 1 -- 'sudo apt-get install -y tmux'\n"
    assert install in done.stderr
    assert programs.calls == []


def test_a_host_key_that_does_not_match_is_named_and_openssh_never_starts(
    workers: OpenSshWorkers, tpukit: Tpukit, programs: Programs
) -> None:
    fresh = replace(tpukit, variables={**tpukit.variables, "TPUKIT_KEEP_HINTS": "no"})
    with workers.forged(1):
        done = fresh.ends_with(9, "ssh", "pod", "--worker", "1", stdin=": >shelled\n")
    assert "is not pod worker 1" in done.stderr
    assert programs.calls == []


def test_without_openssh_a_command_runs_and_a_shell_is_one_clear_error(
    workers: OpenSshWorkers, tmp_path: Path
) -> None:
    bare = replace(workers.tpukit, variables={**workers.tpukit.variables, "PATH": str(tmp_path)})
    assert "there\n" in bare.succeeds("ssh", "pod", "--", "echo there").stdout
    for flags in ((), ("--tmux",), ("-t", "--", "htop")):
        done = bare.ends_with(2, "ssh", "pod", *flags)
        assert "OpenSSH's client, which this machine lacks" in done.stderr
        assert "tpukit ssh pod -- COMMAND" in done.stderr


def test_two_shells_at_once_each_prove_their_own_worker(tpukit: Tpukit) -> None:
    shells = [on_terminal(tpukit, "ssh", "pod", "--worker", str(n)) for n in (0, 1)]
    with shells[0] as first, shells[1] as second:
        for shell, number in ((first, 0), (second, 1)):
            shell.type("echo worker ${HOME##*-}\n")
            shell.read_until(f"worker {number}")


def test_the_process_is_openssh_itself(tpukit: Tpukit) -> None:
    with on_terminal(tpukit, "ssh", "pod") as shell:
        shell.read_until("$")
        eventually(lambda: Path(f"/proc/{shell.process.pid}/comm").read_text() == "ssh\n")

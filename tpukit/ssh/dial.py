"""Routes to a worker's SSH server: direct, or through a program such as gcloud."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix, NotAuthenticated, TransportFailed, Unanswered
from tpukit.ssh.handshake import seconds
from tpukit.ssh.target import Target
from tpukit.text import one_line

LOOPBACK = "127.0.0.1"

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
#: Seconds for gcloud to find its credentials; it usually takes 1.
_GCLOUD_SECONDS = 30.0

#: Seconds for a worker itself to accept a connection.
ACCEPT_SECONDS = 10.0
#: Seconds for a program to start, to connect, and to pass on the worker's greeting.
_PROGRAM_SECONDS = 40.0

#: Opens a connected socket to a worker's SSH server before the deadline, or raises
#: `TransportFailed` or `OSError`.
Dial = Callable[[Target, Deadline], socket.socket]


def direct(target: Target, deadline: Deadline) -> socket.socket:
    """Connect to the target's address; raise `OSError`."""
    limit = seconds(deadline.within(ACCEPT_SECONDS))
    dialled = socket.create_connection((target.address, target.port), limit)
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dialled


def through_program(
    words: Callable[[Target], Sequence[str]], on_line: Callable[[str], None]
) -> Dial:
    """Return a dial that starts a program for each connection and uses its standard streams.

    Like OpenSSH's ProxyCommand, the program ends with its input; it is terminated if it does not
    connect in time. `on_line` gets each different line of stderr once. If the program ends before
    the worker greets, the reason is its last error message. Without the program, the dial raises
    `BadInput`.
    """
    told: set[str] = set()
    ran = threading.Event()

    def attend(process: subprocess.Popen[bytes], said: deque[str]) -> None:
        assert process.stderr
        with process.stderr:
            for line in map(one_line, process.stderr):
                said.append(line)
                if line not in told:
                    told.add(line)
                    on_line(line)
        process.wait()

    def dial(target: Target, deadline: Deadline) -> socket.socket:
        command = list(words(target))
        near, far = socket.socketpair()
        with far:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=far.fileno(),
                    stdout=far.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                near.close()
                missing = isinstance(error, FileNotFoundError | PermissionError)
                # A program that has run may be back soon: gcloud replaces itself.
                if missing and not ran.is_set():
                    raise _missing(command[0], error) from error
                raise TransportFailed(
                    f"{one_line(command[0])} cannot be run", reason=error.strerror or str(error)
                ) from error
        ran.set()
        said: deque[str] = deque(maxlen=20)
        attending = in_thread(attend, process, said)
        limit = seconds(deadline.within(_PROGRAM_SECONDS))
        try:
            near.settimeout(limit)
            if near.recv(1, socket.MSG_PEEK):
                return near
            attending.join(1.0)  # not longer: the program's child may keep stderr open
            raise TransportFailed(
                f"{one_line(command[0])} does not lead to {target.label}",
                reason=_decisive(said),
                fix=_login(command, said),
            )
        except BaseException as error:
            near.close()
            process.terminate()  # a program that still connects does not read its input
            if isinstance(error, TimeoutError):
                raise _late(command[0], target, limit) from error
            raise

    return dial


def iap_command(project: str, target: Target) -> list[str]:
    """Return gcloud's command line that reaches a worker through Identity-Aware Proxy.

    gcloud's own ssh uses the same: googlecloudsdk/command_lib/compute/tpus/tpu_vm/ssh.py. Raises
    `TransportFailed` if the worker's guest attributes have no valid host name.
    """
    if not _HOST_NAME.fullmatch(target.hostname):  # a worker could write "--flags-file=…" there
        raise TransportFailed(
            f"{target.label} cannot be reached through Identity-Aware Proxy",
            reason=one_line(target.hostname)[:60],
            why="its guest attributes do not have its host name",
        )
    return [
        *("gcloud", "alpha", "compute", "start-iap-tunnel", target.hostname),
        *(str(target.port), "--listen-on-stdin", f"--project={project}", f"--zone={target.zone}"),
    ]


def check_gcloud() -> None:
    """Check that gcloud has credentials for a tunnel; accept a gcloud that does not answer.

    Raises:
        BadInput: gcloud cannot be run.
        NotAuthenticated: gcloud reports that it has no credentials.
    """
    command = ["gcloud", "auth", "print-access-token", "--quiet"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GCLOUD_SECONDS
        )
    except subprocess.TimeoutExpired:
        return
    except OSError as error:
        raise _missing("gcloud", error) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise NotAuthenticated(
            "--iap goes through gcloud, which has no credentials",
            why=one_line(said),
            fix=Fix.command("gcloud", "auth", "login"),
        )


def jump_command(host: str, port: str, target: Target) -> list[str]:
    """Return the command line of the user's OpenSSH that reaches a worker through a jump host.

    `host` is `user@host` or a name from ssh_config(5). The user's configuration decides the login
    and the host key of the jump host; tpukit still checks the worker's host key.
    """
    port_words = ["-p", port] if port else []
    where = ["-W", f"[{target.address}]:{target.port}"]
    return ["ssh", "-T", "-o", "BatchMode=yes", *where, *port_words, "--", host]


def _missing(program: str, error: OSError) -> BadInput:
    """Return the error for a program that is not there, or may not be run."""
    flag, note = "--jump", "install OpenSSH's client"
    if program == "gcloud":
        flag, note = "--iap", "install it: https://cloud.google.com/sdk/docs/install"
    what = f"{flag} goes through {one_line(program)}, which cannot be run: {error.strerror}"
    return BadInput(what, fix=Fix(note=note))


def _late(program: str, target: Target, limit: float) -> Unanswered:
    """Return the error for a program that has not led to the worker within its limit."""
    longer = f"a longer --timeout gives it up to {_PROGRAM_SECONDS:.0f} s"
    return Unanswered(
        f"{one_line(program)} did not lead to {target.label} in {limit:.0f} s",
        reason=longer if limit < _PROGRAM_SECONDS else "timed out",
    )


def _login(command: Sequence[str], said: Iterable[str]) -> Fix | None:
    """Return the command that shows why ssh does not let us into a jump host.

    It is None for other programs, and if the jump host was reached and the worker was not.
    """
    if command[0] != "ssh" or any("forwarding failed" in line for line in said):
        return None
    where = command[command.index("-W") + 2 :]
    return Fix.command("ssh", *where, "true", note="must work first, without a question")


def in_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a daemon thread and return it."""
    thread = threading.Thread(target=work, args=arguments, name="tpukit-stream", daemon=True)
    thread.start()
    return thread


def _decisive(said: Iterable[str]) -> str:
    """Return the last line with an error (gcloud adds hints below it), else the last line."""
    lines = [line for line in said if line.strip()]
    return ([line for line in lines if "ERROR" in line] or lines or ["it ended"])[-1]

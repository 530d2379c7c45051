"""How a worker's SSH server is reached: directly, or through a program such as gcloud."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tpukit.clock import Deadline
from tpukit.errors import BadInput, Fix, NotAuthenticated, TransportFailed
from tpukit.remote.connection.handshake import seconds
from tpukit.remote.connection.target import Target
from tpukit.text import one_line

LOOPBACK = "127.0.0.1"

_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
#: Seconds for gcloud to find its credentials, which takes it 1.
_GCLOUD_SECONDS = 30.0

#: Seconds for a worker itself to accept a connection.
ACCEPT_SECONDS = 10.0
#: Seconds for a program to lead to a worker that greets, the program's own start among them.
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
    """Return a dial that speaks to standard input and output of a program, one a connection.

    The program ends with its input, as OpenSSH's ProxyCommand does, and is ended where it does not
    lead to the worker in time; `on_line` gets each line of stderr once, however many connections
    have it. Where the program ends before the worker greets, what it said last is the reason.
    """
    told: set[str] = set()

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
                raise TransportFailed(
                    f"{one_line(command[0])} cannot be run", reason=error.strerror or str(error)
                ) from error
        said: deque[str] = deque(maxlen=20)
        attending = in_thread(attend, process, said)
        try:
            near.settimeout(seconds(deadline.within(_PROGRAM_SECONDS)))
            if near.recv(1, socket.MSG_PEEK):
                return near
            attending.join(1.0)  # a child of its own may hold stderr open
            raise TransportFailed(
                f"{one_line(command[0])} does not lead to {target.label}", reason=_decisive(said)
            )
        except BaseException:
            near.close()
            process.terminate()  # one that still connects does not look at its input
            raise

    return dial


def iap_command(project: str, target: Target) -> list[str]:
    """Return gcloud's command line that reaches a worker through Identity-Aware Proxy.

    As gcloud's own ssh has it: googlecloudsdk/command_lib/compute/tpus/tpu_vm/ssh.py. The worker's
    name comes from its guest attributes; raise `TransportFailed` where they have none.
    """
    if not _HOST_NAME.fullmatch(target.hostname):  # the worker has written it: "--flags-file=…"
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
    """Raise where gcloud has no credentials for a tunnel; one that does not answer is let pass.

    Raises:
        BadInput: gcloud cannot be run.
        NotAuthenticated: it has no credentials, as it says.
    """
    command = ["gcloud", "auth", "print-access-token", "--quiet"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GCLOUD_SECONDS
        )
    except subprocess.TimeoutExpired:
        return
    except OSError as error:
        raise BadInput(
            f"--iap goes through gcloud, which cannot be run: {error.strerror or error}",
            fix=Fix(note="install it: https://cloud.google.com/sdk/docs/install"),
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise NotAuthenticated(
            "--iap goes through gcloud, which has no credentials",
            why=one_line(said),
            fix=Fix.command("gcloud", "auth", "login"),
        )


def jump_command(host: str, port: str, target: Target) -> list[str]:
    """Return the command line by which the user's own OpenSSH reaches a worker through a host.

    `host` is `user@host` or a name of ssh_config(5). Who we are there, and which host key it has,
    is up to the user's configuration; the worker's host key is proved to us behind it.
    """
    port_words = ["-p", port] if port else []
    where = ["-W", f"[{target.address}]:{target.port}"]
    return ["ssh", "-T", "-o", "BatchMode=yes", *where, *port_words, "--", host]


def in_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a daemon thread, for which nobody has to wait; return it."""
    thread = threading.Thread(target=work, args=arguments, name="tpukit-stream", daemon=True)
    thread.start()
    return thread


def _decisive(said: Iterable[str]) -> str:
    """Return the last line that names an error, else the last one: gcloud adds hints below it."""
    lines = [line for line in said if line.strip()]
    return ([line for line in lines if "ERROR" in line] or lines or ["it ended"])[-1]

"""Ways to a worker that are not a plain TCP connection: a program's streams, another worker."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

from tpukit.clock import Deadline
from tpukit.errors import TransportFailed
from tpukit.remote.handshake import seconds
from tpukit.remote.tunnel import splice
from tpukit.remote.values import Target
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.remote.ssh import Connection

#: Opens a connected socket to a worker's SSH server, or raises `TransportFailed`.
Dial = Callable[[Target, Deadline], socket.socket]


def direct(target: Target, attempt: Deadline) -> socket.socket:
    """Connect to the target's address; raise `OSError`."""
    dialled = socket.create_connection((target.address, target.port), seconds(attempt))
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return dialled


def through_program(
    words: Callable[[Target], Sequence[str]], on_line: Callable[[str], None]
) -> Dial:
    """Return a dial that speaks to standard input and output of a program, one a connection.

    The program ends with its input, as OpenSSH's ProxyCommand does; `on_line` hears its stderr.
    """

    def dial(target: Target, attempt: Deadline) -> socket.socket:
        line = list(words(target))
        near, far = socket.socketpair()
        with far:
            try:
                process = subprocess.Popen(
                    line,
                    stdin=far.fileno(),
                    stdout=far.fileno(),
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                near.close()
                raise TransportFailed(
                    f"{one_line(line[0])} cannot be run", reason=error.strerror or str(error)
                ) from error
        assert process.stderr
        _thread(_attend, process, process.stderr, on_line)
        return near

    return dial


def through_worker(connect: Callable[[], Connection]) -> Dial:
    """Return a dial that goes through another worker, over one connection to it for all."""
    lock = threading.Lock()
    kept: list[Connection] = []

    def jump() -> Connection:
        with lock:
            if not kept or not kept[0].alive:
                kept[:] = [connect()]
            return kept[0]

    def dial(target: Target, attempt: Deadline) -> socket.socket:
        channel = jump().dial(target.address, target.port, attempt)
        near, far = socket.socketpair()
        _thread(splice, far, channel)
        return near

    return dial


def iap_command(project: str, target: Target) -> list[str]:
    """Return gcloud's command line that reaches a worker through Identity-Aware Proxy.

    As gcloud's own ssh has it: googlecloudsdk/command_lib/compute/tpus/tpu_vm/ssh.py. The worker's
    name comes from its guest attributes.
    """
    if not target.hostname:
        raise TransportFailed(
            f"{target.label} cannot be reached through Identity-Aware Proxy",
            why="its guest attributes do not tell its host name",
        )
    return [
        *("gcloud", "alpha", "compute", "start-iap-tunnel", target.hostname),
        *(str(target.port), "--listen-on-stdin", f"--project={project}", f"--zone={target.zone}"),
    ]


def _thread(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, name="tpukit-proxy", daemon=True).start()


def _attend(
    process: subprocess.Popen[bytes], stream: IO[bytes], on_line: Callable[[str], None]
) -> None:
    with stream:
        for line in stream:
            on_line(one_line(line))
    process.wait()

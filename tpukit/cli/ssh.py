"""`tpukit ssh`: a shell or one command on one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, TransportFailed
from tpukit.paths import private_directory

if TYPE_CHECKING:
    from tpukit.remote.connection.client import Connection


def ssh(
    toolkit: Toolkit,
    name: flag.Name,
    command: flag.Command = None,
    worker: flag.WorkerNumber = 0,
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Open a shell on a worker, or run a command.

    The exit status is the command's. One word after -- is a shell line; several words are run
    exactly as they are. The timeout is for connecting.

    Examples:
      tpukit ssh demo
      tpukit ssh demo --worker 2 -- 'nproc; free -g'
    """
    toolkit = toolkit.by(route)
    line = flag.remote_command(command)
    if toolkit.flags.as_json and not line:
        fix = Fix.command("tpukit", "ssh", name, "--json", "--", "hostname", note="for example")
        raise BadInput("--json needs a command", fix=fix)
    (chosen,) = toolkit.workers(name, str(worker), flag.seconds(timeout))
    with chosen.connect() as connection:
        if line:
            try:
                return _command(toolkit, connection, worker, line)
            except TransportFailed:
                chosen.check_slice()
                raise
        return View({}, status=_shell(toolkit, connection))


def _command(toolkit: Toolkit, connection: Connection, worker: int, line: str) -> View:
    console = toolkit.console
    done = connection.run(
        line,
        stdin=_standard_input(),
        on_output=None if console.as_json else console.write_remote,
        deadline=Deadline.never(toolkit.clock),
    )
    document = {
        "worker": worker,
        "status": done.status,
        "stdout": done.stdout.decode("utf-8", "replace"),
        "stderr": done.stderr.decode("utf-8", "replace"),
    }
    return View({"results": [document]}, status=done.status)


def _shell(toolkit: Toolkit, connection: Connection) -> int:
    """Hand over to the system's OpenSSH, which speaks to every terminal; we could log in."""
    from tpukit.remote.connection import keys, openssh

    if toolkit.route.proxied or not openssh.available():
        return connection.shell()
    target = connection.target
    # A file for each worker: two shells at once would rewrite one between writing and reading it.
    known_hosts = private_directory(toolkit.paths.known_hosts) / target.alias
    keys.write_known_hosts(known_hosts, [(target.alias, target.host_keys)])
    words = openssh.command(
        target, toolkit.key, known_hosts, target.alias, None, sys.stdin.isatty()
    )
    connection.close()
    return subprocess.run(words, check=False).returncode


def _standard_input() -> Iterator[bytes] | bytes:
    """Return what is piped in, chunk by chunk; a terminal's keyboard is not sent to a command."""
    if sys.stdin is None or sys.stdin.isatty():
        return b""
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # a program that runs us in its own process has put something else there
        return b""
    # Unbuffered: a thread that waits in a buffer's lock would abort the interpreter at its end.
    return iter(lambda: os.read(descriptor, 1 << 16), b"")

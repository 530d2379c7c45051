"""Runs a service on this worker's loopback, and notes when it answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time

from tpukit.agent.loopback import LOOPBACK, free_ports
from tpukit.agent.main import Home, Request

_LOOK_SECONDS = 0.25
_ANSWER_SECONDS = 10.0
#: Signals that end the service, not this program: it leaves the service's status.
_PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_service(home: Home, request: Request) -> None:
    """Run a service in a job, on a free port of the loopback; end with its status.

    The user's shell runs `command`, in which the port replaces `{port}`. On an emulated worker, the
    agent's own program runs instead if `stand_in` names one. When `ready` answers with 200, the
    request and the port are written to the file `service` in the job's folder.
    """
    for number in _PASSED:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the service would inherit
    (port,) = free_ports(1)
    stand_in = request["stand_in"] if home.emulated else ""
    words = _stand_in(home, stand_in) if stand_in else _command(request["command"], port)
    process = subprocess.Popen(words, stdin=subprocess.PIPE if stand_in else subprocess.DEVNULL)
    if process.stdin:
        process.stdin.write(json.dumps({**request, "port": port}).encode() + b"\n")
        process.stdin.close()
    while process.poll() is None and not _answers(port, request["ready"]):
        time.sleep(_LOOK_SECONDS)
    if process.poll() is None:
        _note({**request, "port": port, "stand_in": bool(stand_in)})
    status = process.wait()
    sys.exit(status if status >= 0 else 128 - status)


def _command(line: str, port: int) -> list[str]:
    shell = os.environ.get("SHELL") or "/bin/sh"
    # tpukit/jobs/shell_environment.py explains SHLVL.
    return ["env", "SHLVL=1", shell, "-c", line.replace("{port}", str(port))]


def _stand_in(home: Home, name: str) -> list[str]:
    folders = [home.folder, home.temporary, str(home.emulated_devices)]
    return [sys.executable, "-I", "-S", sys.argv[0], *folders, "serve_" + name]


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _note(known: Request) -> None:
    path = os.path.join(os.environ["TPUKIT_JOB"], "service")
    with contextlib.suppress(OSError):  # without room on the disk the service still answers
        with open(path + ".new", "w") as file:
            json.dump(known, file)
        os.replace(path + ".new", path)

"""`gcloud` whose Python has loaded gcloud's modules already: half a second of CPU for each command.

gcloud's launcher runs gcloud's program with the interpreter that CLOUDSDK_PYTHON names. The one
here hands its arguments, variables, folder and files to a server, gcloud's own Python with gcloud's
unmodified modules in it, which forks: warm_gcloud_server.py. A server belongs to the process of
tests that asked for it. How long gcloud takes is not to be measured so: scripts/bench uses none.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
#: Commands that wait for the server while it loads.
_BACKLOG = 64


def environment() -> dict[str, str]:
    """Return the variables that let gcloud be forked: none where it has no Python of its own."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return {}
    python = Path(gcloud).resolve().parent.parent / "platform/bundledpythonunix/bin/python3"
    if not python.exists():
        return {}
    # Without the second one, gcloud's launcher leaves out the site's packages of a Python that is
    # not its own.
    return {
        "CLOUDSDK_PYTHON": str(_interpreter(python)),
        "CLOUDSDK_PYTHON_SITEPACKAGES": "1",
    }


@cache
def _interpreter(python: Path) -> Path:
    """Start a server; return a program that stands for its Python."""
    folder = Path(tempfile.mkdtemp(prefix="gcloud-"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "socket"))
    listener.listen(_BACKLOG)
    interpreter = folder / "python3"
    client = [sys.executable, "-IS", _HERE / "warm_gcloud_client.py", folder / "socket", python]
    words = shlex.join(map(str, client))
    interpreter.write_text(f'#!/bin/sh\nexec {words} "$0" "$@"\n')
    interpreter.chmod(0o755)
    process = subprocess.Popen(
        [python, _HERE / "warm_gcloud_server.py", str(listener.fileno())],
        env={"PATH": os.defpath, "PYTHONIOENCODING": "UTF-8", "CLOUDSDK_CONFIG": str(folder)},
        stdin=subprocess.PIPE,  # ends with this process, and lets the server end
        stdout=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        start_new_session=True,  # Ctrl-C at the tests is not for it
    )
    listener.close()

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return interpreter

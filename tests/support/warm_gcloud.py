"""`gcloud` whose Python has loaded gcloud's modules already: half a second of CPU for each command.

gcloud's launcher runs gcloud's program with the interpreter that CLOUDSDK_PYTHON names. The one
here hands its arguments, variables, folder and files to a server, gcloud's own Python with gcloud's
unmodified modules in it, which forks: warm_gcloud_server.py. How long gcloud takes is not to be
measured so: scripts/bench uses none.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from support import fork_servers

_HERE = Path(__file__).parent


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
    """Return a program that stands for gcloud's Python."""

    def line(*descriptors: int) -> tuple[list[str | Path], Mapping[str, str]]:
        words = [python, _HERE / "warm_gcloud_server.py", *map(str, descriptors)]
        folder = fork_servers.folder() / "gcloud"
        return words, {
            "PATH": os.defpath,
            "PYTHONIOENCODING": "UTF-8",
            "CLOUDSDK_CONFIG": str(folder),
        }

    address = fork_servers.address("gcloud", line)
    interpreter = address.with_name(f"python3-{os.getpid()}")
    client = [sys.executable, "-IS", _HERE / "warm_gcloud_client.py", address, python]
    interpreter.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, client))} "$0" "$@"\n')
    interpreter.chmod(0o755)
    return interpreter

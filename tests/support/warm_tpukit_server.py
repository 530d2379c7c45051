"""Loads the client, starts nothing, and becomes `tpukit` in each fork: see warm_tpukit.py.

Its arguments are the descriptors of the socket that it listens on and of its lock.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import os
import pkgutil
import posix
import runpy
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import fork_server

#: What the client loads of others' libraries when it needs it.
_LAZY = (
    "google.auth.compute_engine",
    "google.auth.impersonated_credentials",
    "google.auth.transport.requests",
    "google.oauth2.credentials",
    "packaging.specifiers",
    "paramiko",
    "psutil",
    "pydantic.dataclasses",
    "rich.live",
    "rich.progress",
    "rich.table",
)
_SITE = Path(__file__).parent / "python_path" / "sitecustomize.py"


def _load(_: list[str]) -> None:
    import tpukit

    for package in pkgutil.walk_packages(tpukit.__path__, "tpukit."):
        if not package.name.endswith(("_program", "__main__")) and ".emulator." not in package.name:
            importlib.import_module(package.name)
    for name in _LAZY:
        importlib.import_module(name)
    # coverage does so in each fork, where it would look for every module's file once more
    inspect.stack()
    gc.collect()
    gc.freeze()  # a fork shares what is not touched


def _become(words: list[str], variables: Mapping[str, str]) -> NoReturn:
    # The streams that there are know files of another kind.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    sys.argv = ["tpukit", *words]
    status = 1
    try:
        runpy.run_path(str(_SITE))
        runpy.run_module("tpukit", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    # As Python ends, but for the memory that it shares: to clean that up would copy it.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    # coverage has written what was measured, and would do so again before os._exit: all that the
    # server has loaded too.
    posix._exit(status)


if __name__ == "__main__":
    del sys.path[0]  # as -P does
    own_socket, own_lock = map(int, sys.argv[1:])
    fork_server.serve(socket.socket(fileno=own_socket), [own_lock], _load, _become)

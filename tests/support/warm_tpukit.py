"""`tpukit` as a process of its own that need not load its modules first: half a second of CPU.

A server that has loaded the client, and started nothing, forks; the child is given the command's
words, variables, folder and files, and runs `python -m tpukit` to its end. What a start loads, and
how long that takes, is not to be seen so: tests/test_house.py and `scripts/bench startup` are for
that.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import pkgutil
import posix
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

#: As the installed script does, -P leaves the working directory out of the imports.
TPUKIT = (sys.executable, "-P", "-m", "tpukit")
#: What Python, libc and coverage read of the environment as they start.
_READ_AT_START = ("PYTHON", "COVERAGE", "LC_", "LANG", "LD_", "TZ")
#: What the client loads of others' libraries when it needs it.
_LAZY = (
    "google.auth.compute_engine",
    "google.auth.impersonated_credentials",
    "google.auth.transport.requests",
    "google.cloud.tpu_v2.services.tpu.transports",
    "google.oauth2.credentials",
    "packaging.specifiers",
    "paramiko",
    "psutil",
    "pydantic.dataclasses",
    "rich.live",
    "rich.progress",
    "rich.table",
)
#: Bytes of a request: the system's buffer of a socket holds twice as many.
_LARGEST = 100_000
#: Bytes of a number that the server tells.
_NUMBER = 16
_SITE = Path(__file__).parent / "python_path" / "sitecustomize.py"


def run(
    words: Sequence[str], *, timeout: float = 300, stdin: str = "", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `tpukit` with these words to its end, as subprocess.run does; return what it printed."""
    pipe = subprocess.PIPE
    with WarmTpukit(words, stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class WarmTpukit(subprocess.Popen[str]):
    """A Popen of `tpukit` with these words: a fork of the server, or a Python of its own.

    It has that where more is asked for than variables, a folder, files and a session.
    """

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        self._end = -1
        super().__init__([*TPUKIT, *words], text=True, **options)

    def _execute_child(self, *given: Any) -> None:  # type: ignore[override]
        """Start the child with what Popen has made ready, in the order of Python 3.11 to 3.14."""
        words, _, before, _, descriptors, cwd, environment = given[:7]
        pipes, session = given[10:16], given[21]
        variables = dict(os.environ if environment is None else environment)
        request = [words[len(TPUKIT) :], variables, str(cwd or Path.cwd()), bool(session)]
        message = json.dumps(request, default=os.fspath).encode()
        if before or descriptors or len(message) > _LARGEST:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        at_start = {key: variables[key] for key in variables if key.startswith(_READ_AT_START)}
        self._end, end = os.pipe()
        files = [
            own if own != -1 else number for number, own in enumerate((pipes[0], *pipes[3::2]))
        ]
        socket.send_fds(_server(tuple(sorted(at_start.items()))), [message], [*files, end])
        os.close(end)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = int(os.read(self._end, _NUMBER))
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._end == -1:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        if not select.select([self._end], [], [], 0 if wait_flags else None)[0]:
            return 0, 0
        status = int(os.read(self._end, _NUMBER))
        os.close(self._end)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **given: Any) -> int | None:
        return super()._internal_poll(  # type: ignore[misc,no-any-return]
            _deadstate, _waitpid=lambda _, flags: self._try_wait(flags), **given
        )


@cache
def _server(at_start: tuple[tuple[str, str], ...]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {"PATH": os.defpath, **dict(at_start)}
    line = [sys.executable, "-P", __file__]
    process = subprocess.Popen(line, stdin=theirs, stdout=subprocess.DEVNULL, env=environment)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()  # what it has measured is there

    atexit.register(end)
    return ours


def _load() -> None:
    import tpukit

    for each in pkgutil.walk_packages(tpukit.__path__, "tpukit."):
        if not each.name.endswith(("_program", "__main__")) and ".emulator." not in each.name:
            importlib.import_module(each.name)
    for name in _LAZY:
        importlib.import_module(name)
    # coverage does so in each fork, where it would look for every module's file once more
    inspect.stack()
    gc.collect()
    gc.freeze()  # a fork shares what is not touched


def _serve(control: socket.socket) -> None:
    """Serve until nobody asks any more; become the command in each fork."""
    ended, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    while True:
        ready = select.select([control, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            for each in list(running):
                process, status = os.waitpid(each, os.WNOHANG)
                if process:
                    _tell(running[each], status)
                    os.close(running.pop(each))
        if control in ready:
            request, given, _, _ = socket.recv_fds(control, 2 * _LARGEST, 4)
            if not request:
                return
            process = os.fork()
            if not process:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (control.detach(), ended, told, *running.values()):
                    os.close(each)
                _become(given, *json.loads(request))
            _tell(given[3], process)
            running[process] = given[3]
            for each in given[:3]:
                os.close(each)


def _tell(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, f"{number:{_NUMBER}}".encode())


def _become(
    given: list[int], words: list[str], environment: dict[str, str], cwd: str, session: bool
) -> NoReturn:
    for number, each in enumerate(given[:3]):
        os.dup2(each, number)
    for each in given:
        os.close(each)
    # The streams that there are know files of another kind.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if session:
        os.setsid()
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
    asked = socket.socket(fileno=os.dup(0))
    _load()
    _serve(asked)

"""A lock on this worker that lasts as long as a connection."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time

from tpukit.agent.main import Home, Request, say


def sign(lock: int) -> None:
    """Write into a locked file which process holds the lock, and for which client."""
    client = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    since = time.strftime("%H:%M:%S UTC", time.gmtime())
    os.ftruncate(lock, 0)
    whom = f"{client and ', for ' + client}, since {since}, on {os.uname().nodename}"
    os.pwrite(lock, f"PID {os.getpid()}{whom}\n".encode(), 0)


def holder(lock: int) -> str:
    """Return the text that the holder of a lock has written into its file.

    It starts with `PID` only if the process is on this worker: workers may share a folder.
    """
    text = os.pread(lock, 200, 0).decode(errors="replace").strip()
    _, on, worker = text.rpartition(", on ")
    return f"elsewhere, {text}" if on and worker != os.uname().nodename else text


def hold_lock(home: Home, request: Request) -> None:
    """Lock the file `path`, answer `locked`, and unlock it when standard input ends.

    If another client has the lock, first answer `waiting` with its description from the file. The
    file is removed with the lock, so a client that has waited for a removed file starts again.
    """
    path = os.path.join(home.path, request["path"])
    folder = os.path.dirname(path)
    lock = None
    while lock is None:
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say({"waiting": holder(file)})
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                lock = file
    sign(lock)
    say({"locked": True})
    sys.stdin.buffer.read()
    with contextlib.suppress(OSError):
        os.unlink(path)
        if os.listdir(home.folder) == ["agent"]:  # everything was undone, so leave nothing
            shutil.rmtree(home.folder)

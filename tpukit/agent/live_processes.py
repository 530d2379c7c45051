"""The live processes of this worker, from /proc, or from ps on a system without it."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
from typing import Sequence

BOOT = "/proc/sys/kernel/random/boot_id"


class Process:
    """The state of a process at one moment. Without /proc only its mark is known."""

    def __init__(self, pid: int, words: Sequence[bytes] | None = None) -> None:
        self.pid = pid
        self.dead = False
        self.parent = self.session = self.born = 0
        if words is None:
            fields = self.read("stat").rpartition(b")")[2].split()
            # The first thread may end before others, which still hold memory and devices.
            self.dead = fields[0] in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) < 2
            self.parent, self.session = int(fields[1]), int(fields[3])
            self.born = int(fields[19])
            words = self.read("environ").split(b"\0")
        marks = [word for word in words if word.startswith(b"TPUKIT_JOB=")]
        self.job = os.fsdecode(marks[-1].partition(b"=")[2]) if marks else ""

    def read(self, name: str) -> bytes:
        """Return the content of its file below /proc, or nothing if it is unreadable."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/{name}", "rb") as file:
            return file.read()
        return b""

    def command(self) -> str:
        """Return the beginning of its command line."""
        words = self.read("cmdline")[:1000].replace(b"\0", b" ")
        return words.decode("utf-8", "replace").strip()

    def user(self) -> str:
        """Return the name of its user, or "" if it is unknown."""
        with contextlib.suppress(OSError, KeyError):
            return pwd.getpwuid(os.stat(f"/proc/{self.pid}").st_uid).pw_name
        return ""

    def ignores(self, number: int) -> bool:
        """Return True if it ignores a signal."""
        ignored = re.search(rb"SigIgn:\s*(\w+)", self.read("status"))
        return bool(ignored and int(ignored[1], 16) >> (number - 1) & 1)


def look() -> dict[int, Process]:
    """Return every live process except this one, by its id."""
    processes = []
    if os.path.isdir("/proc/self"):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(IndexError, OSError):  # it has just gone
                processes.append(Process(int(name)))
    else:
        listing = ["ps", "-axEww", "-o", "pid=,command="]
        done = subprocess.run(listing, stdout=subprocess.PIPE, check=False)
        for pid, *words in map(bytes.split, done.stdout.splitlines()):
            processes.append(Process(int(pid), words))
    ours = os.getpid()
    return {
        process.pid: process for process in processes if process.pid != ours and not process.dead
    }


def boot() -> str:
    """Return the id of this boot of the worker."""
    with contextlib.suppress(OSError), open(BOOT) as file:
        return file.read().strip()
    return ""


def identity(pid: int) -> str:
    """Return text that identifies a live process even if its id is reused; "" for a dead one."""
    if not os.path.isdir("/proc/self"):
        return " ".join(os.popen(f"ps -o lstart= -p {pid}").read().split())
    with contextlib.suppress(OSError, IndexError):
        process = Process(pid)
        return "" if process.dead else f"{boot()} {process.born}"
    return ""

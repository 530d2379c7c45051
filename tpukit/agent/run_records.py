"""The runs on this worker: the folder of each, and the processes that belong to it.

The name of a run's folder in `jobs` ends with @ and the worker, because workers may share a home
folder. It contains `pid` (the leader's process id, the boot, and the leader's start time), `about`
(the text for listings), and `scope` (the name of its control group, if any).

A detached run, or another job, also has `command`, which sh runs; the files of its log
(`tpukit.agent.job_log`); and at the end `status`. Its leader is its runner.

`jobs/run.sh` writes the folder of an attached run.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from typing import Any, Mapping

from tpukit.agent.live_processes import Process, boot, identity, look
from tpukit.agent.main import Home, Request


def text(*path: str) -> str:
    """Return the text of a small file, or "" if it is unreadable."""
    with contextlib.suppress(OSError), open(os.path.join(*path), "rb") as file:
        return file.read().decode("utf-8", "replace").strip()
    return ""


def save(content: str, *path: str) -> None:
    """Write a new file; every OSError names it, even for a full disk."""
    name = os.path.join(*path)
    try:
        with open(name, "xb") as file:
            file.write(content.encode())
    except OSError as error:
        error.filename = name
        raise


def jobs_folder(home: Home) -> str:
    """Return the folder with the folders of all runs and jobs."""
    return os.path.join(home.folder, "jobs")


def is_attached(folder: str) -> bool:
    """Return True for the folder of an attached run, which has no `command`."""
    return not os.path.exists(os.path.join(folder, "command"))


def requested(home: Home, request: Request) -> list[RunRecord]:
    """Return the jobs named in `jobs`, or all runs of `worker` if that is null."""
    folder, names = jobs_folder(home), request["jobs"]
    if names is None:
        listed = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        ours = "@" + request["worker"]
        names = [name for name in listed if name.startswith("run.") and name.endswith(ours)]
    return [RunRecord(os.path.join(folder, name)) for name in names]


class RunRecord:
    """A run or job by its folder, and its known processes.

    They are the processes with its mark, in its session or in its control group, and their
    descendants: sudo drops the mark, and may start its children in a new session.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.name = folder, os.path.basename(folder)
        self.known: dict[int, int] = {}
        self.leader, self.born, self.scope = 0, 0, ""
        self.read_record()

    def read_record(self) -> None:
        """Read the leader; a run that has just started may not have written it yet."""
        fields = text(self.folder, "pid").split()
        if len(fields) == 3 and fields[1] == boot() and (fields[0] + fields[2]).isdigit():
            self.leader, self.born = int(fields[0]), int(fields[2])
            self.scope = text(self.folder, "scope")

    @property
    def attached(self) -> bool:
        """True if the client reads its output; False for a detached run or job."""
        return is_attached(self.folder)

    def is_there(self) -> bool:
        """Return True if it has its folder."""
        return os.path.isdir(self.folder)

    def lives(self) -> bool:
        """Return True if a job's runner lives; it may outlive the command."""
        pid, _, born = text(self.folder, "pid").partition(" ")
        return pid.isdigit() and identity(int(pid)) == born

    def state(self) -> dict[str, Any]:
        """Return its state: absent, running, lost, or finished with its exit status.

        An attached run is "attached", "attached, client gone", or, if its command has ended but
        left processes behind, "attached, ended". `dropped` counts bytes of output for which the
        disk had no room.
        """
        if not self.is_there():
            return {"state": "absent"}
        if self.attached:
            alive = look()
            if not self.find(alive):
                return {"state": "absent"}
            if self.leader and not self._leads(alive):
                return {"state": "attached, ended"}
            return {"state": "attached" if self._has_client() else "attached, client gone"}
        dropped = text(self.folder, "log.dropped")
        answer = {"dropped": int(dropped) if dropped.isdigit() else 0}
        otherwise = "running" if self.lives() else "lost"
        status = text(self.folder, "status")  # read last, because the job may end meanwhile
        if status.isdigit():
            return {"state": "finished", "status": int(status), **answer}
        return {"state": otherwise, **answer}

    def _has_client(self) -> bool:
        """Return False if the leader's output is a pipe without a reader."""
        path = f"/proc/{self.leader}/fd/1"
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.stat(path).st_mode):
                output = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
                poll = select.poll()
                poll.register(output, 0)
                unread = poll.poll(0)
                os.close(output)
                return not unread
        return True

    def _leads(self, alive: Mapping[int, Process]) -> bool:
        """Return True if the leader is alive; its id may belong to a later process."""
        return self.leader in alive and alive[self.leader].born <= self.born

    def find(self, alive: Mapping[int, Process]) -> set[int]:
        """Return the ids of its live processes, including processes known from earlier calls."""
        if not self.leader:
            self.read_record()
        led = self.leader and (self.leader not in alive or self._leads(alive))
        scope = self.scope.encode()
        pids = {
            process.pid
            for process in alive.values()
            if process.job == self.folder
            or (led and process.session == self.leader and process.born >= self.born)
            or (scope and scope in process.read("cgroup"))
            or (process.pid in self.known and process.born == self.known[process.pid])
        }
        more = pids
        while more:
            more = {
                process.pid
                for process in alive.values()
                if process.pid not in pids and (process.parent in pids or process.session in pids)
            }
            pids |= more
        self.known.update((pid, alive[pid].born) for pid in pids)
        return pids

    def leave_status(self, status: int) -> None:
        """Write the exit status of its command into the file that was reserved at the start."""
        new = os.path.join(self.folder, "status.new")
        with open(new, "r+") as file:
            file.write(f"{status:<7}\n")
        os.rename(new, os.path.join(self.folder, "status"))

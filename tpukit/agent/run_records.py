"""The runs on this worker: the folder of each, and the processes that belong to it.

A run's folder in `jobs` has an @ in its name, and the worker behind it: workers may share a home
folder. In it are `pid` (the process id of its leader, the boot, and the leader's time of start),
`about` (what listings show), and `scope` (the name of its control group, if it has one).

A detached run, or another job, has in addition `command`, which sh runs; `log` and what belongs to
it (`tpukit.agent.job_log`); and at the end `status`. Its leader is its runner.

`remote/command/run.sh` writes that of an attached run.
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
    """Return a small file's text, or nothing if it is not there."""
    with contextlib.suppress(OSError), open(os.path.join(*path), "rb") as file:
        return file.read().decode("utf-8", "replace").strip()
    return ""


def save(content: str, *path: str) -> None:
    """Write a new file; an OSError names it also if the disk is full."""
    name = os.path.join(*path)
    try:
        with open(name, "xb") as file:
            file.write(content.encode())
    except OSError as error:
        error.filename = name
        raise


def jobs_folder(home: Home) -> str:
    """Return the folder that has the folders of all runs and jobs."""
    return os.path.join(home.folder, "jobs")


def is_attached(folder: str) -> bool:
    """Return True if a run's folder is an attached one's: a job has its command from the start."""
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
    """A run or job by its folder, and the processes that were once found of it.

    Its processes are those that carry its mark, those of its session and its control group, and all
    that descends from them: sudo drops the mark, and its children have a session of their own if it
    uses a terminal of theirs.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.name = folder, os.path.basename(folder)
        self.known: dict[int, int] = {}
        self.leader, self.born, self.scope = 0, 0, ""
        self.read_record()

    def read_record(self) -> None:
        """Read who leads it: a run that has just been started may not have said so before."""
        fields = text(self.folder, "pid").split()
        if len(fields) == 3 and fields[1] == boot() and (fields[0] + fields[2]).isdigit():
            self.leader, self.born = int(fields[0]), int(fields[2])
            self.scope = text(self.folder, "scope")

    @property
    def attached(self) -> bool:
        """Whether its client reads its output: no job."""
        return is_attached(self.folder)

    def is_there(self) -> bool:
        """Return True if it has its folder."""
        return os.path.isdir(self.folder)

    def lives(self) -> bool:
        """Return True if a job's runner is there: it stays for what the command has left behind."""
        pid, _, born = text(self.folder, "pid").partition(" ")
        return pid.isdigit() and identity(int(pid)) == born

    def state(self) -> dict[str, Any]:
        """Return how it stands: absent, running or lost, or finished, with its exit status.

        An attached run is attached, and its client may be gone. `dropped` counts the bytes of its
        output for which the disk had no room.
        """
        if not self.is_there():
            return {"state": "absent"}
        if self.attached:
            if not self.find(look()):
                return {"state": "absent"}
            return {"state": "attached" if self._has_client() else "attached, client gone"}
        dropped = text(self.folder, "log.dropped")
        answer = {"dropped": int(dropped) if dropped.isdigit() else 0}
        otherwise = "running" if self.lives() else "lost"
        status = text(self.folder, "status")  # looked at last: it may have ended since
        if status.isdigit():
            return {"state": "finished", "status": int(status), **answer}
        return {"state": otherwise, **answer}

    def _has_client(self) -> bool:
        """Return False if nobody reads the leader's output, unless it has left that by itself."""
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

    def find(self, alive: Mapping[int, Process]) -> set[int]:
        """Return the ids of its processes, and of those that were once found and live."""
        if not self.leader:
            self.read_record()
        leader = alive.get(self.leader)
        led = self.leader and not (leader and leader.born > self.born)  # or the id is another's
        scope = self.scope.encode()
        found = {
            process.pid
            for process in alive.values()
            if process.job == self.folder
            or (led and process.session == self.leader and process.born >= self.born)
            or (scope and scope in process.read("cgroup"))
            or (process.pid in self.known and process.born == self.known[process.pid])
        }
        more = found
        while more:
            more = {
                process.pid
                for process in alive.values()
                if process.pid not in found
                and (process.parent in found or process.session in found)
            }
            found |= more
        self.known.update((pid, alive[pid].born) for pid in found)
        return found

    def leave_status(self, status: int) -> None:
        """Note how its command has ended, in blocks that it has had on the disk from the start."""
        new = os.path.join(self.folder, "status.new")
        with open(new, "r+") as file:
            file.write(f"{status:<7}\n")
        os.rename(new, os.path.join(self.folder, "status"))

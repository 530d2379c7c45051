"""Starts jobs, sends their logs, lists and removes them."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import sys
import time

from tpukit.agent.job_log import PIECE, Log, Pieces
from tpukit.agent.job_runner import lead
from tpukit.agent.live_processes import identity
from tpukit.agent.main import Home, Request, say
from tpukit.agent.run_records import RunRecord, jobs_folder, requested, save, text

LOOK_SECONDS = 0.1


def locked(jobs: str) -> int:
    """Open and lock the folder of jobs, so that only one program starts or removes jobs."""
    lock = os.open(jobs, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def start_job(home: Home, request: Request) -> None:
    """Start a job at most once; answer "started", "present", or "other" (with another command).

    The job's folder gets its name only when its files and its runner exist. So an interrupted start
    has started nothing, and the next start removes its files.
    """
    os.closerange(3, 256)  # files of the login shell, which would keep the connection open
    jobs = jobs_folder(home)
    umask = os.umask(0o077)
    os.makedirs(jobs, exist_ok=True)
    lock = locked(jobs)
    folder, new = os.path.join(jobs, request["job"]), os.path.join(jobs, ".new")
    if os.path.isdir(folder):
        same = text(folder, "command") == request["command"].strip()
        return say({"state": "present" if same else "other"})
    shutil.rmtree(new, ignore_errors=True)
    os.mkdir(new)
    # Reserve the block for the status before the job can fill the disk.
    save("unknown\n", new, "status.new")
    for name in ("command", "about"):
        if request[name]:
            save(request[name], new, name)
    log = Log(new, request["limit"])
    ready, said = os.pipe()
    if os.fork():
        os.close(said)
        if not os.read(ready, 1):
            sys.exit(1)  # the child has failed and printed the reason
        return say({"state": "started"})
    os.setsid()
    os.chdir(home.path)
    save(f"{os.getpid()} {identity(os.getpid())}\n", new, "pid")
    os.rename(new, folder)
    log.folder = folder
    os.write(said, b"+")
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for descriptor in (lock, ready, said, null):
        os.close(descriptor)
    run = RunRecord(folder)
    os.umask(umask)
    return lead(run, request, log)


def follow_job(home: Home, request: Request) -> None:
    """Send the log in parts from `offset` or its last `tail` lines on, then answer the job's state.

    Only lines that begin with `mark` count for the tail; the other lines in between are sent too.

    A part is a line `tpukit-log OFFSET SIZE` and its bytes. A part without bytes is a sign of life,
    every `beat` seconds. With `on`, send the log until the job ends, else to its current end. Stop
    if the client closes its connection.
    """
    run = RunRecord(os.path.join(jobs_folder(home), request["job"]))
    if not run.is_there():
        return say(run.state())
    pieces, offset, mark = Pieces(run.folder), request["offset"], request["mark"].encode()
    if offset is None:
        offset = 0 if request["tail"] is None else pieces.last_lines(request["tail"], mark)
    listener = select.poll()
    listener.register(1, 0)
    beat = 0.0
    while True:
        state = run.state()
        pieces.refresh()
        end = pieces.end
        if offset < pieces.start:
            offset = pieces.whole_line(pieces.start)
        while offset < end or time.monotonic() >= beat:
            data = pieces.read(offset, max(0, min(PIECE, end - offset)))
            header = b"tpukit-log %d %d\n" % (offset, len(data))
            sys.stdout.buffer.write(header + data)
            sys.stdout.buffer.flush()
            beat = time.monotonic() + request["beat"]
            offset += len(data)
            if not data:
                break
        if state["state"] != "running" or not request["on"]:
            return say(state)
        if listener.poll(LOOK_SECONDS * 1000):
            return None


def list_jobs(home: Home, request: Request) -> None:
    """Answer the states of jobs; with `older`, remove ended jobs and answer the freed bytes."""
    older, rows = request["older"], []
    jobs = jobs_folder(home)
    if older is not None and os.path.isdir(jobs):
        locked(jobs)  # until this program ends
    for run in requested(home, request):
        state = run.state()
        if state["state"] == "absent":
            if run.attached:  # no process of it lives
                shutil.rmtree(run.folder, ignore_errors=True)
            continue
        begun = os.path.join(run.folder, "pid" if run.attached else "command")
        row = {"job": run.name, "about": text(run.folder, "about"), **state}
        row["started"] = os.path.getmtime(begun) if os.path.exists(begun) else 0.0
        row["bytes"] = None if older is None or run.attached else removed(run, older)
        rows.append(row)
    say({"jobs": rows})


def removed(run: RunRecord, older: float) -> int | None:
    """Remove a job that ended at least `older` seconds ago; return the freed bytes, else None."""
    if run.lives():
        return None
    with os.scandir(run.folder) as entries:
        files = {entry.inode(): entry.stat(follow_symlinks=False) for entry in entries}
    changed = max([file.st_mtime for file in files.values()], default=0)
    if time.time() - changed < older:
        return None
    shutil.rmtree(run.folder)
    return sum(file.st_blocks * 512 for file in files.values())

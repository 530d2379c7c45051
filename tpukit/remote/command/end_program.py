"""End a run's processes, then whatever holds a TPU device, and make sure that they are gone.

    python3 -I - FOLDER TMPDIR EMULATED REQUEST

FOLDER is where our things are. REQUEST is a JSON object: `marks` are values of TPUKIT_JOB, `jobs`
names of folders of jobs, `holders` is "none", "orphans" (of no run but those that end) or "all",
`grace` the seconds between TERM and KILL. Answers one line, "tpukit-end " and a JSON object. Where
`holders` is "look", nothing is ended: it only says who holds a device.

On an emulated worker the files of FOLDER/emulated-devices stand in for the devices. Runs on the
Python of the oldest runtime version, 3.8, with nothing but its standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import signal
import subprocess
import sys
import time

KILL_SECONDS = 5.0
#: A command may have been sent and not yet be there: the first look that finds nothing is doubted.
SETTLE_SECONDS = 0.3
LOOK_SECONDS = 0.05
LEADER_SECONDS = 10.0


class Process:
    """One live process as /proc shows it."""

    def __init__(self, pid):
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        self.pid = pid
        self.zombie = fields[0] in (b"Z", b"X")
        self.session = int(fields[3])
        self.born = fields[19].decode()
        self.job = ""
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            for pair in file.read().split(b"\0"):
                if pair.startswith(b"TPUKIT_JOB="):
                    self.job = os.fsdecode(pair[len(b"TPUKIT_JOB=") :])

    def command(self):
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/cmdline", "rb") as file:
            return file.read(1000).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return ""

    def open_files(self):
        found = set()
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{self.pid}/fd"):
                with contextlib.suppress(OSError):
                    found.add(os.readlink(entry.path))
        return found


def processes():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError, IndexError):
                found.append(Process(int(name)))
    return [each for each in found if not each.zombie]


class Run:
    """A job's folder, or the mark of a command without one, and the processes that belong to it."""

    def __init__(self, mark, folder=""):
        self.mark = mark
        self.folder = folder
        self.leader, self.boot, self.born = 0, "", ""
        if folder:
            with contextlib.suppress(OSError, ValueError), open(f"{folder}/pid") as file:
                pid, self.boot, self.born = file.read().split()
                self.leader = int(pid)

    def pids(self, alive):
        """Those that carry the mark, and the leader's session even where the mark was dropped."""
        found = {each.pid for each in alive if each.job == self.mark}
        if self.leader and self.boot == boot():
            leader = [each for each in alive if each.pid == self.leader]
            recycled = leader and leader[0].born != self.born
            if not recycled:
                found |= {
                    each.pid
                    for each in alive
                    if each.session == self.leader and int(each.born) >= int(self.born)
                }
        return found

    def leave_status(self, status):
        """Say how it ended where the runner could not."""
        if not self.leader or os.path.exists(os.path.join(self.folder, "status")):
            return
        new = os.path.join(self.folder, "status.end")
        with open(new, "w") as file:
            file.write(f"{status}\n")
        owner = os.stat(self.folder)
        os.chown(new, owner.st_uid, owner.st_gid)
        os.rename(new, os.path.join(self.folder, "status"))


class Elsewhere(Run):
    """The same where there is no /proc, as on macOS: by the mark alone, in ps's own listing."""

    def pids(self, alive):
        listing = subprocess.run(
            ["ps", "-axEww", "-o", "pid=,command="], stdout=subprocess.PIPE, check=False
        ).stdout
        word = os.fsencode(f"TPUKIT_JOB={self.mark}")
        lines = (line.split() for line in listing.splitlines())
        return {int(words[0]) for words in lines if word in words[1:]} - {os.getpid()}


def boot():
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def look():
    return processes() if os.path.isdir("/proc/self") else []


def end(find, grace):
    """End what `find` finds; return how many there were, how many needed KILL, what is left."""
    polite = time.monotonic() + grace
    limit = polite + KILL_SECONDS
    asked, forced, left = set(), set(), set()
    empty = 0
    while time.monotonic() < limit:
        left = find()
        empty = 0 if left else empty + 1
        if empty == 2:
            break
        late = time.monotonic() >= polite
        for pid in left if late else left - asked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)
        asked |= left
        forced |= left if late else set()
        time.sleep(LOOK_SECONDS if left or asked else SETTLE_SECONDS)
    return asked, forced, left


def devices(folder, emulated):
    if emulated:
        return set(glob.glob(os.path.join(folder, "emulated-devices/*")))
    return set(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*"))


def holders(paths, alive):
    return {each.pid: each for each in alive if paths & each.open_files()}


def described(process):
    return {"pid": process.pid, "job": process.job, "command": process.command()}


def remove_lock(path):
    """Remove libtpu's lock file unless somebody has the lock; tell whether it was removed.

    libtpu leaves it behind and then refuses to start: jax-ml/jax#10192.
    """
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    except OSError:
        return False
    return True


def main(folder, temporary, emulated, request):
    request = json.loads(request)
    paths = devices(folder, emulated)
    if request["holders"] == "look":
        held = holders(paths, look()).values()
        print("\ntpukit-end " + json.dumps({"held": [described(each) for each in held]}))
        return
    kind = Run if os.path.isdir("/proc/self") else Elsewhere
    jobs = os.path.join(folder, "jobs")
    names = request["jobs"]
    if names == "all":
        names = [os.path.basename(path) for path in glob.glob(os.path.join(jobs, "run.*"))]
    folders = [os.path.join(jobs, name) for name in names]
    runs = [kind(mark) for mark in request["marks"]] + [kind(path, path) for path in folders]
    marks = {run.mark for run in runs}
    lock = os.path.join(temporary if emulated else "/tmp", "libtpu_lockfile")

    def of_runs():
        alive = look()
        return set().union(*(run.pids(alive) for run in runs)) if runs else set()

    def of_commands():
        return of_runs() - {run.leader for run in runs}

    def spared(job):
        return bool(request["holders"] == "orphans" and job and job not in marks)

    def of_devices():
        held = holders(paths | {lock}, look())
        return {pid for pid, each in held.items() if not spared(each.job)}

    ended, forced, left = end(of_commands, request["grace"])
    # The leader notes how its command has ended, and goes.
    limit = time.monotonic() + LEADER_SECONDS
    while not left and of_runs() and time.monotonic() < limit:
        time.sleep(LOOK_SECONDS)
    leaders, forced_leaders, left = end(of_runs, 1.0)
    ended, forced = ended | leaders, forced | forced_leaders
    for run in runs:
        if not run.pids(look()):
            run.leave_status(137 if forced else 143)
    answer = {"ended": len(ended), "forced": len(forced), "left": sorted(left)}
    if request["holders"] != "none":
        freed, forced, left = end(of_devices, request["grace"])
        still = holders(paths | {lock}, look())
        answer["holders_ended"] = len(freed)
        answer["forced"] += len(forced)
        answer["left"] = sorted({*answer["left"], *left})
        answer["spared"] = sorted(still.keys() - left)
        answer["lock_removed"] = not still and remove_lock(lock)
    print("\ntpukit-end " + json.dumps(answer))


main(*sys.argv[1:])

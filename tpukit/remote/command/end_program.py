"""End a run's processes, or whatever holds a TPU device, and make sure that they are gone.

    python3 -I - FOLDER TMPDIR EMULATED REQUEST

FOLDER is where our things are. REQUEST is a JSON object: `marks` are values of TPUKIT_JOB, `jobs`
names of folders of jobs, `signal` is what is sent first, TERM follows after half of the `grace`,
in seconds, and KILL after all of it. `holders` is "none", "told" (they stay), "ended" or "look":
then nothing else is done. Answers one line, "tpukit-end " and a JSON object.

Google's own runtime, a container of the user tpu-runtime, is never ended: its unit would start it
again five seconds later (docs/reference/real-workers.md).

A run's are the processes that carry its mark, those of its session and of its control group, and
all that descends from them: sudo drops the mark, and its children have a session of their own where
it uses a terminal of theirs.

On an emulated worker the files of FOLDER/emulated-devices stand in for the devices. Runs on the
Python of the oldest runtime version, 3.8, with nothing but its standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time

KILL_SECONDS = 5.0
#: A command may have been sent and not yet be there: the first look that finds nothing is doubted.
SETTLE_SECONDS = 0.3
LOOK_SECONDS = 0.05
LEADER_SECONDS = 20.0
RUNTIME_USER = "tpu-runtime"
BOOT = "/proc/sys/kernel/random/boot_id"


class Process:
    """One live process as /proc shows it; where there is none, as on macOS, its mark, from ps."""

    def __init__(self, pid, words=None):
        self.pid = pid
        self.zombie = self.parent = self.session = self.born = 0
        if words is None:
            fields = self.read("stat").rpartition(b")")[2].split()
            self.zombie = fields[0] in (b"Z", b"X")
            self.parent, self.session = int(fields[1]), int(fields[3])
            self.born = int(fields[19])
            words = self.read("environ").split(b"\0")
        marks = [each for each in words if each.startswith(b"TPUKIT_JOB=")]
        self.job = os.fsdecode(marks[-1].partition(b"=")[2]) if marks else ""

    def read(self, name):
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/{name}", "rb") as file:
            return file.read()
        return b""

    def command(self):
        words = self.read("cmdline")[:1000].replace(b"\0", b" ")
        return words.decode("utf-8", "replace").strip()

    def user(self):
        """Return the name of the user that it runs as, "" if there is none."""
        with contextlib.suppress(OSError, KeyError):
            return pwd.getpwuid(os.stat(f"/proc/{self.pid}").st_uid).pw_name
        return ""

    def ignores(self, number):
        ignored = re.search(rb"SigIgn:\s*(\w+)", self.read("status"))
        return bool(ignored and int(ignored[1], 16) >> (number - 1) & 1)

    def open_files(self):
        found = set()
        for link in glob.glob(f"/proc/{self.pid}/fd/*"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(link))
        return found


def look():
    """Return every live process but this one, by its id."""
    found = []
    if os.path.isdir("/proc/self"):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(IndexError):  # it has just gone
                found.append(Process(int(name)))
    else:
        listing = ["ps", "-axEww", "-o", "pid=,command="]
        done = subprocess.run(listing, stdout=subprocess.PIPE, check=False)
        for pid, *words in map(bytes.split, done.stdout.splitlines()):
            found.append(Process(int(pid), words))
    return {each.pid: each for each in found if not each.zombie and each.pid != os.getpid()}


class Run:
    """A job with its folder, or a command with its mark, and the processes that belong to it."""

    def __init__(self, mark, record, folder=""):
        self.mark, self.folder = mark, folder
        self.leader, self.born, self.scope = 0, 0, b""
        with contextlib.suppress(OSError, ValueError), open(record) as file, open(BOOT) as boot:
            leader, booted, born = file.read().split()
            if booted == boot.read().strip():
                self.leader, self.born = int(leader), int(born)
                self.scope = b"tpukit-%d-%d.scope" % (self.leader, self.born)
        self.known = {}

    def find(self, alive):
        """Return the ids of its processes, and of those that were once found and live."""
        leader = alive.get(self.leader)
        led = self.leader and not (leader and leader.born > self.born)  # or the id is another's
        found = {
            each.pid
            for each in alive.values()
            if each.job == self.mark
            or (led and each.session == self.leader and each.born >= self.born)
            or (self.folder and led and self.scope in each.read("cgroup"))
            or (each.pid in self.known and each.born == self.known[each.pid])
        }
        more = found
        while more:
            more = {
                each.pid
                for each in alive.values()
                if each.pid not in found and (each.parent in found or each.session in found)
            }
            found |= more
        self.known.update((pid, alive[pid].born) for pid in found)
        return found

    def leave_status(self, status):
        """Say how it ended where the runner could not."""
        if not (self.folder and self.known):
            return  # the folder of a lost one, of which nothing was there any more, says the truth
        new = f"{self.folder}/status.new"  # the user's own, with its blocks on the disk
        with contextlib.suppress(FileNotFoundError):  # the runner has said it itself
            with open(new, "r+") as file:
                file.write(f"{status:<7}\n")
            os.rename(new, f"{self.folder}/status")


def end(find, first, grace):
    """End what `find` finds; return who got which signal, and what is left."""
    began = time.monotonic()
    firm = began + grace / 2
    last = began + (0 if first == signal.SIGKILL else grace)
    sent, left = set(), {}
    empty = 0
    while time.monotonic() < last + KILL_SECONDS:
        alive = look()
        left = {pid: alive[pid] for pid in find(alive)}
        empty = 0 if left else empty + 1
        if empty == 2:
            break
        now = time.monotonic()
        for pid, each in left.items():
            number = signal.SIGTERM if now >= firm or each.ignores(first) else first
            number = signal.SIGKILL if now >= last else number
            if (pid, number) not in sent:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
            sent.add((pid, number))
        time.sleep(LOOK_SECONDS if left or sent else SETTLE_SECONDS)
    return sent, left


def devices(folder, emulated):
    if emulated:
        return set(glob.glob(os.path.join(folder, "emulated-devices/*")))
    return set(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*"))


def holders(paths, alive):
    return {pid: each for pid, each in alive.items() if paths & each.open_files()}


def described(found):
    return [
        {"pid": pid, "job": each.job, "command": each.command(), "user": each.user()}
        for pid, each in sorted(found.items())
    ]


def remove_lock(path):
    """Remove libtpu's lock file unless somebody has the lock; tell whether it was removed.

    libtpu leaves it behind and then refuses to start: jax-ml/jax#10192.
    """
    with contextlib.suppress(OSError), open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
        return True
    return False


def main(folder, temporary, emulated, request):
    request = json.loads(request)
    paths = devices(folder, emulated)
    if request["holders"] == "look":
        print("\ntpukit-end " + json.dumps({"held": described(holders(paths, look()))}))
        return
    first, grace = signal.Signals[f"SIG{request['signal']}"], request["grace"]
    lock = os.path.join(temporary if emulated else "/tmp", "libtpu_lockfile")
    jobs = request["jobs"]
    if jobs == "all":
        jobs = [os.path.basename(path) for path in glob.glob(f"{folder}/jobs/run.*")]
    runs = [Run(mark, f"{folder}/commands/{mark}") for mark in request["marks"]]
    runs += [Run(path, f"{path}/pid", path) for path in (f"{folder}/jobs/{job}" for job in jobs)]

    def of_runs(alive):
        return set().union(*(run.find(alive) for run in runs))

    def unwanted(alive):
        found = of_runs(alive) - {run.leader for run in runs if run.folder}
        if request["holders"] != "ended":
            return found
        held = holders(paths | {lock}, alive)
        return found | {pid for pid, each in held.items() if each.user() != RUNTIME_USER}

    sent, left = end(unwanted, first, grace)
    if not left:  # the leader notes how its command has ended, and goes: it is given time for that
        _, left = end(of_runs, signal.SIGCONT, LEADER_SECONDS)
    ended = {pid for pid, _ in sent}
    forced = {pid for pid, number in sent if number == signal.SIGKILL}
    alive = look()
    for run in runs:
        if not run.find(alive):
            run.leave_status(137 if forced & run.known.keys() else 143)
    known = set().union(*(run.known for run in runs))
    looks = request["holders"] != "none"
    held = holders(paths | {lock}, alive) if looks else {}
    answer = {
        "ended": len(ended & known),
        "holders_ended": len(ended - known),
        "forced": len(forced),
        "left": described(left),
        "why": "" if os.geteuid() == 0 else "sudo asks for a password there",
        "held": described({pid: held[pid] for pid in held.keys() - left.keys()}),
        "lock_removed": looks and not held and remove_lock(lock),
    }
    print("\ntpukit-end " + json.dumps(answer))


main(*sys.argv[1:])

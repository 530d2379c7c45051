"""Keep jobs on a worker: start one, send its log, list and remove them.

    main(REQUEST)

REQUEST is a JSON object: `verb` names what to do, `jobs` the folder of jobs. The answer is the last
line, "tpukit-job " and what it is. Runs on the Python of the oldest runtime version, 3.8, with
nothing but its standard library.

A job's folder has `command`, which sh runs; `about`, which listings show; `pid` (process id of its
runner, boot, and time of start); `log.OFFSET`, a piece of what it wrote that begins at OFFSET;
`log`, a link to the last one; `log.times`, lines `OFFSET EPOCH`, one a second with output at most;
`notify`, which sh runs at the end; and at the end `status`.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import glob
import json
import os
import select
import shutil
import signal
import sys
import termios
import time

PIECE = 1 << 18
LOOK_SECONDS = 0.1
#: Between two attempts to write where the disk is full.
ROOM_SECONDS = 0.5


def text(*path):
    """Return a small file's text, or nothing where it is not there."""
    with contextlib.suppress(OSError), open(os.path.join(*path), "rb") as file:
        return file.read().decode("utf-8", "replace").strip()
    return ""


def save(content, *path):
    with open(os.path.join(*path), "xb") as file:
        file.write(content.encode())


def locked(jobs):
    """Return the folder of jobs, open and locked: what starts or removes some does so alone."""
    lock = os.open(jobs, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def identity(pid):
    """Return what tells a live process from others that have had its id; nothing for a dead one."""
    if not os.path.isdir("/proc/self"):
        return " ".join(os.popen(f"ps -o lstart= -p {int(pid)}").read().split())
    with contextlib.suppress(OSError), open(f"/proc/{int(pid)}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        if fields[0] not in (b"Z", b"X"):
            return f"{text('/proc/sys/kernel/random/boot_id')} {fields[19].decode()}"
    return ""


def lives(folder):
    """Tell whether a job's runner is there, which stays for what the command has left behind."""
    pid, _, born = text(folder, "pid").partition(" ")
    return pid.isdigit() and identity(pid) == born


def stand(folder):
    """Return absent, running or lost; or finished, with the exit status after it."""
    if not os.path.isdir(folder):
        return "absent"
    otherwise = "running" if lives(folder) else "lost"
    status = text(folder, "status")  # looked at last: it may have ended since
    return f"finished {status}" if status.isdigit() else otherwise


def bases(folder):
    """Return where the pieces of a log begin."""
    names = [name[4:] for name in os.listdir(folder) if name.startswith("log.")]
    return sorted(int(name) for name in names if name.isdigit())


class Log:
    """The log as its only writer has it: two pieces at most, each of half the limit."""

    def __init__(self, folder, limit):
        self.folder, self.half = folder, limit // 2
        self.noted, self.waits = 0.0, True
        self.times = self.opened("log.times")
        self.begin_piece(0)

    def opened(self, name):
        path = os.path.join(self.folder, name)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def begin_piece(self, base):
        log = os.path.join(self.folder, "log")
        for each in bases(self.folder)[:-1]:
            os.unlink(f"{log}.{each}")
        new = self.opened(f"log.{base}")
        if base:
            os.close(self.file)
        self.file, self.base, self.end = new, base, base
        os.link(f"{log}.{base}", f"{log}.new")
        os.rename(f"{log}.new", log)

    def write(self, data):
        """Return when all is written: where the disk is full, the command waits with it."""
        if self.end > self.base and self.end + len(data) > self.base + self.half:
            with contextlib.suppress(OSError):
                self.begin_piece(self.end)
        self.note(time.time())
        while data:
            try:
                written = os.write(self.file, data)
            except OSError:
                if not self.waits:
                    return
                time.sleep(ROOM_SECONDS)
                continue
            data = data[written:]
            self.end += written

    def note(self, now):
        if abs(now - self.noted) < 1.0:
            return
        row = f"{self.end} {now:.0f}\n".encode()
        before = os.fstat(self.times).st_size
        with contextlib.suppress(OSError):
            if os.write(self.times, row) == len(row):
                self.noted = now
            else:
                os.ftruncate(self.times, before)


class Pieces:
    """The log as readers find it. The pieces are held open: what is dropped can be read on."""

    def __init__(self, folder):
        self.folder = folder
        self.files = [(0, open(os.devnull, "rb"))]  # noqa: SIM115
        self.refresh()

    def refresh(self):
        found = []  # the newest first: the oldest may go between two looks
        with contextlib.suppress(FileNotFoundError):
            for base in reversed(bases(self.folder)):
                found.append((base, open(f"{self.folder}/log.{base}", "rb")))  # noqa: SIM115
        self.files = found or self.files

    @property
    def start(self):
        return self.files[-1][0]

    @property
    def end(self):
        base, file = self.files[0]
        return base + os.fstat(file.fileno()).st_size

    def read(self, offset, size):
        for base, file in self.files:
            if offset >= base:
                return os.pread(file.fileno(), size, offset - base)
        return b""

    def before(self, offset):
        """Return the bytes up to an offset, those of one piece."""
        base = max((base for base, _ in self.files if base < offset), default=0)
        low = max(base, offset - PIECE)
        return self.read(low, offset - low)

    def whole_line(self, offset):
        """Return where the first line begins that does so at an offset or behind it."""
        if not offset or self.before(offset).endswith(b"\n"):
            return offset
        return offset + self.read(offset, PIECE).find(b"\n") + 1

    def last_lines(self, count):
        """Return where the last lines begin; one without an end counts."""
        offset = self.end
        left = count + self.before(offset).endswith(b"\n")
        while left and (block := self.before(offset)):
            found = block.count(b"\n")
            if found >= left:
                return offset - len(block.split(b"\n", found - left + 1)[-1])
            left, offset = left - found, offset - len(block)
        return self.whole_line(self.start) if left else offset


class Times:
    """When each part of the log was written, as far as that was noted."""

    def __init__(self, folder):
        self.offsets, self.epochs = [0], [0]
        self.file = open(os.path.join(folder, "log.times"))  # noqa: SIM115
        self.refresh()

    def refresh(self):
        for line in self.file:
            with contextlib.suppress(ValueError):
                offset, epoch = map(int, line.split())
                self.offsets.append(offset)
                self.epochs.append(epoch)

    def part(self, offset, end):
        """Return the time of what is at an offset, and where another time begins, or the end."""
        at = bisect.bisect_right(self.offsets, offset)
        return self.epochs[at - 1], min([*self.offsets[at : at + 1], end])

    def since(self, epoch, end):
        """Return where what was written after a time begins; a part takes a second at most."""
        late = (at for at, each in zip(self.offsets, self.epochs) if each > epoch - 1)  # noqa: B905
        return next(late, end)


def say(answer):
    """Answer on a line of its own: a login script, or a log, may have no end of line."""
    print("\ntpukit-job", answer, flush=True)


def follow(jobs, request):
    """Send the log from `offset`, or where `tail` or `since` says, in parts, then how it stands.

    A part is a line `tpukit-log OFFSET SIZE EPOCH` and its bytes; the epoch is 0 where nobody
    asked for times. Unless `on`, it ends where the log ends now. Nobody may be listening any more:
    that is looked for, too.
    """
    folder = os.path.join(jobs, request["job"])
    if not os.path.isdir(folder):
        return say("absent")
    pieces, offset, since = Pieces(folder), request["offset"], request["since"]
    times = Times(folder) if request["times"] or since is not None else None
    if offset is None:
        offset = -1 if request["tail"] is None else pieces.last_lines(request["tail"])
        if since is not None:
            late = times.since(since if since > 0 else time.time() + since, pieces.end)
            offset = max(offset, pieces.whole_line(late))
    listener = select.poll()
    listener.register(1, 0)
    while True:
        word = stand(folder)
        pieces.refresh()
        end = pieces.end
        if times:  # after the end was seen: a time is noted before what it is of
            times.refresh()
        if offset < pieces.start:
            offset = pieces.whole_line(pieces.start)
        while offset < end:
            epoch, until = times.part(offset, end) if times else (0, end)
            data = pieces.read(offset, min(PIECE, until - offset))
            if not data:
                break
            header = b"tpukit-log %d %d %d\n" % (offset, len(data), epoch)
            sys.stdout.buffer.write(header + data)
            sys.stdout.buffer.flush()
            offset += len(data)
        if word != "running" or not request["on"]:
            return say(word)
        if listener.poll(LOOK_SECONDS * 1000):
            return None


def listed(jobs, request):
    """Answer how the job stands, or each run's, and with `older` what was removed of them: JSON."""
    older, rows = request["older"], []
    if older is not None and os.path.isdir(jobs):
        locked(jobs)  # until this program ends
    for folder in sorted(glob.glob(os.path.join(glob.escape(jobs), request["job"] or "run.*"))):
        word, command = stand(folder), os.path.join(folder, "command")
        if word == "absent":
            continue
        begun = os.path.getmtime(command) if os.path.exists(command) else 0
        row = {"job": os.path.basename(folder), "stands": word, "started": begun}
        row["about"] = text(folder, "about")
        row["bytes"] = None if older is None else removed(folder, older)
        rows.append(row)
    say(json.dumps(rows))


def removed(folder, older):
    """Remove what does not live and ended so many seconds ago; return the bytes that this frees."""
    if lives(folder):  # it gives its files other names
        return None
    with os.scandir(folder) as entries:
        found = {each.inode(): each.stat(follow_symlinks=False) for each in entries}
    changed = max([each.st_mtime for each in found.values()], default=0)
    if time.time() - changed < older:
        return None
    shutil.rmtree(folder)
    return sum(each.st_blocks * 512 for each in found.values())


def start(jobs, request):
    """Start a job, at most once; answer started, present, or other (it has another command).

    Its folder gets its name when all of it is there, and its runner: a start that is cut off has
    started nothing, and the next one removes what it has left.
    """
    os.closerange(3, 256)  # what a login shell left open: the connection would wait for the runner
    umask = os.umask(0o077)
    os.makedirs(jobs, exist_ok=True)
    lock = locked(jobs)
    folder, new = os.path.join(jobs, request["job"]), os.path.join(jobs, ".new")
    if os.path.isdir(folder):
        same = text(folder, "command") == request["command"].strip()
        return say("present" if same else "other")
    shutil.rmtree(new, ignore_errors=True)
    os.mkdir(new)
    # The end has its blocks on the disk before the job can fill it.
    save("unknown\n", new, "status.new")
    for name in ("command", "about", "notify"):
        if request[name]:
            save(request[name], new, name)
    log = Log(new, request["limit"])
    ready, said = os.pipe()
    if os.fork():
        os.close(said)
        if not os.read(ready, 1):
            sys.exit(1)  # the other one, which ended, has said why
        return say("started")
    os.setsid()
    os.chdir(os.path.expanduser("~"))
    save(f"{os.getpid()} {identity(os.getpid())}\n", new, "pid")
    os.rename(new, folder)
    log.folder = folder
    os.write(said, b"+")
    null = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        os.dup2(null, each)
    for each in (lock, ready, said, null):
        os.close(each)
    os.umask(umask)
    enclose()
    return run(folder, request, log)


def enclose():
    """Have systemd put this process into a control group of its own, where sudo lets it.

    What leaves the session, and drops its mark, stays in there: end_program.py finds it.
    """
    if os.environ.get("TPUKIT_EMULATED_DEVICES") or not shutil.which("busctl"):
        return
    import subprocess

    pid, born = os.getpid(), identity(os.getpid()).rpartition(" ")[2]
    systemd = "org.freedesktop.systemd1"
    call = ["sudo", "-n", "busctl", "call", systemd, "/" + systemd.replace(".", "/")]
    call += [f"{systemd}.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    call += [f"tpukit-{pid}-{born}.scope", "fail", "1", "PIDs", "au", "1", str(pid), "0"]
    null = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(call, stdin=null, stdout=null, stderr=null, timeout=5, check=False)
        limit = time.monotonic() + (done.returncode == 0)
        while time.monotonic() < limit and "tpukit-" not in text("/proc/self/cgroup"):
            time.sleep(0.01)


def shell(path, output, lines="", **variables):
    """Let sh run a file in a process group of its own, after lines that may hold secrets.

    It reads those from a pipe: they are in no file, and on no command line.
    """
    import subprocess

    process = subprocess.Popen(
        ["sh", "-s", path],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **variables},
        preexec_fn=os.setpgrp,
    )
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(f'{lines}\nexec /bin/sh "$1" </dev/null\n'.encode())
    return process


def run(folder, request, log):
    """Run the command, write its log, then its status; stay while anything else writes to it."""
    output, ours = os.pipe()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # TERM to the session comes here too; the command leads a group of its own. Until it is there,
    # what comes is kept for it.
    early = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: early.append(number))
    path, lines = os.path.join(folder, "command"), request["environment"]
    command = shell(path, ours, lines, TPUKIT_JOB=folder)
    ended = False

    def pass_on(number, frame):
        if command.poll() is None:
            with contextlib.suppress(OSError):  # it has just gone, or is root's
                os.killpg(command.pid, number)
        else:
            log.waits = False

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    for number in early:
        pass_on(number, None)
    while True:
        ready, _, _ = select.select([output, woken], [], [])
        if woken in ready:
            os.read(woken, 512)
        if not ended and command.poll() is not None:
            ended = True
            # What the command has left in the pipe; what others go on writing can wait.
            left = fcntl.ioctl(output, termios.FIONREAD, bytes(4))
            log.write(os.read(output, int.from_bytes(left, sys.byteorder)))
            if not goes_down():
                leave_status(folder, command.returncode)
                if request["notify"]:
                    path = os.path.join(folder, "notify")
                    shell(path, ours, TPUKIT_STATUS=text(folder, "status"))
            os.close(ours)
        elif output in ready:
            data = os.read(output, PIECE)
            if not data:
                break
            log.write(data)


def goes_down():
    """Tell whether the worker goes down, so that how its commands end says nothing of them.

    systemd says so from when that is asked for, before it ends anything: systemctl(1),
    is-system-running. Where there is no systemd, or it does not answer, nobody knows.
    """
    answer = os.popen("timeout 5 systemctl is-system-running 2>/dev/null")
    return answer.read().strip() == "stopping"


def leave_status(folder, code):
    """Note how the command ended."""
    status = code if code >= 0 else 128 - code
    path = os.path.join(folder, "status.new")
    with open(path, "r+") as file:
        file.write(f"{status:<7}\n")
    os.rename(path, os.path.join(folder, "status"))


def main(request):
    request = json.loads(request)
    jobs = os.path.join(os.path.expanduser("~"), request["jobs"])
    verbs = {"start": start, "follow": follow, "list": listed}
    try:
        verbs[request["verb"]](jobs, request)
    except BrokenPipeError:  # nobody listens any more
        os._exit(0)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)


main(*sys.argv[1:])

"""Send a file, a folder or what a pattern matches in a folder, in one pass.

    python3 -I -c PROGRAM PATH PATTERN HAVE DIGEST

An empty pattern stands for none. Writes "tpukit-content KIND SIZE MODE TIME CODING", KIND file or
tree (a tar archive), SIZE of a tree an estimate, and all bytes but the first HAVE; then, on
standard error, "tpukit-content WORD REST": whole and the SHA-256 of all bytes; or, with nothing to
be kept, differs (the first HAVE bytes are not those of that SHA-256), absent, special, unread or
changed and the names, apart by NUL. Needs Python 3.8.

A file is sent as long as it is when it is opened: one may grow meanwhile. What of it was read is
read again where it has changed, and has to be the same.
"""

import glob
import hashlib
import os
import shutil
import stat
import sys
import tarfile
import zlib
from contextlib import suppress

CHUNK = 1 << 20
SAMPLE = 4 << 20
#: What shrinks less than this is sent as it is.
WORTHWHILE = 0.9
#: Bytes of a file that says it has none, as those of /proc do.
UNTOLD = 64 << 20
NAMES = 20


class Refused(Exception):
    """A word of the answer, and the names that belong to it."""


class Sender:
    """Sends what is written to it from an offset on, and hashes all."""

    def __init__(self, have, digest):
        self.have, self.digest, self.header = have, digest, ""
        self.found, self.size, self.held, self.squeezer = hashlib.sha256(), 0, bytearray(), None

    def describe(self, kind, size, found):
        mode = stat.S_IMODE(found.st_mode) & 0o777
        self.header = f"{kind} {size} {mode:o} {int(found.st_mtime)}"

    def tell(self):
        return self.size

    def write(self, data):
        ahead = max(0, self.have - self.size)
        self.hash(data[:ahead])
        if ahead and self.size == self.have and self.found.hexdigest() != self.digest:
            raise Refused("differs")
        self.hash(data[ahead:])
        if self.held is None:
            self.put(data[ahead:])
        else:
            self.held += data[ahead:]
            if len(self.held) >= SAMPLE:
                self.begin()

    def hash(self, data):
        self.found.update(data)
        self.size += len(data)

    def begin(self):
        sample, self.held = bytes(self.held), None
        shrinks = len(zlib.compress(sample[:SAMPLE], 1)) < WORTHWHILE * len(sample[:SAMPLE])
        self.squeezer = zlib.compressobj(1, zlib.DEFLATED, 31) if shrinks else None
        coding = "gzip" if shrinks else "plain"
        sys.stdout.buffer.write(f"\ntpukit-content {self.header} {coding}\n".encode())
        self.put(sample)

    def put(self, data):
        sys.stdout.buffer.write(self.squeezer.compress(data) if self.squeezer else data)

    def finish(self):
        if self.size < self.have:
            raise Refused("differs")
        if self.held is not None:
            self.begin()
        sys.stdout.buffer.write(self.squeezer.flush() if self.squeezer else b"")
        return self.found.hexdigest()


class Snapshot:
    """An open file as long as it was, which knows what was read of it."""

    def __init__(self, file):
        self.file, self.begun, self.sum, self.position = file, os.fstat(file.fileno()), 0, 0

    def read(self, size):
        size = min(size, self.begun.st_size - self.position)
        data = self.file.read(size)
        if len(data) < size:
            raise Refused("changed", self.file.name)
        self.sum = zlib.crc32(data, self.sum)
        self.position += size
        return data

    def check(self):
        if os.fstat(self.file.fileno()).st_mtime_ns != self.begun.st_mtime_ns:
            again = Snapshot(self.file)
            again.begun = self.begun
            self.file.seek(0)
            while again.read(CHUNK):
                pass
            if again.sum != self.sum:
                raise Refused("changed", self.file.name)


def main(path, pattern, have, digest):
    try:
        kind, members = content(path, pattern)
        files = [place for _, place, found in members if stat.S_ISREG(found.st_mode)]
        unread = [place for place in files if not os.access(place, os.R_OK)]
        if unread:
            raise Refused("unread", *unread)
        say("whole", sent(Sender(int(have), digest), kind, members))
    except Refused as refused:
        say(*refused.args)
    except (FileNotFoundError, NotADirectoryError):
        say("absent")
    except PermissionError as error:
        say("unread", error.filename)


def say(word, *names):
    sys.stdout.buffer.flush()
    rest = b"\0".join(os.fsencode(name) for name in names[:NAMES])
    sys.stderr.buffer.write(b"\ntpukit-content " + word.encode() + b" " + rest + b"\n")


def content(path, pattern):
    """Return the kind, and (name, path, status) of each member, what changed last at the end."""
    if pattern:
        os.chdir(path)
        kind, roots = "tree", [(each, os.path.abspath(each)) for each in sorted(glob.glob(pattern))]
    else:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise Refused("special")
        kind = "tree" if stat.S_ISDIR(mode) else "file"
        roots = [(".", os.path.realpath(path))]
    members = [member for name, root in roots for member in tree(name, root)]
    if not members:
        os.listdir(os.getcwd())  # where it cannot be read, nothing matches either
        raise FileNotFoundError
    # A download that goes on later finds the beginning as it was.
    return kind, sorted(members, key=lambda each: each[2].st_mtime_ns)


def tree(name, place):
    """Yield what is there and all that is below it, but for what is removed meanwhile."""
    try:
        found = os.lstat(place)
        yield name, place, found
        for each in sorted(os.listdir(place)) if stat.S_ISDIR(found.st_mode) else ():
            # What pushes have done in a tree is no part of it.
            if each == ".tpukit" and os.path.isfile(os.path.join(place, each, "pushed")):
                continue
            yield from tree(os.path.join(name, each), os.path.join(place, each))
    except FileNotFoundError:
        return


def sent(sender, kind, members):
    if kind == "file":
        with open(members[0][1], "rb") as file:
            snapshot = Snapshot(file)
            sender.describe(kind, snapshot.begun.st_size, snapshot.begun)
            if not snapshot.begun.st_size:
                sender.write(file.read(UNTOLD))
            shutil.copyfileobj(snapshot, sender, CHUNK)
            snapshot.check()
    else:
        sender.describe(kind, sum(1024 + each[2].st_size for each in members), members[0][2])
        with tarfile.open(fileobj=sender, mode="w:", format=tarfile.GNU_FORMAT) as archive:
            for member in members:
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    add(archive, *member)
    return sender.finish()


def add(archive, name, place, found):
    """Add a member as it is now; sockets and such hold nothing."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(found.st_mode) & 0o777, int(found.st_mtime)
    if stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(place)
        archive.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        with open(place, "rb", buffering=0) as file:
            snapshot = Snapshot(file)
            info.size, info.mtime = snapshot.begun.st_size, int(snapshot.begun.st_mtime)
            archive.addfile(info, snapshot)
            snapshot.check()


try:
    main(*sys.argv[1:])
except BrokenPipeError:
    os._exit(1)

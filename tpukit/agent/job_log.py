"""The output of a job: one writer keeps it, and any number of readers read it.

A job's folder has `log.OFFSET`, a piece of the output from OFFSET on; `log`, a link to the last
piece; and `log.dropped`, the number of bytes for which the disk had no room. Offsets do not count
dropped bytes.
"""

from __future__ import annotations

import contextlib
import os

PIECE = 1 << 18


def bases(folder: str) -> list[int]:
    """Return the offsets at which the pieces of a log begin."""
    names = [name[4:] for name in os.listdir(folder) if name.startswith("log.")]
    return sorted(int(name) for name in names if name.isdigit())


class Log:
    """The writer of a log: it keeps at most two pieces, each of half the limit."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.half = folder, limit // 2
        self.dropped, self.untold = 0, 0
        self.line_ends = True
        self.count = self.opened("log.dropped", 0)
        self.say_dropped()  # reserves its block before the disk can be full
        self.file = -1
        self.begin_piece(0)

    def opened(self, name: str, more: int = os.O_APPEND) -> int:
        """Open a file of the log for writing, and return its descriptor."""
        return os.open(os.path.join(self.folder, name), os.O_WRONLY | os.O_CREAT | more, 0o600)

    def begin_piece(self, base: int) -> None:
        """Begin a piece at an offset, and remove all earlier pieces except the last one."""
        log = os.path.join(self.folder, "log")
        for old in bases(self.folder)[:-1]:
            os.unlink(f"{log}.{old}")
        new = self.opened(f"log.{base}")
        if base:
            os.close(self.file)
        self.file, self.base, self.end = new, base, base
        os.link(f"{log}.{base}", f"{log}.new")
        os.rename(f"{log}.new", log)

    def write(self, data: bytes) -> None:
        """Write as much as the disk has room for, and count the rest: the command must not wait.

        A later line in the log tells how many bytes are missing at that place.
        """
        if self.end > self.base and self.end + len(data) > self.base + self.half:
            with contextlib.suppress(OSError):
                self.begin_piece(self.end)
        if self.untold:
            words = f"tpukit: the disk was full, and {self.untold} bytes of output were dropped"
            notice = (b"" if self.line_ends else b"\n") + words.encode() + b"\n"
            if self.append(notice) < len(notice):
                self.drop(len(data))
                return
            self.untold = 0
        missing = len(data) - self.append(data)
        if missing:
            self.drop(missing)

    def append(self, data: bytes) -> int:
        """Write bytes, and return how many of them the disk took."""
        written = 0
        with contextlib.suppress(OSError):
            while written < len(data):
                written += os.write(self.file, data[written:])
        self.end += written
        if written:
            self.line_ends = data[written - 1 : written] == b"\n"
        return written

    def drop(self, count: int) -> None:
        """Count bytes for which the disk has no room."""
        self.dropped += count
        self.untold += count
        with contextlib.suppress(OSError):  # a broken disk takes nothing; the command goes on
            self.say_dropped()

    def say_dropped(self) -> None:
        """Note how many bytes were dropped."""
        os.pwrite(self.count, f"{self.dropped:<19}\n".encode(), 0)


class Pieces:
    """The pieces of a log for a reader; they stay open, so a removed piece is still readable."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files = [(0, open(os.devnull, "rb"))]  # noqa: SIM115
        self.refresh()

    def refresh(self) -> None:
        """Open the current pieces."""
        files = []  # newest first, because the oldest may disappear meanwhile
        with contextlib.suppress(FileNotFoundError):
            for base in reversed(bases(self.folder)):
                files.append((base, open(f"{self.folder}/log.{base}", "rb")))  # noqa: SIM115
        self.files = files or self.files

    @property
    def start(self) -> int:
        return self.files[-1][0]

    @property
    def end(self) -> int:
        base, file = self.files[0]
        return base + os.fstat(file.fileno()).st_size

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset, of one piece; none if that piece was removed."""
        for base, file in self.files:
            if offset >= base:
                return os.pread(file.fileno(), size, offset - base)
        return b""

    def before(self, offset: int) -> bytes:
        """Return the bytes before an offset, of one piece."""
        base = max((base for base, _ in self.files if base < offset), default=0)
        low = max(base, offset - PIECE)
        return self.read(low, offset - low)

    def whole_line(self, offset: int) -> int:
        """Return the offset of the first line that begins at or after an offset."""
        if not offset or self.before(offset).endswith(b"\n"):
            return offset
        return offset + self.read(offset, PIECE).find(b"\n") + 1

    def last_lines(self, count: int, mark: bytes = b"") -> int:
        """Return the offset of the last `count` lines that begin with a mark.

        Without a mark every line counts, also one without an end.
        """
        offset = self.end
        left = count + (not mark and self.before(offset).endswith(b"\n"))
        while left:
            block = self.before(offset)
            if not block:
                break
            text = block + self.read(offset, len(mark))  # a mark may cross the end of the block
            lines = text.count(b"\n" + mark)
            if lines >= left:
                rest = text.split(b"\n" + mark, lines - left + 1)[-1]
                return offset - len(block) + len(text) - len(mark) - len(rest)
            left, offset = left - lines, offset - len(block)
        return self.whole_line(self.start) if left else offset

"""Folders as tar archives, for both ends of a copy: one end makes them, the other unpacks them.

An archive is made while it is read. Unchanged files give the same archive every time.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from io import BufferedReader, FileIO
from typing import Callable, Iterable, Iterator, NamedTuple

from tpukit.agent.contents import CHUNK, Advance, FilePart, Part, write

#: The folder in a pushed tree with the record of the pushes.
STATE_FOLDER = ".tpukit"
#: More than any header of an honest archive; a hostile header could use up the memory.
_LARGEST_HEADER = 1 << 20
#: The errors of file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Member(NamedTuple):
    """A file or folder to send: its name in the archive, its path, and its status when listed."""

    name: str
    path: str
    status: os.stat_result

    @property
    def holds_bytes(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def is_special(self) -> bool:
        kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
        return not any(is_kind(self.status.st_mode) for is_kind in kinds)


class Unsafe(Exception):
    """An archive has a member that no honest one has; the error has its name and the reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class Unpacked(NamedTuple):
    """The differences after unpacking: links left out, and hard links that became files."""

    left_out: list[str]
    copied_links: int


def members(name: str, path: str) -> Iterator[Member]:
    """Yield the file or folder at a path, and a folder's contents; skip files that disappear."""
    try:
        status = os.lstat(path)
        yield Member(name, path, status)
        for inside in sorted(os.listdir(path)) if stat.S_ISDIR(status.st_mode) else ():
            below = os.path.join(path, inside)
            if inside != STATE_FOLDER or not os.path.isfile(os.path.join(below, "pushed")):
                yield from members(os.path.join(name, inside), below)
    except FileNotFoundError:
        return


def archived(listed: Iterable[Member]) -> Iterator[Part]:
    """Yield the archive of members, without special files.

    The second name of a file becomes a hard link.
    """
    first_names: dict[tuple[int, int], str] = {}
    for name, path, status in (member for member in listed if not member.is_special):
        info, inode = tarfile.TarInfo(name), (status.st_dev, status.st_ino)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
        content: Part = b""
        if stat.S_ISDIR(status.st_mode):
            info.type, info.mode = tarfile.DIRTYPE, info.mode | 0o700  # unpacking writes into it
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        elif inode in first_names:
            info.type, info.linkname = tarfile.LNKTYPE, first_names[inode]
        else:
            content = FilePart(path, status)
            if status.st_nlink > 1:
                first_names[inode] = name
        yield from entry(info, content)
    yield bytes(2 * tarfile.BLOCKSIZE)


def entry(info: tarfile.TarInfo, content: Part) -> Iterator[Part]:
    """Yield the archive's parts for a member with this content."""
    info.size = len(content)
    # GNU's format stores names unchanged, and both GNU tar and bsdtar read it.
    yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    yield content
    yield bytes(-info.size % tarfile.BLOCKSIZE)


def unpack(
    archive: str,
    folder: str,
    *,
    sparse: bool,
    advance: Advance = lambda amount: None,
    confined: bool = False,
    expects: Callable[[tuple[str, ...]], bool] = lambda parts: True,
) -> Unpacked:
    """Unpack an archive into an empty folder: folders and files first, then links.

    This order prevents writing through a link. If `sparse`, zeros become holes. If `confined`,
    links that lead out of the folder are left out, and the owner can read and write all files.
    `expects` gets the parts of each name, and returns True if the name is allowed.

    Raises:
        Unsafe: a name or a hard link leads out of the folder or is not expected, or a member is
            neither file, folder nor link.
        tarfile.TarError, ValueError, OverflowError, RecursionError: the archive is broken.
    """
    links: list[tuple[str, str]] = []
    folders: dict[str, tuple[int, float]] = {}
    copied = 0
    with _Bounded(FileIO(archive)) as file, tarfile.open(fileobj=file, mode="r:") as opened:
        for member in iter(opened.next, None):
            opened.members = []  # type: ignore[attr-defined]  # else it grows with every member
            parts = _parts(member.name)
            if parts and not expects(parts):
                raise Unsafe(member.name, "was not asked for")
            path = os.path.join(folder, *parts)
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            if member.issym():
                links.append((path, member.linkname))
            elif member.isdir():
                os.makedirs(path, exist_ok=True)
                folders[path] = (member.mode & 0o755 | 0o700, member.mtime)
            elif member.islnk():
                copied += _link(os.path.join(folder, *_parts(member.linkname)), path)
            elif member.isreg() and not member.issparse() and parts:
                mode = member.mode & 0o755 | (0o600 if confined else 0)
                _extract(opened, member, path, mode, sparse, advance)
            else:
                raise Unsafe(member.name, "is no file, folder or link")
            advance(1)
    # No link exists yet, so every folder here is a real one.
    outside = [confined and not _stays_inside(folder, *link) for link in links]
    for (path, leads_to), leads_out in zip(links, outside):
        if not leads_out:
            os.symlink(leads_to, path)
    os.chmod(folder, 0o755)
    for path, (mode, modified) in sorted(folders.items(), reverse=True):
        os.chmod(path, mode)
        os.utime(path, (modified, modified))
    left_out = [os.path.relpath(path, folder) for (path, _), out in zip(links, outside) if out]
    return Unpacked(left_out, copied)


def _extract(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    path: str,
    mode: int,
    sparse: bool,
    advance: Advance,
) -> None:
    source, position = archive.extractfile(member), 0
    assert source is not None
    # O_EXCL refuses a name that comes twice.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, mode), "wb", 0) as file:
        for chunk in iter(lambda: source.read(CHUNK), b""):
            write(file, chunk, position, sparse)
            position += len(chunk)
            advance(len(chunk))
        os.ftruncate(file.fileno(), position)
    os.utime(path, (member.mtime, member.mtime))


def _link(first: str, path: str) -> int:
    """Make a second name of a file; return 1 if it had to become a separate file."""
    try:
        os.link(first, path, follow_symlinks=False)
        return 0
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    shutil.copy2(first, path)
    return 1


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Unsafe(name, "leads out of the target")
    return parts


def _stays_inside(folder: str, link: str, leads_to: str) -> bool:
    """Return True if a link certainly leads to a place in the folder.

    `..` is allowed only after a real folder. After a link, or a name that could become one in the
    target, its meaning would depend on that link.
    """
    if not leads_to or leads_to.startswith("/") or "\0" in leads_to:
        return False
    place = os.path.dirname(link)
    for part in leads_to.split("/"):
        if part == "..":
            if place == folder or not os.path.isdir(place):
                return False
            place = os.path.dirname(place)
        elif part not in ("", "."):
            place = os.path.join(place, part)
    return True


class _Bounded(BufferedReader):
    """A file from which tarfile reads headers; refuses large reads."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LARGEST_HEADER:
            raise tarfile.ReadError("a header is too large")
        return super().read(size)

"""Receives uploads from a client or from another worker: stages, verifies and places them.

An upload is staged on the file system of its target, as PATH. Simultaneous uploads of the same
bytes to the same place share this file. The process that completes it renames it to PATH.PID; then
no other process writes to it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import time
from io import BufferedReader
from typing import IO, Iterable, cast

from tpukit.agent.archives import STATE_FOLDER, unpack
from tpukit.agent.contents import CHUNK, FULL, hashed, inflated, inflater, write
from tpukit.agent.main import Home, Request, say
from tpukit.agent.placing import check_replaceable, merge, put_file
from tpukit.agent.progress import ProgressReport
from tpukit.agent.pushed_trees import apply_push

#: Seconds after which the files of interrupted uploads are removed.
WEEK = 7 * 86400
_STAGED = re.compile(r"\.tpukit-upload-[0-9a-f]{32}(\.[0-9a-z.]+)?")


def look_at_upload(home: Home, request: Request) -> None:
    """Answer the state of an upload, the `path` where it is staged, and the `free` bytes there.

    The `state` is "unchanged" (the target has these bytes and this mode), "sent" (the mode has just
    been set), or "partial" with `size` bytes. `into` is true if the target is a folder to contain
    the upload; a request with a `path` sets it.
    """
    target = os.path.join(home.path, request["target"])
    if not request["path"]:
        request["into"] = request["into"] or os.path.isdir(target)
    place = _place(home, request)
    path = request["path"] or os.path.join(_stage(place, request["kind"]), request["staged"])
    folder = _standing(os.path.dirname(path))
    _remove_old(folder)
    state, size = _state(path, place, request)
    room = os.statvfs(folder)
    free, into = room.f_bavail * room.f_frsize, request["into"]
    say({"state": state, "size": size, "path": path, "into": into, "free": free})


def receive_upload(home: Home, request: Request) -> None:
    """Write standard input to the staged file, and answer as `keep` does."""
    stdin = cast("BufferedReader", sys.stdin.buffer)
    arriving, unzip = iter(lambda: stdin.read1(CHUNK), b""), inflater()
    pieces = (piece for chunk in arriving for piece in inflated(chunk, unzip))
    keep(home, request, pieces if request["gzip"] else arriving)


def keep(home: Home, request: Request, chunks: Iterable[bytes]) -> None:
    """Write to the staged file from `offset` on, and put it in place when it is complete.

    The answer's `state` is "sent", "partial" with `size` bytes, or "corrupt" (the staged file is
    removed). `copied_links` counts hard links that became files on a file system without them.

    Raises `OSError`; if the disk is full, the staged file is removed.
    """
    os.umask(0o022)
    path, progress = request["path"], ProgressReport()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", 0) as file:
        try:
            _write_all(file, path, request, chunks, progress)
        except OSError as error:
            if error.errno in FULL and _is_at(path, file):
                os.unlink(path)
            raise OSError(error.errno, error.strerror, path) from error
        size = os.fstat(file.fileno()).st_size if _is_at(path, file) else 0
    if size < request["size"]:
        say({"state": "partial", "size": size})
    else:
        say(_finish(home, request, progress))


def _write_all(
    file: IO[bytes], path: str, request: Request, chunks: Iterable[bytes], progress: ProgressReport
) -> None:
    """Write the chunks until another process completes and renames the file."""
    position = request["offset"]
    if os.fstat(file.fileno()).st_size < position:
        return
    for chunk in chunks:
        if not _is_at(path, file):
            return
        write(file, chunk, position, request["sparse"])
        position += len(chunk)
        progress.advance(len(chunk))
    if os.fstat(file.fileno()).st_size < position:  # it ends with a hole
        os.pwrite(file.fileno(), b"\0", position - 1)


def _finish(home: Home, request: Request, progress: ProgressReport) -> Request:
    """Put a staged file in place if its bytes are right, and remove it otherwise."""
    path = request["path"]
    mine = f"{path}.{os.getpid()}"
    try:
        os.rename(path, mine)
    except FileNotFoundError:  # another process has completed it
        return {"state": "partial", "size": 0}
    try:
        if not _is_whole(mine, request, progress):
            os.unlink(mine)
            return {"state": "corrupt", "size": 0}
        put = {"file": _put_file, "tree": _put_tree, "push": apply_push}[request["kind"]]
        return {"state": "sent", "size": request["size"], **put(home, request, mine, progress)}
    except OSError as error:
        if error.errno in FULL:
            os.unlink(mine)
        raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(mine, 0o600)
            os.rename(mine, path)  # for another try


def _place(home: Home, request: Request) -> str:
    """Return the file or folder that an upload becomes, or the folder that will contain it.

    A link in place of a file is followed, as with `cp`.
    """
    place = os.path.join(home.path, request["target"])
    if request["kind"] == "file":
        place = os.path.join(place, request["name"]) if request["into"] else place
        place = os.path.realpath(place)
        if os.path.isdir(place):
            sys.exit(f"{place} is a folder there")
        check_replaceable(place)
    return place


def _stage(place: str, kind: str) -> str:
    """Return the folder in which an upload is staged, on the file system of its place."""
    if kind == "push":
        return os.path.join(place, STATE_FOLDER)
    return _standing(place if os.path.isdir(place) else os.path.dirname(place))


def _standing(folder: str) -> str:
    """Return the folder, or the nearest existing one above it."""
    while not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
        folder = os.path.dirname(folder)
    return os.path.realpath(folder)


def _remove_old(folder: str) -> None:
    """Remove the files of interrupted uploads from a folder after a week."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _STAGED.fullmatch(entry.name) and entry.stat().st_mtime < time.time() - WEEK:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _state(path: str, place: str, request: Request) -> tuple[str, int]:
    size = request["size"]
    with contextlib.suppress(OSError):
        if request["kind"] == "file" and _is_whole(place, request, ProgressReport()):
            if stat.S_IMODE(os.stat(place).st_mode) == request["mode"]:
                return "unchanged", size
            os.chmod(place, request["mode"])
            return "sent", size
    try:
        return "partial", min(size, os.stat(path).st_size)
    except FileNotFoundError:
        return "partial", 0


def _is_whole(path: str, request: Request, progress: ProgressReport) -> bool:
    """Return True if a file has the bytes of the upload."""
    with open(path, "rb") as file:
        as_long = os.fstat(file.fileno()).st_size == request["size"]
        return as_long and hashed(file, progress.advance).hexdigest() == str(request["digest"])


def _is_at(path: str, file: IO[bytes]) -> bool:
    """Return True if an open file still has its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _put_file(home: Home, request: Request, mine: str, progress: ProgressReport) -> Request:
    place = _place(home, request)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    os.chmod(mine, request["mode"])
    put_file(mine, place)
    return {}


def _put_tree(home: Home, request: Request, mine: str, progress: ProgressReport) -> Request:
    """Unpack an archive and merge it with the existing files."""
    target, into, new = _place(home, request), request["into"], f"{mine}.new"
    try:
        os.mkdir(new, 0o700)
        unpacked = unpack(mine, new, sparse=request["sparse"], advance=progress.advance)
        os.makedirs(target if into else os.path.dirname(target), exist_ok=True)
        merge(new if into else os.path.join(new, request["name"]), target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    os.unlink(mine)
    return {"copied_links": unpacked.copied_links or None}

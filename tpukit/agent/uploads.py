"""Bytes from a client: staged beside the place where they go, verified, then put there.

An upload is staged on the file system of its target: as PATH.part while it arrives, then as PATH.
Whoever uploads the same to the same place writes the same bytes to the same file. A staged file
has the mode VERIFIED once it was compared with its SHA-256; nothing else is ever put in place.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import time
import zlib
from io import BufferedReader
from typing import IO, Iterable, Iterator, cast

from tpukit.agent.main import Home, Request, say
from tpukit.agent.progress import ProgressReport
from tpukit.agent.trees import CHUNK, FULL, merge, put_file, unpack, write

VERIFIED = 0o400
#: Seconds after which what an interrupted upload has left is removed.
WEEK = 7 * 86400
_STAGED = re.compile(r"\.tpukit-upload-[0-9a-f]{32}(\.[0-9a-z.]+)?")


class Gone(Exception):
    """What was staged is not there, or another one is still verifying it."""


def look_at_upload(home: Home, request: Request) -> None:
    """Answer what is here of an upload, at which `path` it is staged, and what is `free` there.

    `state` is unchanged (the target has these bytes, and the mode), sent (it has, since now),
    complete, or partial with `size` bytes. `into` says if the target is a folder that takes it;
    the request says so itself once it has a `path`.
    """
    target = os.path.join(home.path, request["target"])
    if not request["path"]:
        request["into"] = request["into"] or os.path.isdir(target)
    place = _place(home, request)
    staged = request["path"] or os.path.join(_stage(place, request["kind"]), request["staged"])
    folder = _standing(os.path.dirname(staged))
    _remove_old(folder)
    state, size = _state(staged, place, request, ProgressReport())
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    into = request["into"]
    say({"state": state, "size": size, "path": staged, "into": into, "free": free})


def receive_upload(home: Home, request: Request) -> None:
    """Write standard input to the staged file, from `offset` on."""
    stdin = cast("BufferedReader", sys.stdin.buffer)
    arriving = iter(lambda: stdin.read1(CHUNK), b"")
    keep(request, _inflated(arriving) if request["gzip"] else arriving)


def keep(request: Request, chunks: Iterable[bytes]) -> None:
    """Write what comes to the staged file, and answer what is here of it.

    `state` is complete, partial with `size` bytes, or corrupt: then nothing is here any more.
    Raises `OSError` if the disk is full, and leaves nothing there.
    """
    whole, progress = request["path"], ProgressReport()
    part = whole + ".part"
    os.umask(0o022)
    os.makedirs(os.path.dirname(part), mode=0o700, exist_ok=True)
    with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", 0) as file:
        try:
            _write_all(file, part, request, chunks, progress)
        except OSError as error:
            if error.errno in FULL and _is_at(part, file):
                os.unlink(part)
            raise OSError(error.errno, error.strerror, part) from error
        size = os.fstat(file.fileno()).st_size if _is_at(part, file) else 0
    state = "partial"
    if size >= request["size"]:
        with contextlib.suppress(FileNotFoundError):
            os.rename(part, whole)  # from now on nobody else writes to it
        state = _verified(whole, request, progress)
    say({"state": state, "size": size if state != "corrupt" else 0})


def place_upload(home: Home, request: Request) -> None:
    """Put what is staged in place; answer sent, or partial if it is not there any more.

    `copied_links` counts hard links that became files, on a file system that has none.
    """
    os.umask(0o022)
    put = _put_file if request["kind"] == "file" else _put_tree
    try:
        copied = put(request, _place(home, request))
        say({"state": "sent", "size": request["size"], "copied_links": copied or None})
    except Gone:
        say({"state": "partial", "size": 0})


def _write_all(
    file: IO[bytes], part: str, request: Request, chunks: Iterable[bytes], progress: ProgressReport
) -> None:
    """Write what comes while the part has its name: who completes or places it takes that away."""
    position = request["offset"]
    if os.fstat(file.fileno()).st_size < position:
        return
    for chunk in chunks:
        if not _is_at(part, file):
            return
        write(file, chunk, position, request["sparse"])
        position += len(chunk)
        progress.advance(len(chunk))
    if os.fstat(file.fileno()).st_size < position:  # it ends with a hole
        os.pwrite(file.fileno(), b"\0", position - 1)


def _place(home: Home, request: Request) -> str:
    """Return the file or folder that an upload becomes, or the folder that takes several things.

    A file goes through a link, as with `cp`.
    """
    place = os.path.join(home.path, request["target"])
    if request["kind"] == "file":
        place = os.path.join(place, request["name"]) if request["into"] else place
        place = os.path.realpath(place)
        if os.path.isdir(place):
            sys.exit(f"{place} is a folder there")
    return place


def _stage(place: str, kind: str) -> str:
    """Return the folder in which an upload is staged, on the file system of its place."""
    if kind == "payload":  # the folder is made for it
        return place
    return _standing(place if os.path.isdir(place) else os.path.dirname(place))


def _standing(folder: str) -> str:
    """Return the folder, or the nearest one above it that there is."""
    while not os.path.isdir(folder):
        if os.path.lexists(folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
        folder = os.path.dirname(folder)
    return os.path.realpath(folder)


def _remove_old(folder: str) -> None:
    """Remove what interrupted uploads left in a folder, after a week."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _STAGED.fullmatch(entry.name) and entry.stat().st_mtime < time.time() - WEEK:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _state(staged: str, place: str, request: Request, progress: ProgressReport) -> tuple[str, int]:
    size = request["size"]
    if request["kind"] == "file" and _has(place, request, progress):
        if stat.S_IMODE(os.stat(place).st_mode) == request["mode"]:
            return "unchanged", size
        os.chmod(place, request["mode"])
        return "sent", size
    if _verified(staged, request, progress) == "complete":
        return "complete", size
    try:
        return "partial", min(size, os.stat(staged + ".part").st_size)
    except FileNotFoundError:
        return "partial", 0


def _has(path: str, request: Request, progress: ProgressReport) -> bool:
    """Tell whether a file has the bytes of the upload."""
    try:
        with open(path, "rb") as file:
            return _is_whole(file, request, progress)
    except OSError:
        return False


def _verified(whole: str, request: Request, progress: ProgressReport) -> str:
    """Return complete if a staged file is what was sent; remove it if it is corrupt.

    Return partial if there is none.
    """
    try:
        with open(whole, "rb") as file:
            if _is_whole(file, request, progress):
                os.fchmod(file.fileno(), VERIFIED)
                return "complete"
        os.unlink(whole)
        return "corrupt"
    except FileNotFoundError:
        return "partial"


def _is_whole(file: IO[bytes], request: Request, progress: ProgressReport) -> bool:
    if os.fstat(file.fileno()).st_size != request["size"]:
        return False
    hashed = hashlib.sha256()
    for chunk in iter(lambda: file.read(CHUNK), b""):
        hashed.update(chunk)
        progress.advance(len(chunk))
    return hashed.hexdigest() == str(request["digest"])


def _is_at(path: str, file: IO[bytes]) -> bool:
    """Tell whether an open file still has its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _inflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what a gzip stream holds, never more than a megabyte at a time."""
    inflater = zlib.decompressobj(31)
    for chunk in chunks:
        while chunk:
            yield inflater.decompress(chunk, CHUNK)
            chunk = inflater.unconsumed_tail


def _put_file(request: Request, place: str) -> int:
    """Rename the staged file to its place; raise `Gone` if it is not there, or not verified."""
    whole = request["path"]
    mine = f"{whole}.{os.getpid()}"  # nobody else renames what is verified meanwhile
    try:
        os.rename(whole, mine)
    except FileNotFoundError:
        raise Gone from None
    placed = False
    try:
        _check_verified(os.stat(mine))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.chmod(mine, request["mode"])
        put_file(mine, place)
        placed = True
    finally:
        if not placed:
            os.rename(mine, whole)
    return 0


def _put_tree(request: Request, target: str) -> int:
    """Unpack the staged archive and merge it with what is there, each file in one step.

    Return how many hard links were copied. Raise `Gone` as for a file.
    """
    whole, into = request["path"], request["into"]
    new = f"{whole}.{os.getpid()}.new"
    if not os.path.exists(whole):
        raise Gone
    with open(whole, "rb") as file:
        _check_verified(os.fstat(file.fileno()))
        try:
            os.mkdir(new, 0o700)
            copied = unpack(file, new, request["sparse"], ProgressReport())
            os.makedirs(target if into else os.path.dirname(target), exist_ok=True)
            merge(new if into else os.path.join(new, request["name"]), target)
        except OSError as error:
            if error.errno in FULL:
                os.unlink(whole)
            raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(whole)
    return copied


def _check_verified(status: os.stat_result) -> None:
    if stat.S_IMODE(status.st_mode) != VERIFIED:
        raise Gone

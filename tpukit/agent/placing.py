"""Moves received files and folders into place."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil


def merge(source: str, target: str) -> None:
    """Move a folder's contents into another folder, which may be new; keep its other files."""
    if not os.path.isdir(target):
        try:
            os.rename(source, target)
            return
        except OSError as error:
            # Another process has just made the folder, or it would be on another disk.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EXDEV):
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(target, os.stat(source).st_mode & 0o777)
    for name in sorted(os.listdir(source)):
        new, place = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(new) and not os.path.islink(new):
            merge(new, place)
        else:
            put_file(new, place)


def check_replaceable(place: str) -> None:
    """Raise `FileExistsError` if there is a device, a pipe or a socket at a place."""
    if os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place):
        raise FileExistsError(errno.EEXIST, "it is neither a file nor a folder", place)


def put_file(new: str, place: str) -> None:
    """Replace the file at a place in one step; follow a link there, as `cp` does.

    Raises `FileExistsError` if there is a device, a pipe or a socket.
    """
    place = place if os.path.islink(new) else os.path.realpath(place)
    check_replaceable(place)
    move_file(new, place)


def move_file(new: str, place: str) -> None:
    """Replace the file or link at a place by another one, in one step.

    Programs that have the old file open keep it. The place may be on another disk.
    """
    try:
        os.rename(new, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = os.path.join(os.path.dirname(place), f".tpukit-upload-{os.getpid()}")
        try:
            shutil.copy2(new, beside, follow_symlinks=False)
            os.rename(beside, place)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            raise

"""The folders of emulated workers: found, and removed without touching anything else."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")

_log = logging.getLogger(__name__)


def all_folders(directory: Path) -> list[Path]:
    """Return the folders of all workers below `directory`, each with the worker's own hostname."""
    return [note.parent.parent for note in directory.glob("*/etc/node")]


def folders(directory: Path, node: str) -> list[Path]:
    """Return the folders of a node's workers among all those below `directory`."""
    return [each for each in all_folders(directory) if _note(each / "etc/node") == node]


def _note(path: Path) -> str:
    """Return the content of a note; a worker's programs may have damaged it."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def remove_shares(folder: Path) -> None:
    """Remove what a worker has shared with others: its address can be another one's soon."""
    address = _note(folder / "etc/address")
    if address and (shared := folder.parent / "exports" / Path(address).name).is_dir():
        remove(shared)


def remove(folder: Path) -> None:
    """Remove a worker's files, and nothing that links or mounts among them lead to.

    A folder in which something is mounted stays as it is.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    if mounted := mounts_below(folder):
        _log.warning("%s is not removed: %s is mounted there", folder, mounted[0])
        return
    # A user's program may have left folders that forbid their own removal.
    for parent, names, _ in os.walk(folder):
        for name in names:
            child = Path(parent, name)
            if not child.is_symlink():
                child.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def mounts_below(folder: Path) -> list[Path]:
    """Return what is mounted in a folder of this machine."""
    table = Path("/proc/self/mountinfo")
    if not table.exists():  # elsewhere than on Linux there are no mounts within a file system
        return [Path(parent) for parent, _, _ in os.walk(folder) if os.path.ismount(parent)]
    # proc_pid_mountinfo(5): the fifth field is the mount point, with blanks and such in octal.
    points = [line.split()[4] for line in table.read_text().splitlines()]
    found = [Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), point)) for point in points]
    return [point for point in found if point.is_relative_to(folder.resolve())]

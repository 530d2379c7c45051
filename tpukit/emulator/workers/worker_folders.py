"""Find the folders of emulated workers, and remove them without touching anything else."""

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
    """Return the folders of all workers below `directory`, each named by a worker's hostname."""
    return [note.parent.parent for note in directory.glob("*/etc/node")]


def folders(directory: Path, node: str) -> list[Path]:
    """Return the folders of a node's workers among all those below `directory`."""
    return [path for path in all_folders(directory) if _note(path / "etc/node") == node]


def _note(path: Path) -> str:
    """Return the content of a note, or "" if a worker's programs have damaged it."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def remove_shares(folder: Path) -> None:
    """Remove the files that a worker shares with others: another may get its address soon."""
    address = _note(folder / "etc/address")
    if address and (shared := folder.parent / "exports" / Path(address).name).is_dir():
        remove(shared)


def remove(folder: Path) -> None:
    """Remove a worker's files without following links; keep a folder that contains a mount."""
    if folder.is_symlink():
        folder.unlink()
        return
    if mounted := mounts_below(folder):
        _log.warning("%s is not removed: %s is mounted there", folder, mounted[0])
        return
    # A program may have left folders with modes that prevent their removal.
    for parent, names, _ in os.walk(folder):
        for name in names:
            child = Path(parent, name)
            if not child.is_symlink():
                child.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def mounts_below(folder: Path) -> list[Path]:
    """Return the mount points in a folder of this machine."""
    table = Path("/proc/self/mountinfo")
    if not table.exists():  # without Linux, `ismount` finds every mount
        return [Path(parent) for parent, _, _ in os.walk(folder) if os.path.ismount(parent)]
    # proc_pid_mountinfo(5): the fifth field is the mount point, with blanks and such in octal.
    fields = [line.split()[4] for line in table.read_text().splitlines()]
    points = [Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), field)) for field in fields]
    return [point for point in points if point.is_relative_to(folder.resolve())]

"""A data disk, mounted at a folder, with the caches on it."""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat

from tpukit.agent.system.changed_files import put_folder, put_link
from tpukit.agent.system.commands import StepRefused, as_root, output, run, succeeds
from tpukit.agent.system.step import MOUNTS, WorkerStep, owner, require_empty, user

_LINKS = "/dev/disk/by-id/google-"
#: The first bytes of an empty disk, which must all be zero; signatures can be far from the start.
_START = 64 << 20
_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs", "btrfs")
_CACHES = ("huggingface", "uv", "pip")


class DiskStep(WorkerStep):
    """`FOLDER` or `DEVICE:FOLDER`."""

    def _look(self) -> None:
        folder = self._folder
        require_empty(folder)
        disk = self._disk()
        kind = disk.probe("TYPE")
        wipe = "copy what you need, and wipe it yourself"
        if not kind:
            if disk.is_read_only:
                cause = f"the disk {disk.device} is read-only and has no file system"
                fix = "attach it to one worker read-write first, and apply this step there"
                raise StepRefused(cause, fix)
            if not disk.is_empty():
                sudo = f"sudo wipefs -a {disk.device};"
                sudo += f" sudo dd if=/dev/zero of={disk.device} bs=1M count={_START >> 20}"
                cause = f"the disk {disk.device} has data that is no file system"
                raise StepRefused(cause, f"{wipe}: {sudo}")
            self.needed.append(f"format {disk.device}, which is empty, as ext4")
            self.needed.append(f"mount it at {folder}")
        elif kind not in _FILE_SYSTEMS:
            cause = f"the disk {disk.device} has {kind} on it, which is no file system to mount"
            raise StepRefused(cause, wipe)
        elif not (disk.is_mounted(folder) and self.block(MOUNTS).holds(disk.line(folder))):
            self.needed.append(f"mount {disk.device} at {folder}, keeping its content")
        self.needed += [f"move ~/.cache/{cache} to it" for cache in self._caches(disk)]

    def _change(self) -> None:
        folder, disk = self._folder, self._disk()
        fresh = not disk.probe("TYPE")
        if fresh:
            if not disk.is_empty():
                cause = f"the disk {disk.device} is no longer empty"
                raise StepRefused(cause, "look at its files")
            # The ledger does not note this: an undo must not erase the user's data.
            options = "lazy_itable_init=0,lazy_journal_init=0,discard"
            run(*as_root("mkfs.ext4", "-q", "-m", "0", "-E", options, disk.device))
        self.enter(folder, disk.line(folder))
        mount = ("mount", "-o", disk.options, disk.device, folder)
        if not disk.is_mounted(folder) and not self.mounts(folder, *mount):
            cause = f"{disk.device} cannot be mounted at {folder}"
            raise StepRefused(cause, "see dmesg on the worker")
        if fresh:
            run(*as_root("chown", owner(), folder))
        for cache in self._caches(disk):
            self._move(cache)

    @property
    def _folder(self) -> str:
        return self.value.rpartition(":")[2]

    def _disk(self) -> Disk:
        """Return the requested disk; raise `StepRefused` unless exactly one matches."""
        asked = self.value.rpartition(":")[0]
        link = os.path.realpath(f"{_LINKS}{asked}")
        disks = [
            disk
            for disk in _disks()
            if not asked or asked == os.path.basename(disk) or link == disk
        ]
        if not disks:
            cause = " ".join(["this worker has no data disk", *filter(None, [asked])])
            fix = "attach one: tpukit update NAME --data-disk, or create with --data-disk"
            raise StepRefused(cause, fix)
        if len(disks) > 1:
            cause = f"this worker has several data disks: {' '.join(disks)}"
            raise StepRefused(cause, f"name one: disk:{os.path.basename(disks[-1])}:{self._folder}")
        return Disk(disks[0])

    def _caches(self, disk: Disk) -> list[str]:
        """Return the caches to move to the disk."""
        if disk.is_read_only:
            return []
        return [cache for cache in _CACHES if not os.path.islink(self._places(cache)[0])]

    def _places(self, cache: str) -> tuple[str, str]:
        """Return the path of a cache, and its path on the disk."""
        return f"{self.home.path}/.cache/{cache}", f"{self._folder}/cache/{user().pw_name}/{cache}"

    def _move(self, cache: str) -> None:
        """Move a cache and its contents to the disk; undo moves it back if it fits."""
        path, target = self._places(cache)
        above = os.path.dirname(target)
        run(*as_root("mkdir", "-p", above))
        run(*as_root("chown", owner(), above))
        os.makedirs(target, exist_ok=True)
        put_folder(self.ledger, os.path.dirname(path))
        if os.path.exists(path):
            if not succeeds("cp", "-a", f"{path}/.", f"{target}/"):
                cause = f"~/.cache/{cache} does not fit on the disk"
                raise StepRefused(cause, "empty it, or choose a larger disk")
            self.ledger.note("cache_back", path, target)
            run("rm", "-rf", path)
        put_link(self.ledger, path, target)


class Disk:
    """A disk other than the system's."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_read_only = output(*as_root("blockdev", "--getro", device)) == "1"

    def probe(self, key: str) -> str:
        """Return the TYPE or the UUID of its file system."""
        return output(*as_root("blkid", "-p", "-o", "value", "-s", key, self.device))

    def is_empty(self) -> bool:
        """Return True if the disk is empty: no known signature, and zeros at the start."""
        return (
            not succeeds(*as_root("blkid", "-p", self.device), quiet=True)
            and not output(*as_root("wipefs", "-n", "-p", self.device))
            and succeeds(*as_root("cmp", "-s", "-n", str(_START), self.device, "/dev/zero"))
        )

    @property
    def options(self) -> str:
        """The options for mounting it."""
        return "ro,noload,nofail" if self.is_read_only else "discard,nofail"

    def line(self, folder: str) -> str:
        """Return the line of /etc/fstab that mounts it."""
        return f"UUID={self.probe('UUID')} {folder} {self.probe('TYPE')} {self.options} 0 2"

    def is_mounted(self, folder: str) -> bool:
        """Return True if it is mounted at the folder."""
        return output("findmnt", "-n", "-o", "SOURCE", "--mountpoint", folder) == self.device


def cache_back(path: str, on_disk: str) -> None:
    """Undo: move a cache back from the disk; raise `StepRefused` if it does not fit."""
    if os.path.exists(path) or not os.path.isdir(on_disk):
        return
    new = f"{path}.tpukit-new"
    if not succeeds("cp", "-a", on_disk, new):
        shutil.rmtree(new, ignore_errors=True)
        raise StepRefused(f"{on_disk} does not fit into {path}", "make room, or empty it")
    os.rename(new, path)
    shutil.rmtree(on_disk)


def _disks() -> list[str]:
    system = output("findmnt", "-n", "-o", "SOURCE", "/").partition("[")[0]
    disks = set()
    for link in glob.glob(f"{_LINKS}*"):
        device = os.path.realpath(link)
        is_disk = not re.search("-part[0-9]", link) and stat.S_ISBLK(os.stat(device).st_mode)
        # A partition's name starts with its disk's name: sda1 with sda, nvme0n1p1 with nvme0n1.
        if is_disk and not system.startswith(device):
            disks.add(device)
    return sorted(disks)

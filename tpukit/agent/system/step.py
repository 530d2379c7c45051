"""The base class of system steps on this worker."""

from __future__ import annotations

import os
import pwd
from typing import Any

from tpukit.agent.main import Home, Request
from tpukit.agent.system.changed_files import Block, put_folder
from tpukit.agent.system.commands import StepRefused, as_root, output, succeeds
from tpukit.agent.system.ledger import LedgerFile


class WorkerStep:
    """One step; `_look` fills `needed` with the necessary changes, and `notes`."""

    def __init__(self, home: Home, request: Request) -> None:
        self.home = home
        self.value: str = request["value"]
        self.ledger = LedgerFile(home, request)
        self.needed: list[str] = []
        self.notes: list[str] = []

    def fact(self, root: bool) -> dict[str, Any]:
        """Return the necessary changes, and the reason if they are impossible; change nothing.

        `root` is True if the changes need root.
        """
        refused, fix = "", ""
        try:
            self._look()
            if self.needed and root:
                _require_root()
        except StepRefused as refusal:
            refused, fix = str(refusal), refusal.fix
        return {"needed": self.needed, "refused": refused, "fix": fix, "notes": self.notes}

    def take(self) -> None:
        """Make the necessary changes; safe to repeat. Raises `StepRefused` if it is impossible."""
        self._change()

    def _look(self) -> None:
        raise NotImplementedError

    def _change(self) -> None:
        raise NotImplementedError

    def block(self, path: str) -> Block:
        """Return the step's block in a shared file."""
        return Block(self.ledger.entry, path)

    def enter(self, folder: str, line: str) -> None:
        """Make a folder, and add the line to /etc/fstab that mounts it after a restart."""
        put_folder(self.ledger, folder)
        self.block(MOUNTS).put(self.ledger, line)

    def mounts(self, folder: str, *command: str) -> bool:
        """Mount a folder by a command as root; return True if it succeeds."""
        self.ledger.note("unmount", folder)
        return succeeds(*as_root(*command))


#: The table of mounts after a restart.
MOUNTS = "/etc/fstab"


def is_mounted(folder: str) -> bool:
    """Return True if something is mounted at a folder."""
    return bool(output("findmnt", "-n", "-o", "SOURCE", "--mountpoint", folder))


def require_empty(folder: str) -> None:
    """Raise `StepRefused` if a mount at a folder would hide files of this worker's."""
    if not is_mounted(folder) and os.path.isdir(folder) and os.listdir(folder):
        cause = f"{folder} has files of this worker's in it"
        raise StepRefused(cause, "move them away, or choose another folder")


def unmount(folder: str) -> None:
    """Undo: unmount a folder; raise `StepRefused` if it is in use."""
    if is_mounted(folder) and not succeeds(*as_root("umount", folder)):
        raise StepRefused(f"{folder} is in use", f"end what uses it: sudo fuser -vm {folder}")


def user() -> pwd.struct_passwd:
    """Return this user's account."""
    return pwd.getpwuid(os.getuid())


def owner() -> str:
    """Return this user and group as numbers: `1000:1000`."""
    return f"{os.getuid()}:{os.getgid()}"


def _require_root() -> None:
    # A worker emulated without namespaces shares /etc with the emulator's machine.
    emulated = "TPUKIT_EMULATED_DEVICES" in os.environ
    if emulated and not os.path.isdir("/opt/emulated-worker"):
        cause = "this emulated worker shares /etc with the machine that runs it"
        raise StepRefused(cause, "tpukit emulator start --engine namespaces, as root on Linux")
    if not succeeds(*as_root("true"), quiet=True):
        cause = f"{user().pw_name} may not use sudo without a password here"
        fix = "log in as an account with roles/compute.osAdminLogin, or one that the metadata's"
        raise StepRefused(cause, f"{fix} SSH keys name")

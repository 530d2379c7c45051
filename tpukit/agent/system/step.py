"""A step: something that should be so on this worker."""

from __future__ import annotations

import os
import pwd
from typing import Any

from tpukit.agent.main import Home, Request
from tpukit.agent.system.changed_files import Block, put_folder
from tpukit.agent.system.commands import StepRefused, as_root, output, succeeds
from tpukit.agent.system.ledger import LedgerFile


class WorkerStep:
    """One step; a look fills `needed` with what its change would do, and `notes`."""

    def __init__(self, home: Home, request: Request) -> None:
        self.home = home
        self.value: str = request["value"]
        self.ledger = LedgerFile(home, request)
        self.needed: list[str] = []
        self.notes: list[str] = []

    def fact(self, root: bool) -> dict[str, Any]:
        """Return what its change would do, and what stands in its way; this changes nothing.

        `root` is true if its change needs the rights of root.
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
        """Change what is needed, which may be repeated; raise `StepRefused` if it cannot be."""
        self._change()

    def _look(self) -> None:
        raise NotImplementedError

    def _change(self) -> None:
        raise NotImplementedError

    def block(self, path: str) -> Block:
        """Return the step's lines in a file of others."""
        return Block(self.ledger.entry, path)

    def enter(self, folder: str, line: str) -> None:
        """Make a folder, and have something mounted there after a restart, as the line says."""
        put_folder(self.ledger, folder)
        self.block(MOUNTS).put(self.ledger, line)

    def mounts(self, folder: str, *command: str) -> bool:
        """Mount something at a folder by a command of root's; return True if that succeeds."""
        self.ledger.note("unmount", folder)
        return succeeds(*as_root(*command))


#: The table of what is mounted after a restart.
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
    """Undo: unmount what is mounted at a folder; raise `StepRefused` if it is in use."""
    if is_mounted(folder) and not succeeds(*as_root("umount", folder)):
        raise StepRefused(f"{folder} is in use", f"end what uses it: sudo fuser -vm {folder}")


def user() -> pwd.struct_passwd:
    """Return this user's account."""
    return pwd.getpwuid(os.getuid())


def owner() -> str:
    """Return this user and group as numbers: `1000:1000`."""
    return f"{os.getuid()}:{os.getgid()}"


def _require_root() -> None:
    # If a worker is emulated without namespaces of its own, its /etc is the machine's beneath.
    emulated = "TPUKIT_EMULATED_DEVICES" in os.environ
    if emulated and not os.path.isdir("/opt/emulated-worker"):
        cause = "this emulated worker shares /etc with the machine that runs it"
        raise StepRefused(cause, "tpukit emulator start --engine namespaces, as root on Linux")
    if not succeeds(*as_root("true"), quiet=True):
        cause = f"{user().pw_name} may not use sudo without a password here"
        fix = "log in as an account with roles/compute.osAdminLogin, or one that the metadata's"
        raise StepRefused(cause, f"{fix} SSH keys name")

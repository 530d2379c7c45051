"""The step `nfs-server`: shares a folder with other workers."""

from __future__ import annotations

import os

from tpukit.agent.system.changed_files import put_folder
from tpukit.agent.system.commands import StepRefused, as_root, run, succeeds
from tpukit.agent.system.debian_packages import install_packages
from tpukit.agent.system.nfs_step import has_program
from tpukit.agent.system.step import WorkerStep, owner

_TABLE = "/etc/exports"


class NfsServerStep(WorkerStep):
    """`FOLDER:ADDRESS,ADDRESS…`."""

    def _look(self) -> None:
        folder, _, addresses = self.value.partition(":")
        if not has_program("exportfs"):
            self.needed.append("install nfs-kernel-server")
        if not os.path.isdir(folder):
            self.needed.append(f"make the folder {folder}")
        if not self.block(_TABLE).holds(self._line()):
            self.needed.append(f"share {folder} with {addresses}: {_TABLE}")

    def _change(self) -> None:
        folder = self.value.partition(":")[0]
        if not has_program("exportfs"):
            install_packages(self.ledger, "nfs-kernel-server")
        if not os.path.isdir(folder):
            put_folder(self.ledger, folder)
            run(*as_root("chown", owner(), folder))
        # The undo runs in reverse order: first it removes the line, then it calls `export_again`.
        self.ledger.note("export_again")
        self.block(_TABLE).put(self.ledger, self._line())
        if not succeeds(*as_root("exportfs", "-ra")):
            fix = "see systemctl status nfs-kernel-server on the worker"
            raise StepRefused(f"the NFS server does not share {folder}", fix)

    def _line(self) -> str:
        folder, _, addresses = self.value.partition(":")
        identity = f"anonuid={os.getuid()},anongid={os.getgid()}"
        options = f"(rw,sync,no_subtree_check,all_squash,{identity})"
        return " ".join([folder, *(address + options for address in addresses.split(","))])


def export_again() -> None:
    """Undo: make the NFS server read its table again, if it has not been removed."""
    if has_program("exportfs"):
        run(*as_root("exportfs", "-ra"))

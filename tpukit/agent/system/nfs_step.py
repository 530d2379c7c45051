"""The step `nfs`: mounts a folder that another worker shares."""

from __future__ import annotations

import os
import shutil

from tpukit.agent.system.commands import StepRefused, output
from tpukit.agent.system.debian_packages import install_packages
from tpukit.agent.system.step import MOUNTS, WorkerStep, is_mounted, require_empty

#: With `hard`, programs wait while the server is away, and lose no data.
_OPTIONS = "hard,_netdev,nofail"


class NfsStep(WorkerStep):
    """`ADDRESS:FOLDER`."""

    def _look(self) -> None:
        server, _, folder = self.value.partition(":")
        if self._is_server(server):
            self.notes.append(f"this worker shares {folder} itself")
            return
        if not has_program("mount.nfs"):
            self.needed.append("install nfs-common")
        require_empty(folder)
        if not is_mounted(folder):
            self.needed.append(f"mount {self.value} at {folder}")
        if not self.block(MOUNTS).holds(self._line(folder)):
            self.needed.append(f"mount it after a restart too: {MOUNTS}")

    def _change(self) -> None:
        server, _, folder = self.value.partition(":")
        if self._is_server(server):
            return
        if not has_program("mount.nfs"):
            install_packages(self.ledger, "nfs-common")
        self.enter(folder, self._line(folder))
        mount = ("timeout", "60", "mount", "-t", "nfs", "-o", _OPTIONS, self.value, folder)
        if not is_mounted(folder) and not self.mounts(folder, *mount):
            fix = "see that its slice is READY, and that the network's rules let tcp:2049 through"
            raise StepRefused(f"{self.value} cannot be mounted", fix)

    def _is_server(self, server: str) -> bool:
        return server in output("hostname", "-I").split()

    def _line(self, folder: str) -> str:
        return f"{self.value} {folder} nfs {_OPTIONS} 0 0"


def has_program(name: str) -> bool:
    """Return True if a program is installed, also in the folders for root."""
    return bool(shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"))

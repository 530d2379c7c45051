"""A Cloud Storage bucket as a folder."""

from __future__ import annotations

import os
import shutil

from tpukit.agent.system.changed_files import put_file
from tpukit.agent.system.commands import StepRefused, as_root, output, run, succeeds
from tpukit.agent.system.debian_packages import install_packages, update_lists
from tpukit.agent.system.step import MOUNTS, WorkerStep, owner, require_empty

_SITE = "https://packages.cloud.google.com/apt"
_KEY = "/usr/share/keyrings/tpukit-cloud.google.asc"
_LIST = "/etc/apt/sources.list.d/tpukit-gcsfuse.list"


class GcsfuseStep(WorkerStep):
    """`BUCKET` or `BUCKET:FOLDER`."""

    def _look(self) -> None:
        bucket, folder, line = self._wanted()
        require_empty(folder)
        if not shutil.which("gcsfuse"):
            self.needed.append("install gcsfuse from packages.cloud.google.com")
        if not _is_mounted(folder) or not self.block(MOUNTS).holds(line):
            self.needed.append(f"mount the bucket {bucket} at {folder}")

    def _change(self) -> None:
        bucket, folder, line = self._wanted()
        if not shutil.which("gcsfuse"):
            self._install()
        self.enter(folder, line)
        if not _is_mounted(folder) and not self.mounts(folder, "mount", folder):
            fix = "see that it is there, and that the slice's service account may read it"
            cause = f"the bucket {bucket} cannot be mounted"
            raise StepRefused(cause, f"{fix}: roles/storage.objectUser")

    def _wanted(self) -> tuple[str, str, str]:
        """Return the bucket, its folder, and the line that mounts it."""
        bucket, _, folder = self.value.partition(":")
        folder = folder or f"/mnt/{bucket}"
        user, _, group = owner().partition(":")
        options = f"rw,_netdev,nofail,allow_other,implicit_dirs,uid={user},gid={group}"
        return bucket, folder, f"{bucket} {folder} gcsfuse {options} 0 0"

    def _install(self) -> None:
        key = f"{self.home.folder}/gcsfuse-key"
        fetch = ("curl", "-fsS", "--retry", "3", "--max-time", "60")
        if not succeeds(*fetch, "-o", key, f"{_SITE}/doc/apt-key.gpg"):
            fix = "give the worker a way out: an external address, Cloud NAT"
            cause = "packages.cloud.google.com cannot be reached"
            raise StepRefused(cause, f"{fix} or Private Google Access")
        self.ledger.note("take_file", _KEY)
        run(*as_root("install", "-m", "644", key, _KEY))
        os.unlink(key)
        release = output("sh", "-c", ". /etc/os-release && echo $VERSION_CODENAME")
        source = f"deb [signed-by={_KEY}] {_SITE} gcsfuse-{release} main"
        put_file(self.ledger, _LIST, f"# tpukit\n{source}\n")
        update_lists()
        install_packages(self.ledger, "gcsfuse")


def _is_mounted(folder: str) -> bool:
    return "fuse" in output("findmnt", "-n", "--mountpoint", folder, "-o", "FSTYPE")

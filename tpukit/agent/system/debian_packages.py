"""Installs packages from the worker's own sources, without changing installed packages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from typing import Sequence

from tpukit.agent.live_processes import Process
from tpukit.agent.system.commands import StepRefused, as_root, output, succeeds
from tpukit.agent.system.ledger import LedgerFile

#: needrestart must not restart services: that would end the TPU runtime.
_VARIABLES = (
    "DEBIAN_FRONTEND=noninteractive",
    "NEEDRESTART_MODE=l",
    "NEEDRESTART_SUSPEND=1",
    "LC_ALL=C",
)
#: apt waits up to ten minutes for a lock of unattended-upgrades or a person; it breaks no lock.
_OPTIONS = (
    *("-q", "-y", "-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0"),
    *("-o", "Dpkg::Options::=--force-confold", "-o", "APT::Install-Recommends=false"),
)
#: The package lists have another lock, for which apt does not wait.
_TRIES, _PAUSE_SECONDS = 60, 10.0
_FETCH_FIX = "give the worker a way out: an external address or Cloud NAT"
_CHANGE = re.compile(r"^(?:Remv (\S+) .*|Inst (\S+) \[([^]]*)\] \(([^ )]*).*)$", re.MULTILINE)


def is_installed(package: str) -> bool:
    """Return True if `NAME` or `NAME=VERSION` is installed."""
    name, _, version = package.partition("=")
    status = output("dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", name)
    word, _, present = status.partition(" ")
    return word == "installed" and version in ("", present)


def is_known(package: str) -> bool:
    """Return True if the package lists have this name."""
    return succeeds("apt-cache", "show", package, quiet=True)


def install_packages(ledger: LedgerFile, *names: str) -> None:
    """Install packages; raise `StepRefused` if this would change an installed package."""
    if not shutil.which("apt-get"):
        fix = "create the slice with a runtime version that is Ubuntu"
        raise StepRefused("the worker has no apt-get", fix)
    planned, plan = _answer("-s", "install", *names)
    if not planned:
        update_lists()
        planned, plan = _answer("-s", "install", *names)
    if not planned:
        print(plan)
        cause = f"apt cannot install {' '.join(names)}: {_first(plan, 'E:')}"
        raise StepRefused(cause, "apt-cache search WORD on the worker lists names")
    if changes := _changes(plan):
        _refuse_changes(changes, names)
    new = re.findall(r"^Inst (\S+) ", plan, re.MULTILINE)
    if not new:
        return
    # Download first, so that a lost network leaves nothing half installed.
    fetch = ("install", "--no-upgrade", "--download-only")
    if not _apt(*fetch, *new):
        update_lists()
        if not _apt(*fetch, *names):
            raise StepRefused("the packages cannot be fetched", _FETCH_FIX)
    ledger.note("take_packages", *new)
    if not _apt("install", "--no-upgrade", *names):
        sys.exit("apt-get failed")
    if os.path.exists("/run/reboot-required"):
        print("the system asks for a restart; tpukit never restarts a worker:", end=" ")
        print("it can come back without its TPU")


def take_packages(*names: str) -> None:
    """Undo: remove packages; raise `StepRefused` if a package installed later needs them."""
    present = [name for name in names if succeeds("dpkg-query", "-W", name, quiet=True)]
    if not present:
        return
    _, plan = _answer("-s", "purge", *present)
    for gone in re.findall(r"^(?:Purg|Remv) (\S+) ", plan, re.MULTILINE):
        if gone not in names:
            cause = f"{gone}, which was installed later, needs one of {' '.join(present)}"
            raise StepRefused(cause, f"remove {gone} first")
    if not _apt("purge", *present):
        sys.exit("apt-get failed")


def update_lists() -> None:
    """Fetch the package lists; wait up to ten minutes for another program that does so.

    Raises `StepRefused` if they cannot be fetched.
    """
    for _ in range(_TRIES):
        done, said = _answer("update")
        if done:
            return
        print(said, flush=True)
        if "Could not get lock" not in said:
            cause = f"the lists of packages cannot be fetched: {_first(said, '[EW]:')}"
            raise StepRefused(cause, _FETCH_FIX)
        time.sleep(_PAUSE_SECONDS)
    cause = "another program has held the lists of packages for ten minutes"
    raise StepRefused(cause, "wait for it, then type this again")


def _changes(plan: str) -> str:
    """Return the changes of installed packages that apt plans, as text."""
    return ", ".join(
        f"remove {change[1]}"
        if change[1]
        else f"upgrade {change[2]} from {change[3]} to {change[4]}"
        for change in _CHANGE.finditer(plan)
    )


def _refuse_changes(changes: str, names: Sequence[str]) -> None:
    """Raise `StepRefused`, naming the packages that need changes of installed ones."""
    because = [
        name for name in names if len(names) == 1 or _changes(_answer("-s", "install", name)[1])
    ]
    wanted = " ".join(because or names)
    raise StepRefused(
        f"to install {wanted} apt would {changes}",
        "if that is no driver, do it yourself on every worker:"
        f" sudo apt-get install --yes {wanted}; then type this again."
        " Or choose a version that fits: apt:NAME=VERSION",
    )


def _first(text: str, beginning: str) -> str:
    line = re.search(f"^{beginning}.*$", text, re.MULTILINE)
    return line[0] if line else ""


def _apt(*words: str) -> bool:
    """Run apt and pass its output on; raise `StepRefused` if dpkg was interrupted earlier."""
    _tell_lock()
    interrupted = False
    null, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(_command(words), stdin=null, stdout=pipe, stderr=both) as apt:
        for line in apt.stdout or ():
            print(line.decode(errors="replace"), end="", flush=True)
            interrupted = interrupted or b"dpkg was interrupted" in line
    if interrupted:
        fix = "run sudo dpkg --configure -a on the worker, then type this again"
        raise StepRefused("an installation of packages was interrupted on the worker", fix)
    return apt.returncode == 0


def _answer(*words: str) -> tuple[bool, str]:
    _tell_lock()
    null, pipe, both = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(_command(words), stdin=null, stdout=pipe, stderr=both, check=False)
    return done.returncode == 0, done.stdout.decode(errors="replace")


def _command(words: Sequence[str]) -> Sequence[str]:
    return as_root("env", *_VARIABLES, "apt-get", *_OPTIONS, *words)


def _tell_lock() -> None:
    """Print the process that holds apt's lock, because apt -q waits without a message."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        lock = f":{os.stat('/var/lib/dpkg/lock-frontend').st_ino}"
        with open("/proc/locks") as locks:
            rows = [row for row in map(str.split, locks) if row[1] == "POSIX"]
        for holder in (row[4] for row in rows if row[5].endswith(lock)):
            command = Process(int(holder), ()).command()
            print(f"waiting for the package lock, held by process {holder} ({command})", flush=True)

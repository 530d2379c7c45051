"""The read-only root file system that all machines share; it is built once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.text import one_line

#: Programs that the engine needs, and their Debian packages.
_PROGRAMS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
_PACKAGES = (
    *("systemd", "systemd-sysv", "libpam-systemd", "dbus", "openssh-server", "sudo"),
    *("python3", "python3-venv", "iproute2", "procps", "ca-certificates", "curl", "rsync"),
    "unattended-upgrades",
)
#: The files that differ between machines: each machine gets its own at its first boot.
_OWN = ("etc/machine-id", "var/lib/dbus/machine-id", "etc/hostname", "etc/ssh/ssh_host_*_key*")
_ARCHIVES = "var/cache/apt/archives/*.deb"
_LAST_LINES = 5
#: debootstrap's words if a mirror did not send a package. The next try keeps those that arrived.
_NO_PACKAGE, _TRIES = "Couldn't download", 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class PackageSource:
    """The source from which this machine's apt gets the packages of a release."""

    address: str
    release: str
    components: tuple[str, ...]


def check_programs() -> None:
    """Raise `BadInput` if this machine cannot build or boot machines."""
    if sys.platform != "linux" or os.geteuid() != 0:
        needs = "root" if sys.platform == "linux" else "Linux"
        other = "the default engine runs on every machine"
        start = Fix.command("tpukit", "emulator", "start", note=other)
        raise BadInput("the machines engine cannot run here", reason=f"it needs {needs}", fix=start)
    missing = [name for name in _PROGRAMS if not shutil.which(name)]
    if missing:
        packages = sorted({_PROGRAMS[name] for name in missing})
        raise BadInput(
            "the machines engine cannot run here",
            reason=f"it needs {', '.join(missing)}",
            fix=Fix.command("apt-get", "install", "--yes", *packages),
        )


def ensure_root(cache: Path, say: Say) -> Path:
    """Return the root file system in `cache`; the first call builds it.

    `say` receives messages about the progress and the time taken. Raises `BadInput` if a program is
    missing, and `TpukitError` if the packages cannot be installed.
    """
    check_programs()
    source = _package_source()
    words = " ".join((source.release, *_PACKAGES))
    digest = hashlib.sha256(words.encode()).hexdigest()[:12]
    root = cache / f"{source.release}-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            say(f"building a {source.release} root file system in {cache}: about a minute, once")
            started = time.monotonic()
            for left in cache.glob("building-*"):  # by a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            _build(source, root)
            say(f"built in {time.monotonic() - started:.0f} s")
    return root


def _package_source() -> PackageSource:
    """Return this machine's package source, as apt reports it."""
    release = _release()
    words = ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME) $(COMPONENT)"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    lines = [line.split() for line in listed.splitlines()]
    ours = [line for line in lines if len(line) == 3 and line[1] == release]
    if not ours:
        raise BadInput(
            f"apt has no source for {release or 'this system'}",
            reason="the machines engine builds its workers from Debian's or Ubuntu's packages",
            fix=Fix.command("apt-get", "update"),
        )
    components = {component for site, _, component in ours if site == ours[0][0]}
    return PackageSource(ours[0][0], release, tuple(sorted(components)))


def _release() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return values.get("VERSION_CODENAME", "").strip('"')


def _build(source: PackageSource, root: Path) -> None:
    """Build in a folder beside `root`, then rename it, so that a crash leaves no partial root."""
    building = Path(tempfile.mkdtemp(prefix="building-", dir=root.parent))
    try:
        building.chmod(0o755)
        # Without it, dpkg waits for the disk after each file: dpkg(1).
        unsafe = building / "etc/dpkg/dpkg.cfg.d/tpukit-unsafe-io"
        unsafe.parent.mkdir(parents=True)
        unsafe.write_text("force-unsafe-io\n")
        options = ["--variant=minbase", f"--include={','.join(_PACKAGES)}"]
        options.append(f"--components={','.join(source.components)}")
        # It mounts /proc there, which would stay if it is killed.
        words = ["unshare", "--mount", "debootstrap", *options]
        words += [source.release, str(building), source.address]
        for _ in range(_TRIES):
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if not done.returncode or _NO_PACKAGE not in done.stdout:
                break
        if done.returncode:
            lines = [one_line(line) for line in done.stdout.splitlines()[-_LAST_LINES:]]
            raise TpukitError("the root file system cannot be built", why="\n".join(lines))
        unsafe.unlink()
        for pattern in (*_OWN, _ARCHIVES):
            for path in building.glob(pattern):
                path.unlink()
        building.rename(root)
    finally:
        shutil.rmtree(building, ignore_errors=True)

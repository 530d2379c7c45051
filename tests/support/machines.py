"""Machines of the emulator: the root file system that a run of tests shares, and one slice."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from support.processes import eventually
from tpukit.emulator.workers.engines.machines.root_file_system import check_programs, ensure_root
from tpukit.errors import BadInput, TpukitError

from .command_line import Finished, Tpukit

#: Where the cloud's folder of a slice's files is, below `Tpukit.home`.
STATE = "tpukit/state/emulator"


def _lacks() -> str:
    try:
        check_programs()
    except BadInput as error:
        return error.summary()
    return ""


needs_machines = pytest.mark.skipif(bool(_lacks()), reason=f"{_lacks()}: NOT checked by this run")


def machines_home(home: Path, shared: Path) -> Tpukit:
    """Return a `tpukit` whose emulator finds its root file system in `shared`, built or not yet."""
    tpukit = Tpukit(home)
    cache = home / "tpukit/cache"
    cache.mkdir(parents=True)
    (cache / "machines").symlink_to(shared)
    try:
        ensure_root(shared, print)
    except TpukitError as error:
        error.add_note(error.why)
        raise
    return tpukit


class Machine:
    """One slice of one worker, and what runs there."""

    def __init__(self, tpukit: Tpukit, name: str) -> None:
        self.tpukit = tpukit
        self.name = name

    def __call__(self, script: str, status: int = 0) -> str:
        """Run a shell script on the worker, which ends with this status; return what it printed."""
        words = ("--local", "ssh", self.name, "--", "bash -s")
        return self.tpukit.ends_with(status, *words, stdin=script).stdout.strip()

    def apply(self, *words: str, status: int = 0) -> Finished:
        return self.tpukit.ends_with(
            status, "--local", "provision", "apply", self.name, *words, timeout=600
        )

    def reboot(self) -> None:
        """Reboot, and return when the worker is up again."""
        boot = ("--local", "ssh", self.name, "--", "cat /proc/sys/kernel/random/boot_id")
        before = self.tpukit.succeeds(*boot).stdout
        self.tpukit("--local", "ssh", self.name, "--", "sudo systemctl reboot")
        eventually(lambda: self.tpukit(*boot).stdout not in ("", before))

    def packages(self, *packages: str) -> None:
        """Let apt know only these, each `NAME|VERSION|DEPENDS|LINE`; LINE runs once installed."""
        lines = [base64.b64encode(package.encode()).decode() for package in packages]
        self(f"sudo sh -s {' '.join(lines)} <<'END'\n{_REPOSITORY}\nEND")


#: A package source in a folder: deb(5), and the format of Packages in DebianRepository/Format.
_REPOSITORY = r"""
set -e
rm -rf /srv/packages && mkdir -p /srv/packages && cd /srv/packages
for coded; do
    printf %s "$coded" | base64 -d >line
    IFS='|' read -r name version depends after <line || true
    mkdir -p "$name/DEBIAN"
    printf 'Package: %s\nVersion: %s\nArchitecture: all\nMaintainer: tests\nDescription: test\n' \
        "$name" "$version" >"$name/DEBIAN/control"
    if [ "$depends" ]; then echo "Depends: $depends" >>"$name/DEBIAN/control"; fi
    if [ "$after" ]; then
        printf '#!/bin/sh\n%s\n' "$after" >"$name/DEBIAN/postinst"
        chmod 755 "$name/DEBIAN/postinst"
    fi
    file=$name-$version.deb
    dpkg-deb --build "$name" "$file" >/dev/null
    cat "$name/DEBIAN/control" >>Packages
    printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$file" "$(stat -c %s "$file")" \
        "$(sha256sum "$file" | cut -d ' ' -f 1)" >>Packages
    rm -r "$name"
done
rm -f /etc/apt/sources.list
echo 'deb [trusted=yes] file:/srv/packages ./' >/etc/apt/sources.list.d/tests.list
apt-get -q update >/dev/null
"""

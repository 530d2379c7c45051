"""Limits and kernel settings that TPU work needs."""

from __future__ import annotations

import contextlib
import glob
import os
import re

from tpukit.agent.system.changed_files import content, put_file
from tpukit.agent.system.commands import as_root, output, run, succeeds
from tpukit.agent.system.step import WorkerStep

_LIMITS = "/etc/security/limits.d/90-tpukit.conf"
_LIMITS_TEXT = """\
# tpukit: chips behind vfio-pci lock the memory that they read and write.
* - memlock unlimited
root - memlock unlimited
"""
_RULES = "/etc/udev/rules.d/90-tpukit.rules"
_RULES_TEXT = """\
# tpukit: the chips are for every user.
SUBSYSTEM=="vfio", KERNEL=="[0-9]*", MODE="0666"
"""
_BOOT = "/etc/tmpfiles.d/tpukit.conf"
_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_BOOT_TEXT = f"# tpukit\nw {_PAGES} - - - - always\n"


class LimitsStep(WorkerStep):
    """It has no value."""

    def _look(self) -> None:
        if content(_LIMITS) != _LIMITS_TEXT.encode():
            self.needed.append(f"let memory be locked without a limit: {_LIMITS}")
        if _closed_chips():
            self.needed.append(f"open /dev/vfio to every user: {_RULES}")
        pages = _pages()
        if not pages:
            self.notes.append("this kernel has no transparent huge pages")
        elif pages != "always" and _may_set_pages():
            self.needed.append(f"transparent huge pages: always: {_BOOT}")
        elif pages != "always":
            note = "transparent huge pages cannot be set here: the host machine controls them"
            self.notes.append(note)

    def _change(self) -> None:
        put_file(self.ledger, _LIMITS, _LIMITS_TEXT)
        chips = _closed_chips()
        if chips:
            put_file(self.ledger, _RULES, _RULES_TEXT)
            succeeds(*as_root("udevadm", "control", "--reload"), quiet=True)
        for chip in chips:
            mode, owner = output("stat", "-c", "%a %U:%G", chip).split()
            self.ledger.note("give_device", chip, mode, owner)
            run(*as_root("chmod", "a+rw", chip))
        pages = _pages()
        if pages not in ("", "always") and _may_set_pages():
            put_file(self.ledger, _BOOT, _BOOT_TEXT)
            self.ledger.note("set_pages", pages)
            set_pages("always")


def give_device(path: str, mode: str, owner: str) -> None:
    """Undo: restore the mode and the owner of a device."""
    if os.path.exists(path):
        run(*as_root("chmod", mode, path))
        run(*as_root("chown", owner, path))


def set_pages(pages: str) -> None:
    """Set the use of transparent huge pages; the undo calls this too."""
    run(*as_root("tee", _PAGES), given=pages.encode())


def _closed_chips() -> list[str]:
    """Return the chips behind vfio-pci that not every user may open.

    Modes are only widened, because Google's runtime, uid 2000, must open the chips too.
    """
    closed = []
    for chip in sorted(glob.glob("/dev/vfio/[0-9]*")):
        with contextlib.suppress(OSError):
            if os.stat(chip).st_mode & 0o6 != 0o6:
                closed.append(chip)
    return closed


def _pages() -> str:
    """Return the mode of transparent huge pages: `madvise` for `always [madvise] never`."""
    text = (content(_PAGES) or b"").decode().strip()
    chosen = re.search(r"\[(.*)\]", text)
    return chosen[1] if chosen else text


def _may_set_pages() -> bool:
    return succeeds(*as_root("test", "-w", _PAGES), quiet=True)

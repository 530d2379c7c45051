"""Preload tcmalloc, unless the image preloads something already."""

from __future__ import annotations

import glob
import re

from tpukit.agent.system.debian_packages import install_packages, is_known
from tpukit.agent.system.step import WorkerStep

_SETTINGS = "/etc/environment"
_LIBRARY = "/usr/lib/*-linux-gnu/libtcmalloc_minimal.so.4"
_PACKAGE = "libtcmalloc-minimal4"


class TcmallocStep(WorkerStep):
    """It has no value."""

    def _look(self) -> None:
        others = re.findall(rb"^ *LD_PRELOAD=(.*)$", self.block(_SETTINGS).rest(), re.MULTILINE)
        if others and others[-1]:
            self.notes.append(f"the image preloads {others[-1].decode(errors='replace')}")
            return
        library = glob.glob(_LIBRARY)
        if not library:
            self.needed.append(f"install {_PACKAGE}")
        if not library or not self.block(_SETTINGS).holds(f"LD_PRELOAD={library[0]}"):
            self.needed.append(f"preload it: {_SETTINGS}")

    def _change(self) -> None:
        if not glob.glob(_LIBRARY):
            newer = f"{_PACKAGE}t64"  # since Ubuntu 24.04
            install_packages(self.ledger, newer if is_known(newer) else _PACKAGE)
        self.block(_SETTINGS).put(self.ledger, f"LD_PRELOAD={glob.glob(_LIBRARY)[0]}")

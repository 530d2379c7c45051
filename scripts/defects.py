"""Runs gcloud's defects over SSH, and the same jobs with tpukit, on one emulated slice.

A row a defect: what gcloud did, what tpukit did, both in this run; all of them, or those that are
named. The exit status is 1 where tpukit did not do what it promises. Needs gcloud, and root for
port 22, which gcloud insists on.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import defects_of_access
import defects_of_commands
from defect_world import NAME, World
from measure import emulator, tpukit

CASES = {case.__name__: case for case in (*defects_of_commands.CASES, *defects_of_access.CASES)}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"defects: no {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    if not shutil.which("gcloud") or os.geteuid():
        print("defects: gcloud and root are needed to run gcloud's ssh; nothing was compared")
        return 2
    with emulator() as found, tempfile.TemporaryDirectory(prefix="tpukit-defects-") as place:
        home = Path(place, "home")
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        world = World({**found, "HOME": str(home)}, Path(place))
        tpukit(world.environment, "create", "v3-32", NAME)
        tpukit(world.environment, "firewall", "apply", NAME)
        first = world.gcloud("--worker=all", "--command=true")
        if first.returncode:
            raise SystemExit(f"gcloud ssh does not work here: {first.stderr}")
        print("defect\tgcloud\ttpukit", flush=True)
        for name in names or CASES:
            CASES[name](world)
    return int(not all(ours.right for _, _, ours in world.rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

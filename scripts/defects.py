"""Runs gcloud's defects over SSH, and the same jobs with tpukit, on one emulated slice.

A row a defect: what gcloud did, what tpukit did, both in this run; all of them, or those that are
named. The exit status is 1 where tpukit does not do what it promises. Needs gcloud, and root for
port 22, which gcloud insists on. All rows take two to four minutes.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import defects_of_access
import defects_of_commands
import defects_of_retries
from comparison import NAME, Comparison, Row
from measure import emulator

Cases = Mapping[str, Callable[[Comparison], None]]


def _by_name(*modules: object) -> Cases:
    return {case.__name__: case for module in modules for case in module.CASES}  # type: ignore[attr-defined]


#: gcloud waits for most of a minute in each of these, so they are run at the same time.
SLOW = _by_name(defects_of_retries)
QUICK = _by_name(defects_of_commands, defects_of_access)
CASES = {**SLOW, **QUICK}


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"defects: no {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    if not shutil.which("gcloud") or os.geteuid():
        print("defects: gcloud and root are needed to run gcloud's ssh; nothing was compared")
        return 2
    right = True
    with emulator() as found, tempfile.TemporaryDirectory(prefix="tpukit-defects-") as place:
        comparison = _world(found, Path(place))
        print("defect\tgcloud\ttpukit", flush=True)
        for row in _rows(comparison, names or list(CASES)):
            print(row, flush=True)
            right = right and row.tpukit.right
    return int(not right)


def _world(environment: Mapping[str, str], place: Path) -> Comparison:
    home = place / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    comparison = Comparison({**environment, "HOME": str(home)}, place)
    comparison.arrange("create", "v3-32", NAME)
    comparison.arrange("firewall", "apply", NAME)
    first = comparison.gcloud("--worker=all", "--command=true")
    if first.returncode:
        raise SystemExit(f"gcloud ssh does not work here: {first.stderr}")
    return comparison


def _rows(comparison: Comparison, names: Sequence[str]) -> Iterator[Row]:
    slow = [name for name in names if name in SLOW]
    with ThreadPoolExecutor() as pool:
        for rows in pool.map(lambda name: _case(comparison, name), slow):
            yield from rows
    for name in names:
        if name in QUICK:
            yield from _case(comparison, name)


def _case(comparison: Comparison, name: str) -> Sequence[Row]:
    own = replace(comparison, rows=[])
    CASES[name](own)
    return own.rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

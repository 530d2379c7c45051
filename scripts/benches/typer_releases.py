"""CPU time of one light command with the newest typer before 0.29, and with the newest of all."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import TPUKIT, cpu_seconds, emulator, show, spread

RELEASES = ("typer<0.29", "typer")
COLUMNS = ("TYPER", "MEDIAN CPU ms", "MIN", "MAX")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=9, help="runs with each, in turns")


def run(options: argparse.Namespace) -> int:
    taken: dict[str, list[float]] = {release: [] for release in RELEASES}
    with tempfile.TemporaryDirectory() as folder, emulator() as environment:
        paths = {
            release: _installed(release, Path(folder, str(number)))
            for number, release in enumerate(RELEASES)
        }
        for pair in range(options.pairs + 1):
            for release in RELEASES:
                seconds = cpu_seconds(
                    [*TPUKIT, "types", "v3"], {**environment, "PYTHONPATH": paths[release]}
                )
                if pair:  # the first warms caches
                    taken[release].append(seconds)
    show(COLUMNS, [spread(release, taken[release]) for release in RELEASES])
    before, newest = (median(taken[release]) for release in RELEASES)
    print(f"the newest takes {newest / before:.2f} times as much")
    return 0


def _installed(release: str, folder: Path) -> str:
    """Install a release into a folder that is searched before the environment's own packages."""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(folder), release], check=True)
    return str(folder)

"""CPU time of `tpukit list` beside `gcloud compute tpus tpu-vm list`, on one emulator."""

from __future__ import annotations

import argparse
import shutil
from statistics import median

from measure import TPUKIT, cpu_seconds, emulator, show, spread

GCLOUD = ("compute", "tpus", "tpu-vm", "list")
COLUMNS = ("COMMAND", "MEDIAN CPU ms", "MIN", "MAX")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=9, help="runs of each, one after the other")


def run(options: argparse.Namespace) -> int:
    gcloud = shutil.which("gcloud")
    ours: list[float] = []
    theirs: list[float] = []
    with emulator() as environment:
        # The first pair warms caches and is thrown away.
        for pair in range(options.pairs + 1):
            own = cpu_seconds([*TPUKIT, "list"], environment)
            other = cpu_seconds([gcloud, *GCLOUD], environment) if gcloud else 0.0
            if pair:
                ours.append(own)
                theirs.append(other)
    rows = [spread("tpukit list", ours)]
    if not gcloud:
        show(COLUMNS, rows)
        print("gcloud is not installed: nothing to compare with")
        return 0
    show(COLUMNS, [*rows, spread(f"gcloud {' '.join(GCLOUD)}", theirs)])
    ratio = median(own / other for own, other in zip(ours, theirs, strict=True))
    print(f"median of the pairs' ratios: {ratio:.2f}")
    return int(ratio >= 1)

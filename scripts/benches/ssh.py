"""CPU time of `tpukit run` on one worker and on sixteen, and what each further worker costs."""

from __future__ import annotations

import argparse
from statistics import median

from measure import TPUKIT, cpu_seconds, emulator, show, spread, tpukit

from tpukit.accelerators import AcceleratorType

ACCELERATOR = "v4-128"  #: sixteen workers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each, one after the other")


def run(options: argparse.Namespace) -> int:
    workers = AcceleratorType.parse(ACCELERATOR).workers
    one: list[float] = []
    every: list[float] = []
    with emulator() as environment:
        tpukit(environment, "create", ACCELERATOR, "bench")
        tpukit(environment, "firewall", "apply", "bench")
        command = [*TPUKIT, "run", "bench", "--worker"]
        for _ in range(options.runs):
            one.append(cpu_seconds([*command, "0", "--", "true"], environment))
            every.append(cpu_seconds([*command, "all", "--", "true"], environment))
    rows = [spread("1 worker", one), spread(f"{workers} workers", every)]
    show(("CONNECTIONS", "MEDIAN CPU ms", "MIN", "MAX"), rows)
    further = (median(every) - median(one)) / (workers - 1)
    print(f"each further worker: {1000 * further:.0f} ms")
    return 0

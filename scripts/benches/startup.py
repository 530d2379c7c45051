"""CPU time of commands that start at once, beside gcloud's, on one emulator; held to limits."""

from __future__ import annotations

import argparse
import shutil
from statistics import median

from measure import TPUKIT, cpu_seconds, emulator, show, spread, tpukit

GCLOUD_LIST = ("compute", "tpus", "tpu-vm", "list")
#: Each of ours, the command of gcloud beside it, and the most of that one's CPU time it may take.
PAIRS = (
    (("list",), GCLOUD_LIST, 0.3),
    (("describe", "demo"), GCLOUD_LIST, 0.3),
    (("--help",), ("--help",), 0.12),
    (("--version",), ("--help",), 0.12),
    (("types",), ("--help",), 0.12),
)
COLUMNS = ("COMMAND", "MEDIAN CPU ms", "MIN", "MAX")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=9, help="runs of each, one after the other")


def run(options: argparse.Namespace) -> int:
    gcloud = shutil.which("gcloud")
    beside = list(dict.fromkeys(theirs for _, theirs, _ in PAIRS)) if gcloud else []
    commands = [
        *((f"tpukit {' '.join(words)}", [*TPUKIT, *words]) for words, _, _ in PAIRS),
        *((f"gcloud {' '.join(words)}", [str(gcloud), *words]) for words in beside),
    ]
    taken: dict[str, list[float]] = {name: [] for name, _ in commands}
    with emulator() as environment:
        tpukit(environment, "create", "v2-8", "demo")
        # The first round warms caches and is thrown away.
        for round_ in range(options.pairs + 1):
            for name, words in commands:
                used = cpu_seconds(words, environment)
                taken[name] += [used] if round_ else []
    show(COLUMNS, [spread(name, samples) for name, samples in taken.items()])
    if not gcloud:
        print("gcloud is not installed: nothing to compare with")
        return 0
    return _judge(taken)


def _judge(taken: dict[str, list[float]]) -> int:
    """Print the medians of the ratios of each round, and return 1 where one is over its limit."""
    rows, over = [], False
    for words, theirs, most in PAIRS:
        ours = taken[f"tpukit {' '.join(words)}"]
        pairs = zip(ours, taken[f"gcloud {' '.join(theirs)}"], strict=True)
        ratio = median(own / other for own, other in pairs)
        over = over or ratio > most
        beside = f"{' '.join(words)} beside gcloud {' '.join(theirs)}"
        rows.append([beside, f"{ratio:.3f}", f"{most:.2f}"])
    print()
    show(("MEDIAN OF THE RATIOS", "IS", "AT MOST"), rows)
    return int(over)

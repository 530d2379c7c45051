"""CPU seconds of commands, an emulator to run them against, and tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TPUKIT = (sys.executable, "-P", "-m", "tpukit")

_STARTER = """
import json, os, resource, sys, time
started = time.monotonic()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(child, 0)
if status:
    sys.exit(1)
wall = time.monotonic() - started
print(json.dumps([used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024]))
"""


@dataclass(frozen=True)
class Cost:
    """What a command took: CPU and wall seconds, and the most memory it held, in MB."""

    cpu: float
    wall: float
    memory: float


def cpu_seconds(words: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return user and system seconds of a command and of the children it waited for.

    CPU time, because wall time measures what else the machine does.
    """
    return cost(words, environment).cpu


def cost(words: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a command that has to succeed and return what it and its children took.

    The memory is that of the largest process. A process of almost nothing starts it: what a child
    is charged with begins with the memory of whoever started it.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _STARTER, *words],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr}")
    return Cost(*json.loads(done.stdout))


@contextmanager
def emulator(*options: str) -> Iterator[dict[str, str]]:
    """Run an emulator of its own and yield the environment that points every client at it."""
    with tempfile.TemporaryDirectory(prefix="tpukit-bench-") as directory:
        foreign = ("TPUKIT_", "CLOUDSDK_", "GOOGLE_")
        own = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        own["TPUKIT_HOME"] = str(Path(directory, "home"))
        own["CLOUDSDK_CONFIG"] = str(Path(directory, "gcloud"))
        try:
            tpukit(own, "emulator", "start", "--create-seconds", "0.2", *options)
            yield {**own, **json.loads(tpukit(own, "emulator", "env", "--json"))["environment"]}
        finally:
            tpukit(own, "emulator", "stop")


def tpukit(environment: Mapping[str, str], *words: str) -> str:
    """Run a tpukit command that has to succeed and return its standard output."""
    done = subprocess.run(
        [*TPUKIT, "--quiet", *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"tpukit {' '.join(words)} failed: {done.stderr}")
    return done.stdout


def spread(name: str, samples: Sequence[float]) -> list[str]:
    """Return a table row: median, smallest and largest in milliseconds."""
    figures = (median(samples), min(samples), max(samples))
    return [name, *(f"{1000 * figure:.0f}" for figure in figures)]


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is left-aligned and whose others are numbers."""
    table = [columns, *rows]
    widths = [max(len(each[index]) for each in table) for index in range(len(columns))]
    for each in table:
        print(row(each, widths))


def row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a table whose first column is left-aligned and whose others are numbers."""
    first, *others = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *others)).rstrip()

"""CPU seconds of commands, an emulator to run them against, and tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TPUKIT = (sys.executable, "-P", "-m", "tpukit")


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

    The memory is that of the largest process.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr
    words_of_failure = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {words_of_failure}")
    wall = time.monotonic() - started
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)


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
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    for row in table:
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *others)).rstrip())

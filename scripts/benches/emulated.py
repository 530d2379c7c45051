"""What the 64 workers of a v4-512 cost the machine that emulates them, with each engine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping

import psutil
from measure import emulator, show, tpukit

from tpukit.emulator.workers.engines.engine_choice import lacking

TYPE, NAME, WORKERS = "v4-512", "bench", 64
#: What a worker that nobody has talked to may cost.
MOST_KILOBYTES, MOST_PROCESSES = 64.0, 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", action="append", choices=["portable", "namespaces"])


def run(options: argparse.Namespace) -> int:
    lacks = lacking(sys.platform, os.geteuid(), shutil.which)
    engines = options.engine or ["portable", *([] if lacks else ["namespaces"])]
    columns = [_measure(engine) for engine in engines]
    show(["", *engines], [[name, *(c[name] for c in columns)] for name in columns[0]])
    if lacks and not options.engine:
        print(f"the namespaces engine needs {lacks}: not measured")
    idle = [float(column["kB for each idle worker"]) for column in columns]
    processes = [float(column["processes for each idle worker"]) for column in columns]
    return int(max(idle) > MOST_KILOBYTES or max(processes) > MOST_PROCESSES)


def _measure(engine: str) -> dict[str, str]:
    """Return the figures of one engine by name."""
    began = time.monotonic()
    with emulator("--engine", engine) as environment:
        figures = {"s to start the emulator": _text(time.monotonic() - began, 2)}
        pid = json.loads(tpukit(environment, "emulator", "status", "--json"))["emulator"]["pid"]
        _seconds(environment, "create", "v3-8", "first")  # loads what all workers share
        empty, none = _weigh(pid)
        figures["kB of an emulator with one worker"] = _text(empty)
        created = _seconds(environment, "create", TYPE, NAME)
        idle, still = _weigh(pid)
        figures[f"s to create {WORKERS} workers"] = _text(created, 2)
        figures["ms for each worker created"] = _text(1000 * created / WORKERS, 1)
        figures["kB for each idle worker"] = _text((idle - empty) / WORKERS, 1)
        figures["processes for each idle worker"] = _text((still - none) / WORKERS, 1)
        _seconds(environment, "firewall", "apply", NAME)
        figures["s for a first command on all"] = _text(_run(environment), 2)
        figures["s for a second one"] = _text(_run(environment), 2)
        used, more = _weigh(pid)
        figures["kB for each used worker"] = _text((used - empty) / WORKERS, 1)
        figures["processes for each used worker"] = _text((more - none) / WORKERS, 1)
        figures["s to delete them"] = _text(_seconds(environment, "delete", NAME, "--yes"), 2)
        figures["processes left"] = _text(_weigh(pid)[1] - none)
    return figures


def _run(environment: Mapping[str, str]) -> float:
    return _seconds(environment, "run", NAME, "--worker", "all", "--", "true")


def _seconds(environment: Mapping[str, str], *words: str) -> float:
    return _timed(lambda: tpukit(environment, *words))


def _timed(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def _weigh(pid: int) -> tuple[float, int]:
    """Return the kilobytes that a process and those below it have for themselves, and their number.

    What they share with each other or with anybody, such as programs' text, is not counted.
    """
    root = psutil.Process(pid)
    found = [root, *root.children(recursive=True)]
    return sum(each.memory_full_info().uss for each in found) / 1024, len(found)


def _text(figure: float, digits: int = 0) -> str:
    return f"{figure:.{digits}f}"

"""A slice that is preempted at ten stages of `up`: the exit code, and the seconds until it comes.

The moments are lines that `up` prints. Every loss has to end it with 7.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import time
from collections.abc import Mapping

from measure import TPUKIT, emulator, tpukit

from tpukit.errors import SliceLost

TYPES = {1: "v3-8", 4: "v3-32"}
#: The most seconds from a preemption to the end of `up`.
MOST_SECONDS = 20.0
STAGES = {
    "while the slice is made": r"create +CREATING",
    "once it is ready": r"create +READY",
    "once it is made": r"create +created",
    "once the rule is there": r"firewall +(already )?open",
    "while SSH is tried": r"connect +",
    "once all workers answered": r"connect +\d+ of \d+",
    "while uv is installed": r"worker 0: uv: ",
    "while the environment is made": r"worker 0: venv: ",
    "while packages are installed": r"worker 0: packages: ",
    "while the devices compute": r"provision +\d+ changes?",
}
_LINE = "{:<32}{:>8}{:>9}{:>6}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", default="1,4", help="of 1 and 4")
    parser.add_argument("--only", choices=STAGES, help="one stage")


def run(options: argparse.Namespace) -> int:
    wrong = 0
    print(_LINE.format("PREEMPTED", "WORKERS", "SECONDS", "CODE", ""), flush=True)
    with emulator("--create-seconds", "3") as environment:
        for count in map(int, options.workers.split(",")):
            for stage in [options.only] if options.only else STAGES:
                seconds, code, said = _lost(environment, TYPES[count], STAGES[stage])
                good = code == SliceLost.exit_code and seconds < MOST_SECONDS
                shown = "" if good else said
                print(_LINE.format(stage, count, f"{seconds:.1f}", code, shown), flush=True)
                wrong += not good
    return int(bool(wrong))


def _lost(environment: Mapping[str, str], kind: str, pattern: str) -> tuple[float, int, str]:
    """Preempt the slice of an `up` at a line that it prints; return how it ends, and how soon."""
    words = (*TPUKIT, "up", kind, "victim")
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        told: list[str] = []
        struck = 0.0
        for line in process.stderr:
            told.append(line)
            if not struck and re.search(pattern, line):
                tpukit(environment, "emulator", "preempt", "victim")
                struck = time.monotonic()
        code = process.wait()
    seconds = time.monotonic() - struck if struck else float("inf")
    tpukit(environment, "delete", "victim", "--yes", "--missing-ok")
    return seconds, code, "".join(told[-12:]).replace("\n", " | ")

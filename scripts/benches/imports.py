"""CPU time that importing each dependency adds to a bare interpreter."""

from __future__ import annotations

import argparse
import os
import sys
from statistics import median

from measure import cpu_seconds, show

MODULES = (
    "asyncssh",
    "certifi",
    "google.auth",
    "google.cloud.tpu_v2",
    "mcp.server.mcpserver",
    "paramiko",
    "psutil",
    "pydantic",
    "requests",
    "rich.table",
    "typer",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="imports of each module")


def run(options: argparse.Namespace) -> int:
    bare = _import("sys", options.runs)
    show(
        ("MODULE", "CPU ms"),
        [[name, f"{_import(name, options.runs) - bare:.0f}"] for name in MODULES],
    )
    return 0


def _import(module: str, runs: int) -> float:
    """Return the median milliseconds of an interpreter that imports one module, after a first."""
    words = [sys.executable, "-P", "-c", f"import {module}"]
    return 1000 * median([cpu_seconds(words, os.environ) for _ in range(runs + 1)][1:])

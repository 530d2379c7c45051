"""What an install brings: all of tpukit, tpukit without its emulator, and the emulator alone."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from measure import show

ROOT = Path(__file__).parent.parent.parent
#: What the emulator's process imports and no command of the client does.
EMULATOR_ALONE = ("asyncssh", "psutil")
COLUMNS = ("INSTALL", "PACKAGES", "MB", "SECONDS")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=1, help="installs of each; the last counts")


def run(options: argparse.Namespace) -> int:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    whole = table["project"]["dependencies"]
    client = [text for text in whole if not text.startswith(EMULATOR_ALONE)]
    emulator = [text for text in whole if text.startswith(EMULATOR_ALONE)]
    rows = []
    for name, wanted in (("whole", whole), ("client", client), ("emulator", emulator)):
        for _ in range(options.runs):
            measured = _installed(wanted)
        rows.append([name, *measured])
    show(COLUMNS, rows)
    return 0


def _installed(wanted: list[str]) -> list[str]:
    """Return the number of packages, their size and how long pip takes with a warm cache."""
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        subprocess.run([*pip, "--no-compile", "--target", folder, *wanted], check=True)
        seconds = time.monotonic() - start
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files) / 1e6
        packages = len(list(Path(folder).glob("*.dist-info")))
    return [str(packages), f"{size:.0f}", f"{seconds:.0f}"]

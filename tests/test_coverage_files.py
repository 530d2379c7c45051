"""What coverage keeps of processes: of one that was killed as it wrote, nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coverage import CoverageData
from support.coverage_files import remove_damaged
from support.fix_recorder import FOLDER

#: Prints of what kind the locks are in the first thread, and in one that begins.
_LOCKS = """
import runpy, sys, threading
from coverage import Coverage
from coverage.collector import Collector

coverage = Coverage(data_file=None)
coverage.start()
runpy.run_path(sys.argv[1])
thread = threading.Thread(target=len, args=[""])
thread.start()
thread.join()
for tracer in Collector._collectors[-1].tracers:
    print(type(tracer.lock_data).__name__, type(tracer.unlock_data).__name__)
"""


def test_data_that_was_not_finished_is_removed_and_all_else_stays(tmp_path: Path) -> None:
    data = CoverageData(str(tmp_path / ".coverage"), suffix="vm.pid1.Xabcdefx")
    data.add_arcs(
        {f"/{number}.py": [(line, line + 1) for line in range(300)] for number in range(9)}
    )
    data.close()
    whole = Path(data.data_filename())
    content = whole.read_bytes()
    page = 4096
    damaged = {
        "begun": b"",
        "cut": content[: 5 * page],
        # a page that was not written yet: `coverage combine` fails of it
        "gap": content[: 7 * page] + bytes(page) + content[8 * page :],
    }
    for name, text in damaged.items():
        (tmp_path / f".coverage.vm.pid2.{name}").write_bytes(text)
    finished = tmp_path / ".coverage.vm.pid3.Xabcdefx.Habcdefghijh"
    finished.write_bytes(b"")
    remove_damaged(tmp_path)
    assert {*tmp_path.iterdir()} == {whole, finished}


def test_no_signal_is_seen_between_coverages_locks(tmp_path: Path) -> None:
    """Neither in the thread that is measured already, nor in one that begins.

    Each has a tracer, or from Python 3.15 on, both have the same one.
    """
    words = [sys.executable, "-c", _LOCKS, str(FOLDER / "sitecustomize.py")]
    done = subprocess.run(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    in_c = "builtin_function_or_method"
    lines = done.stdout.splitlines()
    assert lines == [f"{in_c} {in_c}"] * (2 if sys.version_info < (3, 15) else 1)

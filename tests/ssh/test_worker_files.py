"""Where a worker keeps our things is known in one place."""

from __future__ import annotations

import re
from pathlib import Path

import tpukit

PACKAGE = Path(tpukit.__file__).parent
#: Others' folders of that name: the one in a pushed tree.
TREES = {"agent/archives.py"}


def test_no_other_module_or_program_spells_the_folder() -> None:
    spelled = {
        str(path.relative_to(PACKAGE)): lines
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.sh")]
        if (lines := _lines(path.read_text(encoding="utf-8")))
    }
    assert spelled.keys() - TREES == {"ssh/worker_files.py"}


def _lines(text: str) -> list[str]:
    """Return the lines that spell the folder, but for docstrings and comments."""
    code = re.sub(r'"""[\s\S]*?"""|^\s*#.*$', "", text, flags=re.MULTILINE)
    return [line for line in code.splitlines() if re.search(r"\.tpukit(/|\"|$)", line)]

"""How a Python that the tests start reports each command that tpukit suggests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import tpukit

VARIABLE = "SUGGESTED_COMMANDS"
FOLDER = Path(__file__).parent / "python_path"


@cache
def environment() -> Mapping[str, str]:
    """Return the variables that make a Python report, and find the tpukit under test."""
    file = os.environ.get(VARIABLE) or tempfile.mkstemp(prefix="tpukit-suggested-")[1]
    own = [str(FOLDER), str(Path(tpukit.__file__).parent.parent)]
    path = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {VARIABLE: file, "PYTHONPATH": os.pathsep.join(path)}

"""Adds the man pages to the wheel: `share/man/man1` beside the program."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.folder = Path(tempfile.mkdtemp())
        pages = run_path(str(Path(self.root, "scripts", "man.py")))["pages"]()
        for name, text in pages.items():
            (self.folder / name).write_text(text, encoding="utf-8")
            build_data["shared_data"][str(self.folder / name)] = f"share/man/man1/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact: str) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

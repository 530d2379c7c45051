"""TOML files by name, in the user's folder and in the folder of a trusted project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tpukit.errors import Fix, SecurityRefusal
from tpukit.settings.config_files import read_text
from tpukit.text import shown_path


@dataclass(frozen=True)
class OwnFiles:
    """The files `NAME.toml` in the folder of a project, which comes first, or in the user's.

    A file in `project` is read only if `trusts` returns True for its path and text.
    """

    user: Path
    project: Path | None = None
    trusts: Callable[[Path, str], bool] = lambda path, text: False

    _says: ClassVar[str] = ""  #: why trust matters: a sentence about the power of these files

    def names(self) -> tuple[str, ...]:
        """Return the names of all files, sorted, without reading them."""
        paths = [path for folder in self._folders() for path in folder.glob("*.toml")]
        return tuple(sorted({path.stem for path in paths if path.is_file()}))

    def _text(self, name: str) -> tuple[Path, str] | None:
        """Return the path and the text of a name's file, or None if there is none.

        Raises:
            BadInput: the file cannot be read.
            SecurityRefusal: the file is in a project and not trusted.
        """
        if name not in self.names():
            return None
        for path in (folder / f"{name}.toml" for folder in self._folders()):
            text = read_text(path)
            if text is None:
                continue
            if path.parent == self.project and not self.trusts(path, text):
                raise SecurityRefusal(
                    f"{shown_path(path)} is not trusted",
                    why=self._says,
                    fix=Fix.command("tpukit", "config", "trust", str(path), note="read it first"),
                )
            return path, text
        return None

    def _folders(self) -> tuple[Path, ...]:
        return (self.project, self.user) if self.project else (self.user,)

"""Files of the user's own, and of a project that the user trusts: one folder each, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tpukit.errors import Fix, SecurityRefusal
from tpukit.settings.files import read_text
from tpukit.text import shown_path


@dataclass(frozen=True)
class OwnFiles:
    """`NAME.toml` in the folder of a project, which comes first, or in the user's.

    What is in `project` counts once `trusts` returns so for its path and text.
    """

    user: Path
    project: Path | None = None
    trusts: Callable[[Path, str], bool] = lambda path, text: False

    _says: ClassVar[str] = ""  #: what such a file may do, for who is to trust it

    def names(self) -> tuple[str, ...]:
        """Return the names of all of them, in order, without reading them."""
        paths = [path for folder in self._folders() for path in folder.glob("*.toml")]
        return tuple(sorted({path.stem for path in paths if path.is_file()}))

    def _text(self, name: str) -> tuple[Path, str] | None:
        """Return the file of a name and its text, or None where there is none.

        Raises:
            BadInput: the file cannot be read.
            SecurityRefusal: it is a project's that is not trusted.
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
                    fix=Fix.command("tpukit", "config", "trust", str(path), note="read it before"),
                )
            return path, text
        return None

    def _folders(self) -> tuple[Path, ...]:
        return (self.project, self.user) if self.project else (self.user,)

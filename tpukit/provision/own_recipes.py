"""Recipes of the user's own, and of a project that the user trusts: a TOML file each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix, SecurityRefusal
from tpukit.provision import recipe_names
from tpukit.provision.recipe_file import NAME, RecipeFile, parse_recipe_file
from tpukit.text import one_line, shown_path

#: A name of a recipe, which stands in messages and in paths on workers.
_NAME = re.compile(NAME)
#: Bytes of a recipe's file.
_LARGEST = 1 << 16


@dataclass(frozen=True)
class OwnRecipes:
    """The folders that recipes are looked for in, beside those of tpukit, the first first.

    What is in `project` counts once `trusts` returns so for its path and text: a recipe says what
    is installed, and run, on workers.
    """

    user: Path
    project: Path | None = None
    trusts: Callable[[Path, str], bool] = lambda path, text: False

    def names(self) -> tuple[str, ...]:
        """Return the names of all of them, in order, without reading them."""
        folders = (self.project, self.user) if self.project else (self.user,)
        found = {path.stem for folder in folders for path in folder.glob("*.toml")}
        return tuple(sorted(each for each in found - {*recipe_names()} if _NAME.fullmatch(each)))

    def read(self, name: str) -> RecipeFile | None:
        """Return what the file of a recipe says, or None where there is none.

        Raises:
            BadInput: the file cannot be read, is no recipe, or names itself otherwise.
            SecurityRefusal: it is a project's that is not trusted.
        """
        if name not in self.names():
            return None
        inside = self.project / f"{name}.toml" if self.project else None
        path = inside if inside and inside.exists() else self.user / f"{name}.toml"
        text = read_recipe_text(path)
        if path == inside and not self.trusts(path, text):
            raise SecurityRefusal(
                f"{shown_path(path)} is not trusted",
                why="a recipe says what is installed, and run, on workers",
                fix=Fix.command("tpukit", "config", "trust", str(path), note="read it before"),
            )
        return parse_own_recipe(path, text)


def read_recipe_text(path: Path) -> str:
    """Return the text of a recipe's file; raise `BadInput` where it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadInput(f"cannot read {shown_path(path)}", why=why or "") from error
    if len(text) > _LARGEST:
        raise BadInput(f"{shown_path(path)} is larger than {_LARGEST} bytes")
    return text


def parse_own_recipe(path: Path, text: str) -> RecipeFile:
    """Return what a file says; raise `BadInput` for what is no recipe, or not the one it names."""
    found = parse_recipe_file(shown_path(path), text)
    if found.name != path.stem:
        raise BadInput(
            f"{shown_path(path)} names its recipe {one_line(found.name)}",
            fix=Fix(note=f'write name = "{path.stem}", or rename the file'),
        )
    if not found.extends:
        raise BadInput(
            f"{shown_path(path)} extends nothing",
            fix=Fix(note=f'for example: extends = "{recipe_names()[0]}"'),
        )
    return found

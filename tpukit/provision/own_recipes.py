"""Recipes of the user's own, and of a project that the user trusts: a TOML file each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.provision import recipe_names, system_steps
from tpukit.provision.own_files import OwnFiles
from tpukit.provision.recipe_file import NAME, RecipeFile, parse_recipe_file
from tpukit.text import one_line, shown_path

#: A name of a recipe, which stands in messages and in paths on workers.
_NAME = re.compile(NAME)


@dataclass(frozen=True)
class OwnRecipes(OwnFiles):
    """The folders that recipes are looked for in, beside those of tpukit."""

    _says = "a recipe says what is installed, and run, on workers"

    def names(self) -> tuple[str, ...]:
        """Return the names of all of them, in order, but for those that tpukit uses itself."""
        taken = {*recipe_names(), *system_steps.step_names()}
        found = super().names()
        return tuple(each for each in found if _NAME.fullmatch(each) and each not in taken)

    def read(self, name: str) -> RecipeFile | None:
        """Return what the file of a recipe says, or None where there is none.

        Raises:
            BadInput: the file cannot be read, is no recipe, or names itself otherwise.
            SecurityRefusal: it is a project's that is not trusted.
        """
        found = self._text(name)
        return parse_own_recipe(*found) if found else None


def parse_own_recipe(path: Path, text: str) -> RecipeFile:
    """Return what a file says; raise `BadInput` for what is no recipe, or not the one it names."""
    shown = shown_path(path)
    found = parse_recipe_file(shown, text)
    if found.name != path.stem:
        raise BadInput(
            f"{shown} names its recipe {one_line(found.name)}",
            fix=Fix(note=f'write name = "{path.stem}", or rename the file'),
        )
    if not found.extends:
        raise BadInput(
            f"{shown} extends nothing",
            fix=Fix(note=f'for example: extends = "{recipe_names()[0]}"'),
        )
    if found.smoke:
        raise BadInput(
            f"{shown} has a smoke test of its own",
            why="what computes in a smoke test is a program of tpukit's, that of what it extends",
            fix=Fix(note=f"remove [smoke] from {shown}"),
        )
    return found

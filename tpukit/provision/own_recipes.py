"""Recipes of the user and of trusted projects, one TOML file each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tpukit.errors import BadInput, Fix
from tpukit.provision import recipe_names, system_steps
from tpukit.provision.own_files import OwnFiles
from tpukit.provision.recipe_file import NAME, RecipeFile, parse_recipe_file
from tpukit.text import one_line, shown_path

#: The name of a recipe; it appears in messages and in paths on workers.
_NAME = re.compile(NAME)


@dataclass(frozen=True)
class OwnRecipes(OwnFiles):
    """The recipes in the user's and a project's folder, in addition to tpukit's own."""

    _says = "a recipe installs and runs programs on workers"

    def names(self) -> tuple[str, ...]:
        """Return the valid names, sorted, except those of tpukit's recipes and steps."""
        taken = {*recipe_names(), *system_steps.step_names()}
        return tuple(
            name for name in super().names() if _NAME.fullmatch(name) and name not in taken
        )

    def read(self, name: str) -> RecipeFile | None:
        """Return the parsed file of a recipe, or None if there is none.

        Raises:
            BadInput: the file cannot be read, is not a valid recipe, or has another name inside.
            SecurityRefusal: the file is in a project and not trusted.
        """
        file = self._text(name)
        return parse_own_recipe(*file) if file else None


def parse_own_recipe(path: Path, text: str) -> RecipeFile:
    """Return the recipe in a file; raise `BadInput` if it is invalid, or named unlike the file."""
    shown = shown_path(path)
    recipe = parse_recipe_file(shown, text)
    if recipe.name != path.stem:
        raise BadInput(
            f"{shown} names its recipe {one_line(recipe.name)}",
            fix=Fix(note=f'write name = "{path.stem}", or rename the file'),
        )
    if recipe.smoke:
        raise BadInput(
            f"{shown} has a smoke test of its own",
            why="a recipe uses the smoke test of the recipe that it extends, if any",
            fix=Fix(note=f"remove [smoke] from {shown}"),
        )
    return recipe

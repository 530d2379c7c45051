"""The recipes and setups of the user, and of the project in whose folder the command runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpukit.paths import Paths
from tpukit.provision.own_recipes import OwnRecipes
from tpukit.provision.wanted import Setups
from tpukit.settings.config_files import project_root
from tpukit.settings.trust import TrustedFiles

#: The folders with a project's recipes and setups, beside its tpukit.toml.
PROJECT_RECIPES = "tpukit-recipes"
PROJECT_SETUPS = "tpukit-setups"


@dataclass(eq=False)
class ProjectFiles:
    """Reads the recipes and setups; those of the project only if the user trusts them."""

    paths: Paths
    folder: Path
    home: Path | None

    @cached_property
    def recipes(self) -> OwnRecipes:
        """The user's recipes, and those of the project."""
        trusted = TrustedFiles(self.paths.trusted)
        return OwnRecipes(self.paths.recipes, self._root / PROJECT_RECIPES, trusted.holds)

    @cached_property
    def setups(self) -> Setups:
        """The setups of the project, before those of the user."""
        recipes = self.recipes
        project = self._root / PROJECT_SETUPS
        return Setups(self.paths.setups, project, recipes.trusts, recipes)

    @cached_property
    def _root(self) -> Path:
        return project_root(self.folder, self.home).resolve()

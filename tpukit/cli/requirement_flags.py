"""The flags for packages to install on top of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli.parameters import DEFAULT_RECIPE
from tpukit.errors import BadInput, Fix

if TYPE_CHECKING:
    from tpukit.console import Console
    from tpukit.provision.recipes import Recipe
    from tpukit.provision.requirements import Requirements


@dataclass(frozen=True)
class RequirementFlags:
    """A requirements file, package indexes, and a pushed project."""

    requirements: Annotated[
        str,
        Option(metavar="FILE", help="requirements.txt to install on top, with included files."),
    ] = ""
    index: Annotated[
        list[str] | None,
        Option(
            metavar="URL", help="Also search this index; ${NAME} stands for your variable NAME."
        ),
    ] = None
    editable: Annotated[
        str,
        Option(metavar="PATH", help="Pushed project on the workers to install as editable."),
    ] = ""

    @property
    def file(self) -> str:
        """The absolute path of the file, for readers in another folder; "" without one."""
        return str(Path(self.requirements).absolute()) if self.requirements else ""


NAME_A_RECIPE = Fix(note=f"name the recipe too, for example {DEFAULT_RECIPE}")
NO_REQUIREMENTS = RequirementFlags()


def on_top(
    flags: RequirementFlags, recipes: Sequence[Recipe], environ: Mapping[str, str]
) -> Requirements | None:
    """Return the requirements that the flags name; None without flags.

    Raises `BadInput` if there is no recipe, or if a recipe cannot be combined with a package.
    """
    from tpukit.files.pushes import target_path
    from tpukit.provision.requirements import read_requirements

    editable = target_path(flags.editable) if flags.editable else ""
    requirements = read_requirements(
        flags.requirements, tuple(flags.index or ()), editable, environ
    )
    if requirements and not recipes:
        raise BadInput("requirements need a recipe to install on", fix=NAME_A_RECIPE)
    for recipe in recipes if requirements else ():
        recipe.check_beside(requirements.packages if requirements else ())
    return requirements


def warn_of_experiments(recipes: Sequence[Recipe], console: Console) -> None:
    """Warn of each experimental recipe, with the reason."""
    for recipe in recipes:
        if recipe.experimental:
            console.warn(f"{recipe.name} is experimental: {recipe.experimental}")

"""The flags that say what comes on top of a recipe."""

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
    """Files, indexes, and a project that was pushed."""

    requirements: Annotated[
        str,
        Option(metavar="FILE", help="requirements.txt to install on top, with what it includes."),
    ] = ""
    index: Annotated[
        list[str] | None,
        Option(metavar="URL", help="Look in this index too; ${NAME} in it is your own variable."),
    ] = None
    editable: Annotated[
        str,
        Option(metavar="PATH", help="A project on the workers, pushed there, to install as it is."),
    ] = ""

    @property
    def file(self) -> str:
        """The file by its whole path, for who reads it later from another folder; or ""."""
        return str(Path(self.requirements).absolute()) if self.requirements else ""


NAME_A_RECIPE = Fix(note=f"name the recipe too, for example {DEFAULT_RECIPE}")
NO_REQUIREMENTS = RequirementFlags()


def on_top(
    flags: RequirementFlags, recipes: Sequence[Recipe], environ: Mapping[str, str]
) -> Requirements | None:
    """Return what the flags name.

    Raises `BadInput` for what a recipe cannot be beside, and where there is no recipe.
    """
    from tpukit.provision.requirements import read_requirements
    from tpukit.work.pushes import target_path

    editable = target_path(flags.editable) if flags.editable else ""
    found = read_requirements(flags.requirements, tuple(flags.index or ()), editable, environ)
    if found and not recipes:
        raise BadInput("requirements go on top of a recipe, and none is named", fix=NAME_A_RECIPE)
    for recipe in recipes if found else ():
        recipe.check_beside(found.packages if found else ())
    return found


def warn_of_experiments(recipes: Sequence[Recipe], console: Console) -> None:
    """Say of each recipe that is experimental why it is."""
    for recipe in recipes:
        if recipe.experimental:
            console.warn(f"{recipe.name} is experimental: {recipe.experimental}")

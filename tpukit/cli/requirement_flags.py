"""The flags for packages to install on top of a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli.parameters import DEFAULT_RECIPE
from tpukit.errors import BadInput, Fix

if TYPE_CHECKING:
    from tpukit.console import Console
    from tpukit.models import SliceRequest
    from tpukit.provision.recipes import Recipe
    from tpukit.provision.requirements import Requirements
    from tpukit.ssh.worker import RemoteWorker


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
    if requirements is None:
        return None
    if not recipes:
        raise BadInput("requirements need a recipe to install on", fix=NAME_A_RECIPE)
    for recipe in recipes:
        recipe.check_beside(requirements.packages)
    return requirements


def check_requested_runtimes(recipe: Recipe, requests: Iterable[SliceRequest]) -> None:
    """Raise `BadInput` if the recipe is not known to fit a runtime version of the Cloud TPU API."""
    for request in requests:
        doubt = recipe.runtime_doubt(request.runtime_version) if request.api == "tpu" else ""
        if doubt:
            raise BadInput(
                doubt,
                fix=Fix(note="leave --runtime-version out: each type has a default that fits"),
                otherwise=Fix(note="--allow-unfit-runtime, if you know better"),
            )


def check_runtimes(
    recipes: Sequence[Recipe], workers: Iterable[RemoteWorker], console: Console
) -> None:
    """Warn if a recipe is not known to fit the workers' runtime version.

    Raises `BadInput` if it is retired.
    """
    from tpukit.accelerators import retired_runtime

    slices = {worker.slice: worker for worker in workers if recipes}
    for worker in slices.values():
        if retired := retired_runtime(worker.runtime_version):
            raise BadInput(
                f"{worker.slice} cannot have {recipes[0].name}: {retired}",
                fix=Fix.command("tpukit", "create", worker.accelerator_type, note="makes another"),
            )
        for doubt in filter(None, (each.runtime_doubt(worker.runtime_version) for each in recipes)):
            console.warn(doubt)


def warn_of_experiments(recipes: Sequence[Recipe], console: Console) -> None:
    """Warn of each experimental recipe, with the reason."""
    for recipe in recipes:
        if recipe.experimental:
            console.warn(f"{recipe.name} is experimental: {recipe.experimental}")

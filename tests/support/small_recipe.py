"""A recipe of small packages, for all that does not depend on a framework."""

from __future__ import annotations

from tpukit.provision.packages import Package
from tpukit.provision.recipe_file import SmokeProgram
from tpukit.provision.recipes import Recipe, Release


def small_recipe(*packages: str, modules: tuple[str, ...] = ("iniconfig",)) -> Recipe:
    parsed = tuple(map(Package.parse, packages))
    pythons = ("3.11", "3.12", "3.13", "3.14")
    release = Release(pythons, parsed, parsed, 50, 50, ())
    computes = SmokeProgram("none_program.py", names_device_kind=False)
    return Recipe("small", "for tests", modules, "3.12", "2.17", "x86_64", computes, (release,))


SMALL = small_recipe("iniconfig==2.0.0")

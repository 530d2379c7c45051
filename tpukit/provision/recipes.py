"""Recipes: which packages make a framework run on which Python, as data with sources."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tpukit.errors import BadInput, Fix
from tpukit.provision import recipe_names
from tpukit.text import one_line

#: The installer, the same on every worker.
UV_VERSION = "0.13.9"

_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[a-z,]+\])?(?:==(?P<version>[0-9A-Za-z.+]+))?")


@dataclass(frozen=True)
class Package:
    """One line of a recipe; `version` is empty where any will do."""

    requirement: str  #: as an installer takes it, extras included
    name: str
    version: str

    @classmethod
    def parse(cls, requirement: str) -> Package:
        """Read `name`, `name[extra]==version` and the like.

        Raises `ValueError` where it is neither a bare name nor pinned to one version.
        """
        match = _PIN.fullmatch(requirement)
        if not match:
            raise ValueError(f"not a pinned package: {requirement!r}")
        return cls(requirement, match["name"], match["version"] or "")

    @property
    def pin(self) -> str:
        """Name and version without extras."""
        return f"{self.name}=={self.version}" if self.version else self.name


@dataclass(frozen=True)
class Release:
    """The packages for some Python versions, and those that stand in for them without a TPU."""

    pythons: tuple[str, ...]  #: such as "3.12", newest last
    packages: tuple[Package, ...]
    stand_in_packages: tuple[Package, ...]
    disk_megabytes: int
    stand_in_disk_megabytes: int
    sources: tuple[str, ...]

    def packages_for(self, emulated: bool) -> tuple[Package, ...]:
        """Return the packages for a TPU VM, or those for an emulated worker."""
        return self.stand_in_packages if emulated else self.packages

    def megabytes_for(self, emulated: bool) -> int:
        """Return the disk that `packages_for` needs."""
        return self.stand_in_disk_megabytes if emulated else self.disk_megabytes


@dataclass(frozen=True)
class SmokeProgram:
    """What computes in a framework's smoke test."""

    program: str  #: a file in `tpukit/smoke`; smoke_program.py says what it defines
    names_device_kind: bool  #: whether the framework names the kind of a TPU (`TPU v3`)
    has_ring: bool = False  #: whether each device sends its number to the next one, too


@dataclass(frozen=True)
class Recipe:
    """A framework: its releases, the preferred one first, and what its wheels need of a worker."""

    name: str  #: also of the Python package whose version is the framework's
    description: str
    modules: tuple[str, ...]  #: to import when verifying
    managed_python: str  #: the Python to fetch where the worker has none that fits
    glibc: str
    architecture: str
    smoke: SmokeProgram
    releases: tuple[Release, ...]

    @classmethod
    def named(cls, name: str) -> Recipe:
        """Return the recipe of this name.

        Raises `BadInput` where there is none; its `fix` has the nearest.
        """
        if name in recipe_names():
            return _recipe(_read(name))
        near = difflib.get_close_matches(name[:40].lower(), recipe_names(), n=1, cutoff=0.4)
        shown = one_line(name[:40])
        fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(recipe_names())}"
        raise BadInput(f'"{shown}" is not a recipe', fix=Fix(note=fix))

    @property
    def pythons(self) -> tuple[str, ...]:
        """Every Python minor version that a release fits, oldest first."""
        found = [python for release in self.releases for python in release.pythons]
        return tuple(sorted(found, key=_numbers))

    def release_for(self, python: str) -> Release | None:
        """Return the release for a Python minor version such as `3.12`."""
        return next((each for each in self.releases if python in each.pythons), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _read(name: str) -> dict[str, Any]:
    file = files("tpukit.provision").joinpath("recipes", f"{name}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _recipe(table: dict[str, Any]) -> Recipe:
    parsed = {
        "modules": tuple(table["modules"]),
        "smoke": SmokeProgram(**table["smoke"]),
        "releases": tuple(_release(release) for release in table["releases"]),
    }
    return Recipe(**{**table, **parsed})


def _release(table: dict[str, Any]) -> Release:
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    packages = {
        key: tuple(map(Package.parse, lists[key])) for key in ("packages", "stand_in_packages")
    }
    return Release(**{**table, **lists, **packages})

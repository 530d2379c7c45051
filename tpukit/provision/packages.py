"""Packages as recipes and indexes name them, compared as PEP 503 and PEP 440 say."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

#: The driver of TPUs, which stand-ins do without, and the extra that brings it.
_DRIVER, _EXTRA = "libtpu", "tpu"


@dataclass(frozen=True)
class Package:
    """One line of a recipe."""

    requirement: str  #: as an installer takes it, extras included
    name: str
    specifier: str  #: such as `==2.9.0`; empty where any version will do

    @classmethod
    def parse(cls, requirement: str) -> Package:
        """Read `name`, `name[extra]==version` and the like.

        Raises `ValueError` for what an index does not find by its name: a URL, a path, an option.
        """
        try:
            found = Requirement(requirement)
        except InvalidRequirement as error:
            raise ValueError(f"not a package: {requirement!r}") from error
        if found.url or found.marker:
            raise ValueError(f"not a package: {requirement!r}")
        return cls(requirement, found.name, str(found.specifier))

    @property
    def version(self) -> str:
        """The one version that it is pinned to, or an empty text."""
        pinned = re.fullmatch(r"==([^*,]+)", self.specifier)
        return pinned[1] if pinned else ""

    @property
    def pin(self) -> str:
        """Name and version without extras; the name alone where it is not pinned."""
        return f"{self.name}=={self.version}" if self.version else self.name

    @property
    def key(self) -> str:
        """The name as PEP 503 compares it."""
        return normalized(self.name)

    def admits(self, version: str) -> bool:
        """Return whether an installed version is one of these; `2.9.0+cpu` is a `2.9.0`."""
        return SpecifierSet(self.specifier).contains(version, prereleases=True)

    def at(self, specifier: str) -> Package:
        """Return the same package and extras in other versions."""
        named = re.match(r"[\w.-]+(\[[^]]*\])?", self.requirement)
        return Package.parse(f"{named[0] if named else self.name}{specifier}")

    @property
    def stand_in(self) -> Package | None:
        """What stands in for it without a TPU; None for the driver itself."""
        if self.key == _DRIVER:
            return None
        return Package.parse(self.requirement.replace(f"[{_EXTRA}]", ""))


def normalized(name: str) -> str:
    """Return a package name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()

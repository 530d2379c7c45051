"""Python packages and their versions, compared by the rules of PEP 503 and PEP 440."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

#: The TPU driver, which stand-ins lack, and the extra that installs it.
_DRIVER, _EXTRA = "libtpu", "tpu"


@dataclass(frozen=True)
class Package:
    """One package of a recipe."""

    requirement: str  #: for the installer, with extras
    name: str
    specifier: str  #: such as `==2.9.0`; empty if any version will do

    @classmethod
    def parse(cls, requirement: str) -> Package:
        """Return the package of a text such as `name` or `name[extra]==version`.

        Raises `ValueError` for a URL, a path, an option, or a requirement with a marker.
        """
        try:
            parsed = Requirement(requirement)
        except InvalidRequirement as error:
            raise ValueError(f"not a package: {requirement!r}") from error
        if parsed.url or parsed.marker:
            raise ValueError(f"not a package: {requirement!r}")
        return cls(requirement, parsed.name, str(parsed.specifier))

    @property
    def version(self) -> str:
        """The version that it is pinned to, or ""."""
        pinned = re.fullmatch(r"==([^*,]+)", self.specifier)
        return pinned[1] if pinned else ""

    @property
    def pin(self) -> str:
        """The name and the version, without extras; only the name if it is not pinned."""
        return f"{self.name}=={self.version}" if self.version else self.name

    @property
    def key(self) -> str:
        """The normalized name of PEP 503."""
        return normalized(self.name)

    def admits(self, version: str) -> bool:
        """Return True if the specifier allows an installed version; `==2.9.0` allows 2.9.0+cpu."""
        return SpecifierSet(self.specifier).contains(version, prereleases=True)

    def at(self, specifier: str) -> Package:
        """Return the package with the same extras and another specifier."""
        named = re.match(r"[\w.-]+(\[[^]]*\])?", self.requirement)
        return Package.parse(f"{named[0] if named else self.name}{specifier}")

    @property
    def stand_in(self) -> Package | None:
        """The package to install without a TPU; None for the driver itself."""
        if self.key == _DRIVER:
            return None
        return Package.parse(self.requirement.replace(f"[{_EXTRA}]", ""))


def normalized(name: str) -> str:
    """Return the normalized name of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()

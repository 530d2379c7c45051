"""Recipes: the packages that a framework needs for each Python version, as data with sources.

A recipe may extend others and add packages to theirs, for each Python version.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import reduce
from importlib.resources import files
from typing import TYPE_CHECKING

from tpukit.errors import BadInput, Fix
from tpukit.provision import recipe_names
from tpukit.provision.packages import Package, normalized
from tpukit.provision.recipe_file import (
    RecipeFile,
    RecipeService,
    ReleaseTable,
    SmokeProgram,
    parse_recipe_file,
)
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.provision.own_recipes import OwnRecipes


#: For a recipe that extends none: wheels of packages are usually manylinux2014, PEP 599.
_GLIBC, _ARCHITECTURE = "2.17", "x86_64"


@dataclass(frozen=True)
class Release:
    """The packages for some Python versions, on a TPU and on emulated workers (stand-ins)."""

    pythons: tuple[str, ...]  #: such as "3.12", newest last
    packages: tuple[Package, ...]
    stand_in_packages: tuple[Package, ...]
    disk_megabytes: int
    stand_in_disk_megabytes: int
    sources: tuple[str, ...]
    lock: str = ""  #: the recipe with the lock to use, which may cover only a part; "" for none

    def packages_for(self, emulated: bool) -> tuple[Package, ...]:
        """Return the packages for a TPU VM, or those for an emulated worker."""
        return self.stand_in_packages if emulated else self.packages

    def megabytes_for(self, emulated: bool) -> int:
        """Return the megabytes of disk that `packages_for` needs."""
        return self.stand_in_disk_megabytes if emulated else self.disk_megabytes


@dataclass(frozen=True)
class Recipe:
    """A framework: its releases, preferred first, and the requirements of its wheels."""

    name: str  #: also the name of the framework's main Python package
    description: str
    modules: tuple[str, ...]  #: to import when verifying
    managed_python: str  #: the Python to fetch if the worker has none that fits
    glibc: str
    architecture: str
    smoke: SmokeProgram
    releases: tuple[Release, ...]
    experimental: str = ""  #: the reason if it is experimental
    no_stand_in: str = ""  #: the reason if an emulated worker cannot have it
    service: RecipeService | None = None  #: what `tpukit serve` runs
    conflicts: Mapping[str, str] = field(default_factory=dict)  #: package -> why it conflicts
    unfit: Mapping[str, str] = field(default_factory=dict)  #: requirement -> why it does not fit
    fits: Mapping[str, str] = field(default_factory=dict)  #: package -> versions known to fit
    together: tuple[tuple[str, ...], ...] = ()  #: pins that must change together
    needs_python: Mapping[str, str] = field(default_factory=dict)  #: requirement -> its Pythons
    environment: Mapping[str, str] = field(default_factory=dict)  #: variables for its programs
    runtimes: tuple[str, ...] = ()  #: patterns of runtime versions; empty if it fits any

    upgrade: str = ""  #: the name of a requested upgrade

    @classmethod
    def named(cls, text: str, own: OwnRecipes | None = None) -> Recipe:
        """Return the recipe for `NAME` or `NAME==VERSION`.

        Raises:
            BadInput: there is no such recipe, or the version is not known to fit.
            SecurityRefusal: the recipe is in a project and not trusted.
        """
        name, equals, version = text.partition("==")
        recipe = _composed(name, (), own)
        recipe = recipe.with_versions({recipe.name: version}) if equals else recipe
        # The Python to fetch must have a release, too.
        managed = recipe.managed_python
        fetched = managed if recipe.release_for(managed) else recipe.releases[0].pythons[-1]
        return replace(recipe, managed_python=fetched)

    @property
    def pythons(self) -> tuple[str, ...]:
        """Every Python minor version that has a release, oldest first."""
        pythons = [python for release in self.releases for python in release.pythons]
        return tuple(sorted(pythons, key=_numbers))

    def release_for(self, python: str) -> Release | None:
        """Return the release for a Python minor version such as `3.12`."""
        return next((release for release in self.releases if python in release.pythons), None)

    def lock_text(self, python: str, emulated: bool) -> str:
        """Return the lock with hashes for a Python minor version, or "" if there is none."""
        release = self.release_for(python)
        return _lock_text(release.lock, python, emulated) if release and release.lock else ""

    def with_versions(self, versions: Mapping[str, str]) -> Recipe:
        """Return the recipe with other versions of some packages.

        Releases that already have these versions come first and keep their locks; the others lose
        theirs. Raises `BadInput` for a version that is not known to fit.
        """
        asked = {normalized(name): version for name, version in versions.items()}
        for name, version in versions.items():
            self._check_fits(name, version)
        for pins in self.together:
            parsed = {package.key: package.version for package in map(Package.parse, pins)}
            if any(asked.get(name) == version for name, version in parsed.items()):
                asked = {**parsed, **asked}
        loosened = self._loosened({name: f"=={version}" for name, version in asked.items()})
        exact = tuple(release for release in self.releases if _has(release, asked))
        return _with_release(replace(loosened, releases=exact + _without(loosened.releases, exact)))

    def upgraded(self, when: str) -> Recipe:
        """Return the recipe with all package versions that are known to fit, and without locks.

        `when` names this upgrade; an environment gets each upgrade once.
        """
        return _with_release(replace(self._loosened({}), upgrade=when))

    def runtime_doubt(self, runtime_version: str) -> str:
        """Return the reason not to expect the recipe to work on a runtime version, or ""."""
        known = not runtime_version or not self.runtimes
        if known or any(fnmatchcase(runtime_version, pattern) for pattern in self.runtimes):
            return ""
        fits = ", ".join(self.runtimes)
        return f"{self.name} is not known to fit runtime version {runtime_version}; it fits {fits}"

    def check_beside(self, packages: Iterable[Package]) -> None:
        """Raise `BadInput` if one of the packages cannot share the recipe's environment."""
        for package in packages:
            if reason := self.conflicts.get(package.key):
                raise BadInput(
                    f"{package.name} cannot share an environment with {self.name}",
                    why=reason,
                    fix=Fix(note="take it out: each framework has an environment of its own"),
                )
            if package.version:
                self._check_unfit(package.name, package.version)
                self._check_pins(package)

    def _check_pins(self, package: Package) -> None:
        """Raise `BadInput` if every release pins another version of the package."""
        pins = [
            pinned.version
            for release in self.releases
            for pinned in release.packages
            if pinned.key == package.key and pinned.version
        ]
        if pins and package.version not in pins:
            has = " or ".join(dict.fromkeys(pins))
            raise BadInput(
                f"{package.pin} is requested, but {self.name} has {has}",
                fix=Fix(note=f"leave {package.name} out, or take another release of {self.name}"),
            )

    def _check_fits(self, name: str, version: str) -> None:
        from packaging.version import InvalidVersion, Version

        known = self.fits.get(normalized(name))
        fix = Fix(note=f"versions known to fit: {known}") if known else Fix(note="leave it out")
        try:
            Version(version)
        except InvalidVersion:
            shown = one_line(version[:40])
            raise BadInput(f'"{shown}" is not a version of {name}', fix=fix) from None
        self._check_unfit(name, version, fix)
        if known is None:
            raise BadInput(f"{self.name} has only one version of {name}", fix=fix)
        if not Package.parse(f"{name}{known}").admits(version):
            raise BadInput(f"{name} {version} is not known to fit {self.name}", fix=fix)

    def _check_unfit(self, name: str, version: str, fix: Fix | None = None) -> None:
        for text, reason in self.unfit.items():
            if _is_one_of(Package.parse(f"{name}=={version}"), Package.parse(text)):
                known = self.fits.get(normalized(name), "")
                raise BadInput(
                    f"{name} {version} does not fit {self.name}",
                    why=reason,
                    fix=fix or Fix(note=f"{name}{known}" if known else f"leave {name} out"),
                )

    def _loosened(self, asked: Mapping[str, str]) -> Recipe:
        """Return the recipe with the requested versions, and all fitting versions of the rest."""

        def loose(package: Package) -> Package:
            if package.key in asked:
                return package.at(asked[package.key])
            return package.at(self.fits.get(package.key, ""))

        def loosened(release: Release) -> Release:
            packages = tuple(map(loose, release.packages))
            stand_ins = tuple(map(loose, release.stand_in_packages))
            return replace(release, packages=packages, stand_in_packages=stand_ins, lock="")

        releases = (self._for_its_pythons(loosened(release)) for release in self.releases)
        return replace(self, releases=tuple(release for release in releases if release.pythons))

    def _for_its_pythons(self, release: Release) -> Release:
        """Return a release without the Pythons that one of its packages excludes."""
        needed = [
            versions
            for text, versions in self.needs_python.items()
            for package in release.packages
            if package.version and _is_one_of(package, Package.parse(text))
        ]
        pythons = tuple(
            python
            for python in release.pythons
            if all(Package.parse(f"python{versions}").admits(python) for versions in needed)
        )
        return replace(release, pythons=pythons)


def _composed(name: str, within: Sequence[str], others: OwnRecipes | None) -> Recipe:
    """Return a recipe combined with the recipes that it extends.

    `within` has the names of the recipes that extend it.
    """
    if name in within:
        circle = " -> ".join([*within, name])
        raise BadInput(f"recipes extend each other in a circle: {circle}", fix=Fix(note="break it"))
    packaged = name in recipe_names()
    own = _read(name) if packaged else others.read(name) if others else None
    if own is None:
        raise _unknown(name, within, (*recipe_names(), *(others.names() if others else ())))
    lock = name if packaged else ""
    parents = [_composed(parent, [*within, name], others) for parent in own.extends]
    return _checked(
        _extended(reduce(_joined, parents), own, lock) if parents else _alone(own, lock)
    )


def _unknown(name: str, within: Sequence[str], known: Sequence[str]) -> BadInput:
    near = difflib.get_close_matches(name[:40].lower(), known, n=1, cutoff=0.4)
    shown = one_line(name[:40])
    fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
    by = f", which {within[-1]} extends" if within else ""
    return BadInput(f'"{shown}"{by} is not a recipe', fix=Fix(note=fix))


def _read(name: str) -> RecipeFile:
    file = files("tpukit.provision").joinpath("recipes", f"{name}.toml")
    return parse_recipe_file(file.name, file.read_text(encoding="utf-8"))


def _alone(own: RecipeFile, lock: str) -> Recipe:
    nothing = Recipe(own.name, "", (), "", _GLIBC, _ARCHITECTURE, SmokeProgram("", False), ())
    releases = tuple(_release(table, own, lock) for table in own.releases)
    return replace(_overlaid(nothing, own), releases=releases)


def _extended(base: Recipe, own: RecipeFile, lock: str) -> Recipe:
    """Return a recipe with the file's values, and its packages added for each Python."""
    tables = own.releases or [ReleaseTable(pythons=release.pythons) for release in base.releases]
    releases = []
    for table in tables:
        for below in base.releases:
            shared = tuple(python for python in table.pythons if python in below.pythons)
            if shared:
                releases.append(_merged(below, _release(table, own, lock), shared))
    return replace(_overlaid(base, own), releases=tuple(releases))


def _overlaid(base: Recipe, own: RecipeFile) -> Recipe:
    """Return a recipe with the values of a file, except the file's releases."""
    return replace(
        base,
        name=own.name,
        description=own.description,
        modules=(*base.modules, *own.modules),
        managed_python=own.managed_python or base.managed_python,
        glibc=own.glibc or base.glibc,
        architecture=own.architecture or base.architecture,
        smoke=own.smoke or base.smoke,
        runtimes=own.runtimes or base.runtimes,
        experimental=own.experimental or base.experimental,
        no_stand_in=own.no_stand_in or base.no_stand_in,
        service=own.service or base.service,
        conflicts={**base.conflicts, **_bynormalized(own.conflicts)},
        unfit={**base.unfit, **own.unfit},
        fits={**base.fits, **_bynormalized(own.fits)},
        together=(*base.together, *own.together),
        needs_python={**base.needs_python, **own.needs_python},
        environment={**base.environment, **own.environment},
    )


def _joined(one: Recipe, other: Recipe) -> Recipe:
    """Return two recipes combined for one environment; `_checked` checks the result."""
    releases = [
        _merged(below, above, shared)
        for below in one.releases
        for above in other.releases
        if (shared := tuple(python for python in below.pythons if python in above.pythons))
    ]
    return replace(
        one,
        name=other.name,
        service=other.service or one.service,
        modules=tuple(dict.fromkeys((*one.modules, *other.modules))),
        releases=tuple(releases),
        conflicts={**one.conflicts, **other.conflicts},
        unfit={**one.unfit, **other.unfit},
        fits={**one.fits, **other.fits},
        together=(*one.together, *other.together),
        needs_python={**one.needs_python, **other.needs_python},
        environment={**one.environment, **other.environment},
    )


def _merged(below: Release, above: Release, pythons: tuple[str, ...]) -> Release:
    def both(lower: Iterable[Package], upper: Iterable[Package]) -> tuple[Package, ...]:
        named = {package.key: package for package in (*lower, *upper)}
        return tuple(named.values())

    # If a package comes in another version, the lock of the lower recipe no longer applies.
    known = {package.key: package for package in below.packages}
    same = all(known.get(package.key, package) == package for package in above.packages)
    return Release(
        pythons,
        both(below.packages, above.packages),
        both(below.stand_in_packages, above.stand_in_packages),
        above.disk_megabytes or below.disk_megabytes,
        above.stand_in_disk_megabytes or below.stand_in_disk_megabytes,
        (*below.sources, *above.sources),
        above.lock or (below.lock if same else ""),
    )


def _release(table: ReleaseTable, own: RecipeFile, lock: str) -> Release:
    packages = tuple(map(Package.parse, (*table.packages, *own.packages)))
    if table.stand_in_packages is None:
        stand_ins = [package.stand_in for package in packages]
    else:
        stand_ins = [*map(Package.parse, (*table.stand_in_packages, *own.packages))]
    return Release(
        table.pythons,
        packages,
        tuple(package for package in stand_ins if package),
        table.disk_megabytes,
        table.stand_in_disk_megabytes,
        table.sources,
        lock,
    )


def _checked(recipe: Recipe) -> Recipe:
    """Return the recipe; raise `BadInput` if it has no release or its own packages conflict."""
    for release in _with_release(recipe).releases:
        recipe.check_beside(release.packages)
    return recipe


def _with_release(recipe: Recipe) -> Recipe:
    if not recipe.releases:
        raise BadInput(
            f"there is no Python for which the recipe {recipe.name} has a release",
            fix=Fix(note="it needs [[releases]], or extended recipes that share a Python version"),
        )
    return recipe


def _has(release: Release, versions: Mapping[str, str]) -> bool:
    pins = {package.key: package.version for package in release.packages}
    return all(pins.get(name, version) == version for name, version in versions.items())


def _without(releases: Iterable[Release], others: Iterable[Release]) -> tuple[Release, ...]:
    """Return the releases without the Pythons that the others have."""
    taken = {python for release in others for python in release.pythons}
    left = [
        replace(release, pythons=tuple(name for name in release.pythons if name not in taken))
        for release in releases
    ]
    return tuple(release for release in left if release.pythons)


def _is_one_of(package: Package, those: Package) -> bool:
    return package.key == those.key and those.admits(package.version)


def uv_requirement() -> str:
    """Return the requirement of uv for pip: its version, with a hash for each platform."""
    lock = files("tpukit.provision").joinpath("locks", "uv.txt").read_text(encoding="utf-8")
    return lock.splitlines()[-1]


def _lock_text(name: str, python: str, emulated: bool) -> str:
    kind = "-stand-in" if emulated else ""
    lock = files("tpukit.provision").joinpath("locks", name, f"{python}{kind}.txt")
    return lock.read_text(encoding="utf-8") if lock.is_file() else ""


def _bynormalized(table: Mapping[str, str]) -> dict[str, str]:
    return {normalized(name): value for name, value in table.items()}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))

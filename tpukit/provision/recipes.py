"""Recipes: which packages make a framework run on which Python, as data with sources.

A recipe may extend others; what it adds comes on top of theirs, Python by Python.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.resources import files
from typing import TYPE_CHECKING

from tpukit.errors import BadInput, Fix
from tpukit.provision import recipe_names
from tpukit.provision.packages import Package, normalized
from tpukit.provision.recipe_file import RecipeFile, ReleaseTable, SmokeProgram, parse_recipe_file
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.provision.own_recipes import OwnRecipes

#: The installer, the same on every worker; scripts/lock locks it.
UV_VERSION = "0.13.9"


@dataclass(frozen=True)
class Release:
    """The packages for some Python versions, and those that stand in for them without a TPU."""

    pythons: tuple[str, ...]  #: such as "3.12", newest last
    packages: tuple[Package, ...]
    stand_in_packages: tuple[Package, ...]
    disk_megabytes: int
    stand_in_disk_megabytes: int
    sources: tuple[str, ...]
    lock: str = ""  #: the recipe whose lock holds for it, all of it or what it extends; or none

    def packages_for(self, emulated: bool) -> tuple[Package, ...]:
        """Return the packages for a TPU VM, or those for an emulated worker."""
        return self.stand_in_packages if emulated else self.packages

    def megabytes_for(self, emulated: bool) -> int:
        """Return the disk that `packages_for` needs."""
        return self.stand_in_disk_megabytes if emulated else self.disk_megabytes


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
    experimental: str = ""  #: why it is, for one that is
    no_stand_in: str = ""  #: why an emulated worker cannot have it, for one that it cannot
    conflicts: Mapping[str, str] = field(default_factory=dict)  #: package -> why not beside it
    unfit: Mapping[str, str] = field(default_factory=dict)  #: requirement -> why it does not fit
    fits: Mapping[str, str] = field(default_factory=dict)  #: package -> versions known to fit
    together: tuple[tuple[str, ...], ...] = ()  #: pins that only come together
    needs_python: Mapping[str, str] = field(default_factory=dict)  #: requirement -> its Pythons

    upgrade: str = ""  #: names the upgrade that is asked for, where one is

    @classmethod
    def named(cls, text: str, own: OwnRecipes | None = None) -> Recipe:
        """Return the recipe `NAME`, or with `NAME==VERSION` the same in another version.

        Raises:
            BadInput: there is none, here or among one's own; or that version is not known to fit.
            SecurityRefusal: it is a project's that is not trusted.
        """
        name, equals, version = text.partition("==")
        recipe = _composed(name, (), own)
        found = recipe.with_versions({recipe.name: version}) if equals else recipe
        # What is fetched where a worker has no Python that fits has to fit, too.
        managed = found.managed_python
        fetched = managed if found.release_for(managed) else found.releases[0].pythons[-1]
        return replace(found, managed_python=fetched)

    @property
    def pythons(self) -> tuple[str, ...]:
        """Every Python minor version that a release fits, oldest first."""
        found = [python for release in self.releases for python in release.pythons]
        return tuple(sorted(found, key=_numbers))

    def release_for(self, python: str) -> Release | None:
        """Return the release for a Python minor version such as `3.12`."""
        return next((each for each in self.releases if python in each.pythons), None)

    def lock_text(self, python: str, emulated: bool) -> str:
        """Return the lock with hashes for a Python minor version, empty where there is none."""
        release = self.release_for(python)
        return _lock_text(release.lock, python, emulated) if release and release.lock else ""

    def with_versions(self, versions: Mapping[str, str]) -> Recipe:
        """Return the recipe with packages in other versions.

        A release that has them comes first, as it is; the others are not locked any more. Raises
        `BadInput` for a version that is not known to fit.
        """
        asked = {normalized(name): version for name, version in versions.items()}
        for name, version in versions.items():
            self._check_fits(name, version)
        for pins in self.together:
            parsed = {each.key: each.version for each in map(Package.parse, pins)}
            if any(asked.get(name) == version for name, version in parsed.items()):
                asked = {**parsed, **asked}
        loosened = self._loosened({name: f"=={version}" for name, version in asked.items()})
        exact = tuple(each for each in self.releases if _has(each, asked))
        return _with_release(replace(loosened, releases=exact + _without(loosened.releases, exact)))

    def upgraded(self, when: str) -> Recipe:
        """Return the recipe with the newest of what is known to fit, none of it locked.

        `when` names this upgrade: an environment has each once.
        """
        return _with_release(replace(self._loosened({}), upgrade=when))

    def check_beside(self, packages: Iterable[Package]) -> None:
        """Raise `BadInput` where packages that are to come on top cannot be beside this recipe."""
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
        """Raise `BadInput` where every release pins another version."""
        pins = [
            each.version
            for release in self.releases
            for each in release.packages
            if each.key == package.key and each.version
        ]
        if pins and package.version not in pins:
            has = " or ".join(dict.fromkeys(pins))
            raise BadInput(
                f"{package.pin} is asked for, and {self.name} has {has}",
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
            raise BadInput(f"{self.name} comes with one version of {name} only", fix=fix)
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
        """Return it with the versions asked for, and of the rest what is known to fit."""

        def loose(package: Package) -> Package:
            if package.key in asked:
                return package.at(asked[package.key])
            return package.at(self.fits.get(package.key, ""))

        def loosened(release: Release) -> Release:
            packages = tuple(map(loose, release.packages))
            stand_ins = tuple(map(loose, release.stand_in_packages))
            return replace(release, packages=packages, stand_in_packages=stand_ins, lock="")

        releases = tuple(self._for_its_pythons(loosened(each)) for each in self.releases)
        return replace(self, releases=tuple(each for each in releases if each.pythons))

    def _for_its_pythons(self, release: Release) -> Release:
        """Return a release without the Pythons that one of its packages does not run on."""
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
    """Return a recipe with all that it extends; `within` are those that extend it."""
    if name in within:
        circle = " -> ".join([*within, name])
        raise BadInput(f"recipes extend each other in a circle: {circle}", fix=Fix(note="break it"))
    packaged = name in recipe_names()
    own = _read(name) if packaged else others.read(name) if others else None
    if own is None:
        raise _unknown(name, within, (*recipe_names(), *(others.names() if others else ())))
    lock = name if packaged else ""
    parents = [_composed(parent, [*within, name], others) for parent in own.extends]
    return _checked(_extended(reduce(_joined, parents), own, lock) if parents else _alone(own))


def _unknown(name: str, within: Sequence[str], known: Sequence[str]) -> BadInput:
    near = difflib.get_close_matches(name[:40].lower(), known, n=1, cutoff=0.4)
    shown = one_line(name[:40])
    fix = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
    by = f", which {within[-1]} extends" if within else ""
    return BadInput(f'"{shown}"{by} is not a recipe', fix=Fix(note=fix))


def _read(name: str) -> RecipeFile:
    file = files("tpukit.provision").joinpath("recipes", f"{name}.toml")
    return parse_recipe_file(file.name, file.read_text(encoding="utf-8"))


def _alone(own: RecipeFile) -> Recipe:
    nothing = Recipe(own.name, "", (), "", "", "", SmokeProgram("", False), ())
    releases = tuple(_release(table, own, own.name) for table in own.releases)
    return replace(_overlaid(nothing, own), releases=releases)


def _extended(base: Recipe, own: RecipeFile, lock: str) -> Recipe:
    """Return what `own` makes of a recipe: its packages come on top, for each Python."""
    tables = own.releases or [ReleaseTable(pythons=each.pythons) for each in base.releases]
    releases = []
    for table in tables:
        for below in base.releases:
            shared = tuple(each for each in table.pythons if each in below.pythons)
            if shared:
                releases.append(_merged(below, _release(table, own, lock), shared))
    return replace(_overlaid(base, own), releases=tuple(releases))


def _overlaid(base: Recipe, own: RecipeFile) -> Recipe:
    """Return a recipe with all that a file says, but for its releases."""
    return replace(
        base,
        name=own.name,
        description=own.description,
        modules=(*base.modules, *own.modules),
        managed_python=own.managed_python or base.managed_python,
        glibc=own.glibc or base.glibc,
        architecture=own.architecture or base.architecture,
        smoke=own.smoke or base.smoke,
        experimental=own.experimental or base.experimental,
        no_stand_in=own.no_stand_in or base.no_stand_in,
        conflicts={**base.conflicts, **_bynormalized(own.conflicts)},
        unfit={**base.unfit, **own.unfit},
        fits={**base.fits, **_bynormalized(own.fits)},
        together=(*base.together, *own.together),
        needs_python={**base.needs_python, **own.needs_python},
    )


def _joined(one: Recipe, other: Recipe) -> Recipe:
    """Return two recipes in one environment; `_checked` finds whether they can be."""
    releases = [
        _merged(below, above, shared)
        for below in one.releases
        for above in other.releases
        if (shared := tuple(each for each in below.pythons if each in above.pythons))
    ]
    return replace(
        one,
        name=other.name,
        modules=tuple(dict.fromkeys((*one.modules, *other.modules))),
        releases=tuple(releases),
        conflicts={**one.conflicts, **other.conflicts},
        unfit={**one.unfit, **other.unfit},
        fits={**one.fits, **other.fits},
        together=(*one.together, *other.together),
        needs_python={**one.needs_python, **other.needs_python},
    )


def _merged(below: Release, above: Release, pythons: tuple[str, ...]) -> Release:
    def both(lower: Iterable[Package], upper: Iterable[Package]) -> tuple[Package, ...]:
        named = {each.key: each for each in lower} | {each.key: each for each in upper}
        return tuple(named.values())

    # Where something comes in another version, the lock below does not hold.
    there = {each.key: each for each in below.packages}
    same = all(there.get(each.key, each) == each for each in above.packages)
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
        stand_ins = [each.stand_in for each in packages]
    else:
        stand_ins = [*map(Package.parse, (*table.stand_in_packages, *own.packages))]
    return Release(
        table.pythons,
        packages,
        tuple(each for each in stand_ins if each),
        table.disk_megabytes,
        table.stand_in_disk_megabytes,
        table.sources,
        lock,
    )


def _checked(recipe: Recipe) -> Recipe:
    """Raise `BadInput` where a recipe has no release, or its own packages conflict."""
    for release in _with_release(recipe).releases:
        recipe.check_beside(release.packages)
    return recipe


def _with_release(recipe: Recipe) -> Recipe:
    if not recipe.releases:
        raise BadInput(
            f"there is no Python for which the recipe {recipe.name} has a release",
            fix=Fix(note="it has Pythons that both what it extends and [needs_python] allow"),
        )
    return recipe


def _has(release: Release, versions: Mapping[str, str]) -> bool:
    pins = {each.key: each.version for each in release.packages}
    return all(pins.get(name, version) == version for name, version in versions.items())


def _without(releases: Iterable[Release], others: Iterable[Release]) -> tuple[Release, ...]:
    """Return releases for the Pythons that others do not have."""
    taken = {python for each in others for python in each.pythons}
    left = [
        replace(each, pythons=tuple(python for python in each.pythons if python not in taken))
        for each in releases
    ]
    return tuple(each for each in left if each.pythons)


def _is_one_of(package: Package, those: Package) -> bool:
    return package.key == those.key and those.admits(package.version)


def uv_requirement() -> str:
    """Return the line that installs uv with pip: its version, and its hashes by platform."""
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

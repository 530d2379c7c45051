"""The recipes and system steps that a command line names, directly or by a setup.

A setup is a TOML file: `setups/NAME.toml` in the folder of the user's settings, or
`tpukit-setups/NAME.toml` in a project. Its key `apply` lists the words that it stands for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.provision import recipe_names, system_steps
from tpukit.provision.own_files import OwnFiles
from tpukit.provision.own_recipes import OwnRecipes
from tpukit.provision.recipes import Recipe
from tpukit.provision.system_steps import WantedStep
from tpukit.settings.config_files import toml_table
from tpukit.text import one_line, shown_path

_KEYS = {"description", "apply"}


@dataclass(frozen=True)
class Wanted:
    """System steps, which come first, and recipes."""

    steps: tuple[WantedStep, ...]
    recipes: tuple[Recipe, ...]

    @property
    def reaches_further(self) -> bool:
        """True if a step also changes the firewall or another slice."""
        return any(step.step.reaches_further for step in self.steps)

    def upgraded(self, when: str) -> Wanted:
        """Return the same steps, and each recipe with all versions that are known to fit."""
        return replace(self, recipes=tuple(recipe.upgraded(when) for recipe in self.recipes))


@dataclass(frozen=True)
class Setups(OwnFiles):
    """The setups in the user's and a project's folder."""

    recipes: OwnRecipes | None = None  #: recipes that a setup may name besides tpukit's

    _says = "a setup changes workers, also as root"

    def words(self, name: str) -> tuple[str, ...] | None:
        """Return the words that a setup stands for, or None if there is no such setup.

        Raises:
            BadInput: the file is not a valid setup.
            SecurityRefusal: the file is in a project and not trusted.
        """
        file = self._text(name)
        return parse_setup(*file) if file else None


def parse(words: Sequence[str], setups: Setups) -> Wanted:
    """Return the steps and recipes that words name, in order and without repetition.

    Raises `BadInput` for a word that names nothing, for a setup that contains itself, and for a
    recipe in two versions.
    """
    steps: dict[str, WantedStep] = {}
    recipes: dict[str, Recipe] = {}
    for word in _expanded(words, setups):
        if system_steps.is_step(word):
            step = system_steps.parse(word)
            steps[step.word] = step
        elif word.partition("==")[0] in _recipe_names(setups):
            recipes[word] = Recipe.named(word, setups.recipes)
        else:
            raise _names_nothing(word, setups)
    _check_one_version(recipes)
    return Wanted(tuple(steps.values()), tuple(recipes.values()))


def known(
    words: Sequence[str], setups: Setups, brought: Callable[[], Collection[str]]
) -> tuple[str, ...]:
    """Return the names of steps and recipes on workers, with setups replaced by their words.

    A recipe may have been deleted on this machine: `brought` returns the environments on the
    workers, and is called only for a word that is unknown here. Raises `BadInput` for a word that
    is unknown on both sides.
    """
    names: dict[str, None] = {}
    for word in _expanded(words, setups):
        name = word.partition("==")[0]
        if system_steps.is_step(word):
            name = system_steps.parse(word).word
        elif name not in _recipe_names(setups):
            _check_brought(word, name, setups, brought)
        names[name] = None
    return tuple(names)


def _check_brought(
    word: str, name: str, setups: Setups, brought: Callable[[], Collection[str]]
) -> None:
    """Raise `BadInput` unless workers have an environment of this name."""
    error = _names_nothing(word, setups)
    try:
        if name in brought():
            return
        error.why = "no worker has an environment of that name either"
    except NotFound:
        raise
    except TpukitError as silence:
        error.why = f"the workers' environments could not be read: {silence.summary()}"
    raise error


def split(word: str) -> tuple[str, ...]:
    """Return `apt:a` and `apt:b` for `apt:a,b`."""
    match = re.fullmatch("apt[:=](.*)", word)
    values = [value for value in match[1].split(",") if value] if match else []
    return tuple(f"apt:{value}" for value in values) or (word,)


def _check_one_version(recipes: Mapping[str, Recipe]) -> None:
    """Raise `BadInput` if words name a recipe in two versions: it has only one environment."""
    first: dict[str, str] = {}
    for word, recipe in recipes.items():
        other = first.setdefault(recipe.name, word)
        if other != word:
            raise BadInput(
                f"{recipe.name} is named in two versions: {one_line(other)}, {one_line(word)}",
                fix=Fix(note="leave one out: a recipe has one environment"),
            )


def _expanded(words: Sequence[str], setups: Setups, within: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the words, with setups replaced by their words and lists of packages split."""
    for word in words:
        if word in within:
            circle = " -> ".join([*within, word])
            raise BadInput(f"setups contain each other: {circle}", fix=Fix(note="break the circle"))
        inner = setups.words(word)
        if inner is None:
            yield from split(word)
        else:
            yield from _expanded(inner, setups, (*within, word))


def parse_setup(path: Path, text: str) -> tuple[str, ...]:
    """Return the words that a setup stands for; raise `BadInput` if it is not a valid setup."""
    shown = shown_path(path)
    example = Fix(note=f'{shown} has a line such as: apply = ["{recipe_names()[0]}", "apt:htop"]')
    if path.stem in (*recipe_names(), *system_steps.step_names()):
        raise BadInput(
            f"{shown} has the name of a recipe or a step", fix=Fix(note=f"rename {shown}")
        )
    table = toml_table(shown, text, example)
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise BadInput(f"{shown}: a setup has no key {one_line(unknown[0])}", fix=example)
    words = table.get("apply")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise BadInput(f"{shown}: apply is not a list of strings", fix=example)
    return tuple(words)


def _recipe_names(setups: Setups) -> tuple[str, ...]:
    return (*recipe_names(), *(setups.recipes.names() if setups.recipes else ()))


def _names_nothing(word: str, setups: Setups) -> BadInput:
    """Return the error for a word that names nothing, with a similar name if there is one."""
    recipes, steps, own = _recipe_names(setups), system_steps.step_names(), setups.names()
    known = [*recipes, *steps, *own]
    near = difflib.get_close_matches(word[:40].lower(), known, n=1, cutoff=0.4)
    every = f"recipes: {', '.join(recipes)}; steps: {', '.join(steps)}"
    every += f"; setups: {one_line(', '.join(own))}" if own else ""
    shown = one_line(word[:40])
    return BadInput(
        f'"{shown}" is not a recipe, a step or a setup',
        fix=Fix(note=f"did you mean {near[0]}?" if near else every),
    )

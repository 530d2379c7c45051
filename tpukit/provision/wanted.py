"""What is asked for on a command line: recipes and system steps, by name or by a profile's.

A profile is a TOML file, `profiles/NAME.toml` in the folder of the user's settings, or
`tpukit-profiles/NAME.toml` in a project: `apply` is a list of the words that it stands for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.provision import recipe_names, system_steps
from tpukit.provision.own_files import OwnFiles
from tpukit.provision.own_recipes import OwnRecipes
from tpukit.provision.recipes import Recipe
from tpukit.provision.system_steps import WantedStep
from tpukit.settings.files import toml_table
from tpukit.text import one_line, shown_path

_KEYS = {"description", "apply"}


@dataclass(frozen=True)
class Wanted:
    """System steps, which come first, and recipes."""

    steps: tuple[WantedStep, ...]
    recipes: tuple[Recipe, ...]

    @property
    def reaches_further(self) -> bool:
        """Whether a step is about more than the workers themselves."""
        return any(each.step.reaches_further for each in self.steps)

    def upgraded(self, when: str) -> Wanted:
        """Return the same with the newest of what is known to fit in each recipe."""
        return replace(self, recipes=tuple(each.upgraded(when) for each in self.recipes))


@dataclass(frozen=True)
class Profiles(OwnFiles):
    """The folders that profiles are looked for in."""

    recipes: OwnRecipes | None = None  #: those that a profile may name beside tpukit's

    _says = "a profile says what is done on workers, by root too"

    def words(self, name: str) -> tuple[str, ...] | None:
        """Return the words that a profile stands for, or None where there is none of this name.

        Raises:
            BadInput: the file is no profile.
            SecurityRefusal: it is a project's that is not trusted.
        """
        found = self._text(name)
        return parse_profile(*found) if found else None


def parse(words: Sequence[str], profiles: Profiles) -> Wanted:
    """Return what words name, each thing once, in their order.

    Raises `BadInput` for a word that names nothing, for a profile that contains itself, and for a
    recipe in two versions.
    """
    steps: dict[str, WantedStep] = {}
    recipes: dict[str, Recipe] = {}
    for each in (part for word in _expanded(words, profiles, ()) for part in split(word)):
        if system_steps.is_step(each):
            step = system_steps.parse(each)
            steps[step.word] = step
        else:
            recipes[each] = _recipe(each, profiles)
    _check_one_version(recipes)
    return Wanted(tuple(steps.values()), tuple(recipes.values()))


def known(
    words: Sequence[str], profiles: Profiles, brought: Callable[[], Collection[str]]
) -> tuple[str, ...]:
    """Return the words of steps and recipes as workers have them, those of profiles in place.

    What a recipe's file says does not matter, nor whether there is one still: `brought` returns the
    names of environments that workers have, and is asked for what is nothing here. Raises
    `BadInput` for a word that names nothing on either side.
    """
    found: dict[str, None] = {}
    for each in (part for word in _expanded(words, profiles, ()) for part in split(word)):
        name = each.partition("==")[0]
        if system_steps.is_step(each):
            name = system_steps.parse(each).word
        elif name not in _recipe_names(profiles):
            _check_brought(each, name, profiles, brought)
        found[name] = None
    return tuple(found)


def _check_brought(
    word: str, name: str, profiles: Profiles, brought: Callable[[], Collection[str]]
) -> None:
    """Raise `BadInput` unless workers have an environment of this name."""
    error = _names_nothing(word, profiles)
    try:
        if name in brought():
            return
        error.why = "no environment of that name was brought either"
    except NotFound:
        raise
    except TpukitError as silence:
        error.why = f"whether one of that name was brought could not be asked: {silence.summary()}"
    raise error


def split(word: str) -> tuple[str, ...]:
    """Return `apt:a` and `apt:b` for `apt:a,b`."""
    match = re.fullmatch("apt[:=](.*)", word)
    values = [value for value in match[1].split(",") if value] if match else []
    return tuple(f"apt:{value}" for value in values) or (word,)


def _check_one_version(recipes: Mapping[str, Recipe]) -> None:
    """Raise `BadInput` where words name one recipe twice: an environment has one version of it."""
    first: dict[str, str] = {}
    for word, recipe in recipes.items():
        other = first.setdefault(recipe.name, word)
        if other != word:
            raise BadInput(
                f"{recipe.name} is asked for in two versions: {one_line(other)}, {one_line(word)}",
                fix=Fix(note="leave one out: a recipe has one environment"),
            )


def _expanded(words: Sequence[str], profiles: Profiles, within: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for word in words:
        if word in within:
            circle = " -> ".join([*within, word])
            raise BadInput(
                f"profiles contain each other: {circle}", fix=Fix(note="break the circle")
            )
        inner = profiles.words(word)
        found += [word] if inner is None else _expanded(inner, profiles, (*within, word))
    return found


def parse_profile(path: Path, text: str) -> tuple[str, ...]:
    """Return the words that a profile stands for; raise `BadInput` for what is no profile."""
    shown = shown_path(path)
    example = Fix(note=f'{shown} has a line such as: apply = ["{recipe_names()[0]}", "apt:htop"]')
    if path.stem in (*recipe_names(), *system_steps.step_names()):
        raise BadInput(
            f"{shown} has the name of a recipe or a step", fix=Fix(note=f"rename {shown}")
        )
    table = toml_table(shown, text, example)
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise BadInput(f"{shown}: a profile has no key {one_line(unknown[0])}", fix=example)
    words = table.get("apply")
    if not isinstance(words, list) or not words or not all(isinstance(each, str) for each in words):
        raise BadInput(f"{shown}: apply is not a list of strings", fix=example)
    return tuple(words)


def _recipe(word: str, profiles: Profiles) -> Recipe:
    if word.partition("==")[0] in _recipe_names(profiles):
        return Recipe.named(word, profiles.recipes)
    raise _names_nothing(word, profiles)


def _recipe_names(profiles: Profiles) -> tuple[str, ...]:
    return (*recipe_names(), *(profiles.recipes.names() if profiles.recipes else ()))


def _names_nothing(word: str, profiles: Profiles) -> BadInput:
    """Return the error for a word that is nothing here, with what is like it."""
    recipes, steps, own = _recipe_names(profiles), system_steps.step_names(), profiles.names()
    known = [*recipes, *steps, *own]
    near = difflib.get_close_matches(word[:40].lower(), known, n=1, cutoff=0.4)
    every = f"recipes: {', '.join(recipes)}; steps: {', '.join(steps)}"
    every += f"; profiles: {one_line(', '.join(own))}" if own else ""
    shown = one_line(word[:40])
    return BadInput(
        f'"{shown}" is not a recipe, a step or a profile',
        fix=Fix(note=f"did you mean {near[0]}?" if near else every),
    )

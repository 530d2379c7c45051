"""System steps, which change a worker's own system.

`system_steps/NAME.toml` describes the step; `tpukit/agent/system` applies it.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tpukit import __version__
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

#: The steps that involve two slices: one mounts a folder, the other one shares it.
SHARED, SHARING = "nfs", "nfs-server"

_FOLDER = Path(__file__).with_suffix("")
_WORD = re.compile(r"(?P<name>[a-z][a-z0-9-]*)(?:[:=](?P<value>[^\s\x00-\x1f\x7f]+))?")


@dataclass(frozen=True)
class SystemStep:
    """One kind of step."""

    name: str
    description: str
    value: str = ""  #: pattern of the text after the colon; "" if the step takes no value
    default: str = ""  #: the value of a word without one; "" if a value is required
    example: str = ""
    root: bool = False  #: True if its change needs sudo
    megabytes: int = 0  #: disk space that its change may need
    makes_room: bool = False  #: True if its change frees space on the boot disk
    why: str = ""  #: the limits of the step, and their reasons
    sources: tuple[str, ...] = ()
    opening: str = ""  #: ports to open to this machine's address: `udp:60000-61000`

    @property
    def reaches_further(self) -> bool:
        """True if the step also changes the firewall or another slice."""
        return bool(self.opening) or self.name == SHARED


@dataclass(frozen=True)
class WantedStep:
    """A step with its value, as one word names it: `apt:htop`."""

    word: str
    step: SystemStep
    value: str

    @property
    def request(self) -> dict[str, Any]:
        """The request to the agent about this step."""
        place = {**request(self.word), "value": self.value}
        return {**place, "name": self.step.name, "root": self.step.root}


def step_names() -> tuple[str, ...]:
    """Return the names of all system steps, sorted, without reading the files."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@cache
def named(name: str) -> SystemStep:
    """Return the step of this name; raise `KeyError` if there is none."""
    if name not in step_names():
        raise KeyError(name)
    text = files("tpukit.provision").joinpath("system_steps", f"{name}.toml").read_text("utf-8")
    table = tomllib.loads(text)
    return SystemStep(**{**table, "name": name, "sources": tuple(table.get("sources", ()))})


def is_step(word: str) -> bool:
    """Return True if a word names a system step, with any value."""
    match = _WORD.fullmatch(word)
    return bool(match and match["name"] in step_names())


def reach_further(words: Iterable[str]) -> bool:
    """Return True if a step among these words also changes the firewall or another slice."""
    return any(parse(word).step.reaches_further for word in words if is_step(word))


def parse(word: str) -> WantedStep:
    """Return the step that a word such as `apt:htop` or `disk` names.

    Raises `BadInput` if its value is missing or invalid.
    """
    match = _WORD.fullmatch(word)
    assert match, word
    step = named(match["name"])
    value = match["value"] or step.default
    fix = Fix(note=f"for example: {step.example or step.name}")
    shown = one_line(word)
    if not step.value and value:
        raise BadInput(f"the step {step.name} takes no value: {shown}", fix=fix)
    if step.value and not re.fullmatch(step.value, value):
        lacking = "needs a value" if not value else f"does not take {one_line(value)}"
        raise BadInput(f"the step {step.name} {lacking}", fix=fix)
    # Write each step in one way, with the sign of its example.
    sign = "=" if step.example.startswith(f"{step.name}=") else ":"
    return WantedStep(f"{step.name}{sign}{value}" if match["value"] else step.name, step, value)


def entry(word: str) -> str:
    """Return the name of a word's ledger and its jobs: letters, digits and hyphens.

    A digest makes it unique for each value.
    """
    name = re.match(r"[a-z0-9-]*", word)[0]  # type: ignore[index]
    if name == word:
        return word
    return f"{name}-{hashlib.sha256(word.encode()).hexdigest()[:10]}"


def request(word: str) -> dict[str, Any]:
    """Return the request to the agent about a step of which only the word is known."""
    return {"word": word, "entry": entry(word), "value": "", "version": __version__}

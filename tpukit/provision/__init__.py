"""Provisioning of workers: facts, steps that decide from them, and recipes as data.

A second run changes nothing. Nothing here changes the system's own Python.
"""

from pathlib import Path


def recipe_names() -> tuple[str, ...]:
    """Return the names of tpukit's recipes, sorted, without reading the files."""
    return tuple(sorted(path.stem for path in (Path(__file__).parent / "recipes").glob("*.toml")))

"""What should be on a worker: facts, steps that decide by them, recipes as data.

The second run changes nothing; nothing here touches the system's own Python.
"""

from pathlib import Path


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, in order, without reading them."""
    return tuple(sorted(path.stem for path in (Path(__file__).parent / "recipes").glob("*.toml")))

"""Scenarios on disk: TOML or JSON, and YAML where a reader for it is installed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from tpukit.emulator.errors import ApiError, Json
from tpukit.emulator.scenario import parse_scenario
from tpukit.errors import BadInput
from tpukit.text import one_line, quote

_LARGEST = 1 << 20


def read_scenario(path: Path) -> Json:
    """Return a scenario as the control plane takes it; raise `BadInput` for one it would refuse."""
    shown = one_line(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode("utf-8")
        document = _parse(path, text)
        parse_scenario(document)
    except OSError as error:
        raise BadInput(f"cannot read the scenario {shown}", reason=error.strerror or "") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"cannot read the scenario {shown}", why=one_line(str(error))) from error
    except ApiError as error:
        raise BadInput(f"the scenario {shown} cannot be played", why=str(error)) from error
    return dict(document)


def _parse(path: Path, text: str) -> Any:
    match path.suffix:
        case ".toml":
            return tomllib.loads(text)
        case ".json":
            return json.loads(text)
        case ".yaml" | ".yml":
            return _yaml(path, text)
    raise BadInput(
        f"a scenario's name ends in .toml or .json: {one_line(str(path))}",
        fix=quote(["mv", str(path), f"{path}.toml"]),
    )


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise BadInput(
            f"nothing here reads YAML: {one_line(str(path))}",
            why="scenarios are TOML or JSON; YAML is read where PyYAML is installed",
            fix="python -m pip install pyyaml",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error

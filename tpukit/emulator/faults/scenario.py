"""Scenarios: files with faults of the API, faults of workers, and events of READY nodes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tpukit.emulator.core.api_errors import (
    ApiError,
    Json,
    invalid,
    read_number,
    read_text,
    read_whole,
)
from tpukit.emulator.faults import api_faults, worker_faults
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line

#: The events of a node: the two ends of a spot slice, or a `Node.Health` of the API.
ENDS = ("preempt", "vanish")
HEALTHS = ("HEALTHY", "TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE")
_LARGEST_FILE = 1 << 20
_KEYS = frozenset({"title", "create_seconds", "faults", "workers", "events"})
_EVENT_KEYS = frozenset({"node", "after", "do", "times"})


@dataclass
class ScenarioEvent:
    """An event of the first `times` nodes that fit, `after` seconds after each became READY."""

    node: str
    do: str  #: one of `ENDS`, or a health
    after: float = 0.0
    times: int = 1
    #: The nodes that fit, by name and id, with the time when they became READY.
    ready: dict[tuple[str, str], float] = field(default_factory=dict)
    served: set[tuple[str, str]] = field(default_factory=set)

    def due(self, nodes: Mapping[str, Json], now: float) -> list[str]:
        """Return the nodes for which the event is due, and count them."""
        for name, record in nodes.items():
            place = name, str(record["node"].get("id", ""))
            fits = fnmatchcase(name.rsplit("/", 1)[-1], self.node)
            room = place in self.ready or len(self.ready) < self.times
            if fits and room and record["node"]["state"] == "READY":
                self.ready.setdefault(place, now)
        due = [
            place
            for place, since in self.ready.items()
            if place not in self.served and now >= since + self.after
        ]
        self.served.update(due)
        return [name for name, _ in due if name in nodes]

    def document(self) -> Json:
        """Return the event in the control plane's form."""
        return {
            "node": self.node,
            "do": self.do,
            "after": self.after,
            "times": self.times,
            "served": len(self.served),
        }


@dataclass(frozen=True)
class Scenario:
    """A checked scenario."""

    faults: Sequence[Json] = ()
    workers: Sequence[Json] = ()
    events: Sequence[ScenarioEvent] = ()
    create_seconds: float | None = None  #: from create to READY; other changes in proportion


def parse_scenario(document: Any) -> Scenario:
    """Return the scenario that a JSON object describes; raise `ApiError` if it is bad."""
    if not isinstance(document, dict) or document.keys() - _KEYS:
        raise invalid(f"A scenario is an object with keys of {', '.join(sorted(_KEYS))}.")
    create_seconds = None
    if "create_seconds" in document:
        create_seconds = read_number(document, "create_seconds", 0)
    rules, workers, events = (_list(document, name) for name in ("faults", "workers", "events"))
    for rule in rules:
        api_faults.parse_rule(rule)
    for rule in workers:
        worker_faults.parse_rule(rule)
    return Scenario(rules, workers, [parse_event(event) for event in events], create_seconds)


def parse_event(document: Any) -> ScenarioEvent:
    """Return the event that a JSON object describes; raise `ApiError` if it is bad."""
    if not isinstance(document, dict) or document.keys() - _EVENT_KEYS:
        raise invalid(f"An event is an object with keys of {', '.join(sorted(_EVENT_KEYS))}.")
    do = document.get("do")
    if do not in (*ENDS, *HEALTHS):
        raise invalid(f"do must be one of {', '.join((*ENDS, *HEALTHS))}.")
    times = read_whole(document, "times", 1, least=1)
    after = read_number(document, "after", 0)
    return ScenarioEvent(read_text(document, "node", "*"), do, after, times)


def _list(document: Json, name: str) -> list[Json]:
    entries = document.get(name, [])
    if not isinstance(entries, list):
        raise invalid(f"{name} must be a list.")
    return entries


def read_scenario(path: Path) -> Json:
    """Return a scenario's document for the control plane; raise `BadInput` if it is bad."""
    shown = one_line(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE).decode("utf-8")
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
        fix=Fix.command("mv", str(path), f"{path}.toml"),
    )


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise BadInput(
            f"nothing here reads YAML: {one_line(str(path))}",
            why="scenarios are TOML or JSON; YAML needs PyYAML",
            fix=Fix.command("python", "-m", "pip", "install", "pyyaml"),
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error

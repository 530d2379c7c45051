"""Named errors of the real service: `presets.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpukit.emulator.core.api_errors import Status


@dataclass(frozen=True)
class Preset:
    """An error, the method that it affects, and if the call or its operation fails."""

    method: str
    kind: str  #: "status" or "operation"
    status: Status


def _read() -> dict[str, Preset]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {
        name: Preset(
            preset["method"],
            preset["kind"],
            Status(
                preset["status"],
                preset["message"],
                tuple(preset.get("details", ())),
                reason=preset.get("reason", ""),
            ),
        )
        for name, preset in tomllib.loads(text).items()
    }


PRESETS: Mapping[str, Preset] = _read()


def filled(status: Status, words: Mapping[str, str]) -> Status:
    """Return a status with words in place of the placeholders of its message and details."""
    details = tuple(_fill(detail, words) for detail in status.details)
    return replace(status, message=_fill(status.message, words), details=details)


def _fill(value: Any, words: Mapping[str, str]) -> Any:
    match value:
        case str():
            for word, text in words.items():
                value = value.replace("{" + word + "}", text)
            return value
        case dict():
            return {key: _fill(entry, words) for key, entry in value.items()}
        case list():
            return [_fill(entry, words) for entry in value]
    return value

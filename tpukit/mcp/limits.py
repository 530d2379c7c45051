"""What a person permits an agent: how many slices, how long, which types, in which zones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpukit.accelerators import spelled
from tpukit.errors import Fix, NotAllowed
from tpukit.text import one_line

#: In `zones`, it stands for all zones.
ALL = "-"
#: A minute, in hours: the shortest life of a slice.
_SHORTEST = 1 / 60


@dataclass(frozen=True)
class Limits:
    """`hours` is the longest life of one slice. Without types or zones, no slice is permitted."""

    slices: int
    hours: float
    types: tuple[str, ...]
    zones: tuple[str, ...]

    @classmethod
    def from_settings(cls, get: Callable[[str], str]) -> Limits:
        """Return the limits in the settings, which `get` returns by their names."""
        return cls(
            slices=int(get("agent_max_slices")),
            hours=float(get("agent_max_hours")),
            types=tuple(map(spelled, _listed(get("agent_types")))),
            zones=_listed(get("agent_zones")),
        )

    def check(self, accelerator_type: str, zone: str, hours: float) -> None:
        """Raise `NotAllowed` unless a slice of this kind is permitted; `zone` may be ""."""
        if spelled(accelerator_type) not in self.types:
            raise _refusal("type", accelerator_type, self.types, "agent_types")
        if not self.zones or (zone and zone not in self.zones and ALL not in self.zones):
            raise _refusal("zone", zone or "any", self.zones, "agent_zones")
        if not _SHORTEST <= hours <= self.hours:  # also if it is no number
            raise NotAllowed(
                f"a slice may live for {self.hours:g} hours, not {hours:g}",
                fix=_raised("agent_max_hours"),
            )

    def check_number(self, existing: int) -> None:
        """Raise `NotAllowed` if so many slices leave no room for another one."""
        if existing >= self.slices:
            raise NotAllowed(
                f"{existing} of {self.slices} slices exist, so another one is not permitted",
                fix=_raised("agent_max_slices"),
            )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _refusal(what: str, given: str, permitted: tuple[str, ...], setting: str) -> NotAllowed:
    return NotAllowed(
        f"{what} {one_line(given)[:60]} is not permitted",
        reason=f"permitted: {', '.join(permitted) or 'none'}",
        fix=_raised(setting),
    )


def _raised(setting: str) -> Fix:
    return Fix(note=f"only a person can change that: tpukit config set {setting} …")

"""What the API offers in each zone, read now, with what our own table says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpukit.accelerators import all_types
from tpukit.cli.toolkit import Toolkit
from tpukit.errors import NotAllowed, TpukitError
from tpukit.remote.command.fan_out import fan_out


@dataclass(frozen=True)
class Offers:
    """Names by the zone that offers them, and the zones whose list failed, with the error."""

    by_zone: Mapping[str, frozenset[str]]
    silent: Mapping[str, TpukitError] = field(default_factory=dict)

    def zones_of(self, name: str) -> tuple[str, ...]:
        """Return the zones that offer it, in order."""
        return tuple(sorted(zone for zone, names in self.by_zone.items() if name in names))

    @property
    def names(self) -> frozenset[str]:
        """All that is offered anywhere."""
        return frozenset(name for names in self.by_zone.values() for name in names)

    @property
    def warnings(self) -> list[str]:
        """One line for all zones that failed for the same reason."""
        zones: dict[str, list[str]] = {}
        for zone, error in sorted(self.silent.items()):
            zones.setdefault(error.reason, []).append(zone)
        return [_warning(each, self.silent[each[0]]) for each in zones.values()]


def accelerator_types(toolkit: Toolkit, zones: Sequence[str] = ()) -> Offers:
    """Return the accelerator types of these zones, of every zone that the project sees for none.

    Raises `TpukitError` where none of them answered.
    """
    provider = toolkit.provider
    return _read(zones or provider.zones(), provider.accelerator_types)


def _read(zones: Sequence[str], read: Callable[[str], frozenset[str]]) -> Offers:
    outcomes = fan_out(list(zones), read)
    failed = {each.item: each.error for each in outcomes if each.error}
    if outcomes and len(failed) == len(outcomes):
        raise next(iter(failed.values()))
    answered = {each.item: each.value for each in outcomes if each.value is not None}
    return Offers(answered, failed)


def _warning(zones: Sequence[str], error: TpukitError) -> str:
    more = f" and {len(zones) - 1} more zones" if len(zones) > 1 else ""
    answered = "answered 403" if isinstance(error, NotAllowed) else "did not answer"
    return f"{zones[0]}{more} {answered}: {error.what}"


def table_types(zone: str) -> frozenset[str]:
    """Return the accelerator types that a zone offers by our own table."""
    return frozenset(each.name for each in all_types() if zone in each.facts.zones)

"""The accelerator types that each zone offers, from the API or from our table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tpukit.accelerators import all_types
from tpukit.cli.toolkit.cloud import Cloud
from tpukit.errors import NotAllowed, TpukitError
from tpukit.ssh.fan_out import fan_out


@dataclass(frozen=True)
class Offers:
    """The offered names by zone, and the errors of the zones that did not answer."""

    by_zone: Mapping[str, frozenset[str]]
    silent: Mapping[str, TpukitError] = field(default_factory=dict)

    def zones_of(self, name: str) -> tuple[str, ...]:
        """Return the zones that offer a name, sorted."""
        return tuple(sorted(zone for zone, names in self.by_zone.items() if name in names))

    @property
    def names(self) -> frozenset[str]:
        """The names that any zone offers."""
        return frozenset(name for names in self.by_zone.values() for name in names)

    @property
    def warnings(self) -> list[str]:
        """One line for each reason, about all zones that failed for it."""
        zones: dict[str, list[str]] = {}
        for zone, error in sorted(self.silent.items()):
            zones.setdefault(error.reason, []).append(zone)
        return [_warning(failed, self.silent[failed[0]]) for failed in zones.values()]


def accelerator_types(cloud: Cloud, zones: Sequence[str] = ()) -> Offers:
    """Return the accelerator types of these zones, or of all zones that the project sees.

    Raises `TpukitError` if no zone answered.
    """
    provider = cloud.provider
    return _read(zones or provider.zones(), provider.accelerator_types)


def _read(zones: Sequence[str], read: Callable[[str], frozenset[str]]) -> Offers:
    outcomes = fan_out(list(zones), read)
    failed = {outcome.item: outcome.error for outcome in outcomes if outcome.error}
    if outcomes and len(failed) == len(outcomes):
        raise next(iter(failed.values()))
    answered = {outcome.item: outcome.value for outcome in outcomes if outcome.value is not None}
    return Offers(answered, failed)


def _warning(zones: Sequence[str], error: TpukitError) -> str:
    more = f" and {len(zones) - 1} more zones" if len(zones) > 1 else ""
    answered = "answered 403" if isinstance(error, NotAllowed) else "did not answer"
    return f"{zones[0]}{more} {answered}: {error.what}"


def table_types(zone: str) -> frozenset[str]:
    """Return the accelerator types of a zone in our table."""
    return frozenset(listed.name for listed in all_types() if zone in listed.facts.zones)

"""Find slices by name, pattern or label, and order them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar

from tpukit.errors import BadInput, Fix, NotFound, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.google.roads import in_both_apis, machine_and_group
from tpukit.models import QueuedResource, Slice
from tpukit.slices import lifetime
from tpukit.slices.last_seen import unless_gone

Thing = TypeVar("Thing", Slice, QueuedResource)

#: The sort keys for a list of slices.
SORTED: Mapping[str, Callable[[Slice], str]] = {
    "name": lambda slice_: slice_.name,
    "zone": lambda slice_: slice_.zone,
    "type": lambda slice_: slice_.accelerator_type,
    "state": lambda slice_: slice_.state,
    "created": lambda slice_: slice_.created,
    "expires": lambda slice_: f"{lifetime.end_of(slice_) or 1e18:020.0f}",  # never: the last
}
_PATTERN = re.compile(r"(?=.*[*?[])[-a-z0-9*?!\[\]]+")
_LABEL = re.compile(r"[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}")
_LIST = Fix.command("tpukit", "list", note="shows the slices")
_EVERYWHERE = Fix.command("tpukit", "list", "--zone", "-", note="shows the slices of all zones")


def find(provider: SliceProvider, name: str, zone: str = "") -> Slice:
    """Return the slice of that name.

    Raises `BadInput` for a multislice, and the errors of `find_named`.
    """
    slices = find_named(provider, name, zone)
    if slices[0].name != name:
        names = ", ".join(slice_.name for slice_ in slices)
        raise BadInput(
            f"{name} is a multislice of {len(slices)} slices: {names}",
            fix=Fix.command("tpukit", "queue", "describe", name, note="shows it; or name a slice"),
        )
    return slices[0]


def find_named(provider: SliceProvider, name: str, zone: str = "") -> Sequence[Slice]:
    """Return the slice of that name, or the slices of the multislice of that name, in order.

    Without `zone` it searches every zone. A multislice has the name of its queued resource. Raises
    `NotFound` if the zone does not have it; without `zone`, the errors of `in_one_zone`.
    """
    with suppress(NotFound):  # one read may be stale
        return [provider.get(zone, name)] if zone else _listed(provider, name, "-")
    return _listed(provider, name, zone or "-")


def _listed(provider: SliceProvider, name: str, zone: str) -> Sequence[Slice]:
    """Return the slices of that name, or of the multislice of that name, from a list."""
    listed = provider.list(zone)
    matches = [slice_ for slice_ in listed.slices if slice_.name == name]
    matches = matches or _multislice(listed.slices, name)
    if zone != "-" and not matches:
        raise NotFound(f"no slice {name} in {zone}", fix=_EVERYWHERE)
    close = get_close_matches(name, [slice_.name for slice_ in listed.slices], n=1)
    near = (
        Fix.command("tpukit", "describe", *close, note="did you mean that slice?")
        if close
        else None
    )
    return in_one_zone(f"slice {name}", matches, listed.unreachable, near or _LIST)


def in_one_zone(
    what: str, matches: Sequence[Thing], unreachable: Sequence[str], missing: Fix
) -> Sequence[Thing]:
    """Return the matches for one name, unless they are in several zones or missing.

    `what` describes them for errors, such as `slice demo`.

    Raises:
        NotFound: every zone answered that it does not have it; `missing` is the fix.
        BadInput: they are in several zones, in both APIs, or a machine and a group.
        TpukitError: some zones did not answer, and the others do not have it.
    """
    zones = sorted({thing.zone for thing in matches})
    if len(zones) > 1:
        fix = Fix(note=f"add --zone {zones[0]}")
        raise BadInput(f"{what} exists in several zones: {', '.join(zones)}", fix=fix)
    slices = [thing for thing in matches if isinstance(thing, Slice)]
    if len({slice_.api for slice_ in slices}) > 1:
        raise in_both_apis(slices[0].name, zones[0])
    if len({slice_.name for slice_ in slices}) < len(slices):
        raise machine_and_group(slices[0].name, zones[0], slices[0].project)
    if not matches and unreachable:
        silent = f"no answer from {', '.join(unreachable)}"
        raise TpukitError(f"cannot tell whether {what} exists", why=silent)
    if not matches:
        raise NotFound(f"no {what} in any zone of the project", fix=missing)
    return matches


def _multislice(slices: Iterable[Slice], name: str) -> list[Slice]:
    """Return the slices of a queued resource, NAME-0 first."""
    own = [slice_ for slice_ in slices if slice_.queued_resource == name]
    return sorted(own, key=lambda slice_: (slice_.zone, len(slice_.name), slice_.name))


def look(provider: SliceProvider, slice_: Slice) -> Slice | None:
    """Return the slice as it is now, or None if it is gone, even if another one has its name."""
    read = partial(provider.only(slice_.api).get, slice_.zone, slice_.name)
    now = unless_gone(read, read)
    return now if now and slice_.id in ("", now.id) else None


def chosen(
    slices: Iterable[Slice], labels: Iterable[str], states: Iterable[str], by: str
) -> tuple[Slice, ...]:
    """Return the slices with all labels (`key` or `key=value`) and one of the states, sorted.

    No states mean every state. `by` is a key of `SORTED`.
    """
    wanted = [label.partition("=") for label in labels]
    upper = {state.upper() for state in states}
    fitting = [
        slice_
        for slice_ in slices
        if (not upper or slice_.state in upper)
        and all(
            key in slice_.labels and (not equals or slice_.labels[key] == value)
            for key, equals, value in wanted
        )
    ]
    return tuple(sorted(fitting, key=lambda slice_: (SORTED[by](slice_), slice_.name, slice_.zone)))


def is_pattern(name: str) -> bool:
    """Return True if a name is a pattern with `*`, `?` or `[…]`, or a label `KEY=VALUE`."""
    return any(form.fullmatch(name) for form in (_PATTERN, _LABEL))


def matching(slices: Iterable[Slice], patterns: Iterable[str]) -> tuple[Slice, ...]:
    """Return the slices with names that match a pattern with `*`, `?` or `[…]`, as in a shell.

    A pattern `KEY=VALUE` matches slices with that label. Raises `BadInput` if two of them have the
    same name.
    """
    wanted = [*patterns]
    fitting = [slice_ for slice_ in slices if any(_fits(slice_, one) for one in wanted)]
    for name in dict.fromkeys(slice_.name for slice_ in fitting):
        in_one_zone(
            f"slice {name}", [slice_ for slice_ in fitting if slice_.name == name], (), _LIST
        )
    return tuple(fitting)


def _fits(slice_: Slice, pattern: str) -> bool:
    key, equals, value = pattern.partition("=")
    return slice_.labels.get(key) == value if equals else fnmatchcase(slice_.name, pattern)

"""Find a slice by its name, and tell whether its workers can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from tpukit.cloud.provider import SliceProvider
from tpukit.errors import BadInput, Fix, NotFound, SliceLost, TpukitError
from tpukit.models import QueuedResource, Slice, SliceTarget

Thing = TypeVar("Thing", Slice, QueuedResource)

#: What a list of slices can be sorted by.
SORTED: Mapping[str, Callable[[Slice], str]] = {
    "name": lambda each: each.name,
    "zone": lambda each: each.zone,
    "type": lambda each: each.accelerator_type,
    "state": lambda each: each.state,
    "created": lambda each: each.created,
}
_LIST = Fix.command("tpukit", "list", note="shows the slices there are")


def find(provider: SliceProvider, name: str, zone: str = "") -> Slice:
    """Return the slice of that name; raise as `find_named`, and `BadInput` for a multislice."""
    found = find_named(provider, name, zone)
    if found[0].name != name:
        names = ", ".join(each.name for each in found)
        raise BadInput(
            f"{name} is a multislice of {len(found)} slices: {names}",
            fix=Fix.command("tpukit", "queue", "describe", name, note="shows it; or name a slice"),
        )
    return found[0]


def find_named(provider: SliceProvider, name: str, zone: str = "") -> Sequence[Slice]:
    """Return the slice of that name, or all slices of the multislice of that name, in their order.

    It is looked for in every zone unless one is given. A multislice has the name of its queued
    resource. Raises `NotFound` if the given zone does not have it, else as `in_one_zone`.
    """
    if zone:
        try:
            return [provider.get(zone, name)]
        except NotFound as error:
            several = _multislice(provider.list(zone).slices, name)
            if not several:
                raise NotFound(error.what, reason=error.reason, fix=_LIST) from error
            return several
    listed = provider.list("-")
    matches = [each for each in listed.slices if each.name == name]
    matches = matches or _multislice(listed.slices, name)
    close = get_close_matches(name, [each.name for each in listed.slices], n=1)
    near = (
        Fix.command("tpukit", "describe", *close, note="did you mean that one?") if close else None
    )
    return in_one_zone(f"slice {name}", matches, listed.unreachable, near or _LIST)


def in_one_zone(
    what: str, matches: Sequence[Thing], unreachable: Sequence[str], missing: Fix
) -> Sequence[Thing]:
    """Return slices or requests of one name, which `what` says in words.

    Raises:
        NotFound: every zone answered, and none has it; `missing` is what to type then.
        BadInput: several zones have one.
        TpukitError: some zones did not answer and the others do not have it.
    """
    zones = sorted({each.zone for each in matches})
    if len(zones) > 1:
        fix = Fix(note=f"add --zone {zones[0]}")
        raise BadInput(f"{what} exists in several zones: {', '.join(zones)}", fix=fix)
    if not matches and unreachable:
        silent = f"no answer from {', '.join(unreachable)}"
        raise TpukitError(f"cannot tell whether {what} exists", why=silent)
    if not matches:
        raise NotFound(f"no {what} in any zone of the project", fix=missing)
    return matches


def _multislice(slices: Iterable[Slice], name: str) -> list[Slice]:
    """Return the slices of a queued resource, NAME-0 first."""
    own = [each for each in slices if each.queued_resource == name]
    return sorted(own, key=lambda each: (each.zone, len(each.name), each.name))


def look(provider: SliceProvider, target: SliceTarget) -> Slice | None:
    """Return the slice, or None if it is gone: another one that has its name now is not it."""
    try:
        found = provider.get(target.zone, target.name)
    except NotFound:
        return None
    return found if target.id in ("", found.id) else None


def check_still_there(provider: SliceProvider, found: Slice) -> None:
    """Raise `SliceLost` if the slice was lost since it was found; a silent API is no loss."""
    try:
        now = look(provider.once(), found.target)
    except TpukitError:
        return
    if now is None:
        raise gone(found)
    if now.lost:
        check_reachable(now)


def gone(found: Slice) -> SliceLost:
    """Return the error for a slice that the API has no longer."""
    return SliceLost(f"slice {found.name} is gone", why="it was there a moment ago")


def chosen(
    slices: Iterable[Slice], labels: Iterable[str], states: Iterable[str], by: str
) -> tuple[Slice, ...]:
    """Return those with all of the labels, `key` or `key=value`, in one of the states, sorted.

    No states stand for every state; `by` is one of `SORTED`.
    """
    wanted = [label.partition("=") for label in labels]
    upper = {state.upper() for state in states}
    found = [
        each
        for each in slices
        if (not upper or each.state in upper)
        and all(
            key in each.labels and (not equals or each.labels[key] == value)
            for key, equals, value in wanted
        )
    ]
    return tuple(sorted(found, key=lambda each: (SORTED[by](each), each.name, each.zone)))


def matching(slices: Iterable[Slice], patterns: Iterable[str]) -> tuple[Slice, ...]:
    """Return the slices whose name fits one of the patterns, `*`, `?` and `[…]` as in a shell.

    Raises `BadInput` where two of them have one name.
    """
    wanted = [*patterns]
    found = [each for each in slices if any(fnmatchcase(each.name, one) for one in wanted)]
    for name in dict.fromkeys(each.name for each in found):
        in_one_zone(f"slice {name}", [each for each in found if each.name == name], (), _LIST)
    return tuple(found)


#: The ways to buy capacity that a create can repeat: each except the first has a flag of `up`.
REMADE = ("on-demand", "spot", "preemptible", "reserved")


def loss(slice_: Slice) -> SliceLost:
    """Return the error for a preempted or terminated slice: make it again, or delete it."""
    place = (slice_.name, "--zone", slice_.zone)
    remake, bought = None, slice_.provisioning
    if bought in REMADE and not slice_.queued_resource:
        remake = Fix.command(
            *("tpukit", "up", slice_.accelerator_type, *place),
            *([] if bought == "on-demand" else [f"--{bought}"]),
            "--recreate",
            note="tpukit watch does this by itself and restarts your command",
        )
    delete = Fix.command("tpukit", "delete", *place)
    return SliceLost(
        f"slice {slice_.name} is {slice_.state}: its workers are gone",
        exists=(f"slice {slice_.name} in {slice_.zone}, {slice_.state}; it keeps its quota",),
        fix=remake or delete,
        otherwise=delete if remake else None,
    )


def check_reachable(found: Slice) -> None:
    """Raise unless the slice's state lets its workers answer.

    Raises:
        SliceLost: it was preempted or terminated.
        TpukitError: it is stopped or being deleted, or it has no workers yet.
    """
    if found.lost:
        raise loss(found)
    if found.state in ("STOPPED", "STOPPING", "DELETING"):
        start = Fix.command("tpukit", "start", found.name, "--zone", found.zone)
        stopped = found.state == "STOPPED"
        raise TpukitError(f"slice {found.name} is {found.state}", fix=start if stopped else None)
    if not found.workers:
        raise TpukitError(
            f"slice {found.name} is {found.state} and has no workers yet",
            fix=Fix.command("tpukit", "wait", found.name, "--zone", found.zone),
        )

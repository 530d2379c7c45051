"""Find slices by name or pattern, and check that their workers can answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

from tpukit.errors import BadInput, Fix, NotFound, SliceLost, TpukitError
from tpukit.google.provider import SliceProvider
from tpukit.google.roads import in_both_apis
from tpukit.models import QueuedResource, Slice
from tpukit.slices import lifetime

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
    if zone:
        try:
            return [provider.get(zone, name)]
        except NotFound as error:
            several = _multislice(provider.list(zone).slices, name)
            if not several:
                raise NotFound(error.what, reason=error.reason, fix=_LIST) from error
            return several
    listed = provider.list("-")
    matches = [slice_ for slice_ in listed.slices if slice_.name == name]
    matches = matches or _multislice(listed.slices, name)
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
        BadInput: they are in several zones, or in both APIs.
        TpukitError: some zones did not answer, and the others do not have it.
    """
    zones = sorted({thing.zone for thing in matches})
    if len(zones) > 1:
        fix = Fix(note=f"add --zone {zones[0]}")
        raise BadInput(f"{what} exists in several zones: {', '.join(zones)}", fix=fix)
    if len({thing.api for thing in matches if isinstance(thing, Slice)}) > 1:
        raise in_both_apis(matches[0].name, zones[0])
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
    try:
        now = provider.only(slice_.api).get(slice_.zone, slice_.name)
    except NotFound:
        return None
    return now if slice_.id in ("", now.id) else None


def check_still_there(provider: SliceProvider, slice_: Slice) -> None:
    """Raise `SliceLost` if the slice has been lost; return if the API does not answer."""
    try:
        now = look(provider.once(), slice_)
    except TpukitError:
        return
    if now is None:
        raise gone(slice_)
    if now.lost or now.state == "DELETING":
        check_reachable(now)


def gone(slice_: Slice) -> SliceLost:
    """Return the error for a slice that no longer exists."""
    return SliceLost(f"slice {slice_.name} is gone", why="it existed a moment ago")


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


#: The end of the name of the default service account.
DEFAULT_ACCOUNT = "-compute@developer.gserviceaccount.com"
#: The ways to buy capacity that a create can repeat: each except the first has a flag of `up`.
REMADE = ("on-demand", "spot", "preemptible", "reserved")


def loss(slice_: Slice) -> SliceLost:
    """Return the error for a preempted or terminated slice: make it again, or delete it."""
    place = (slice_.name, "--zone", slice_.zone)
    delete = remake = Fix.command("tpukit", "delete", *place)
    if slice_.provisioning in REMADE and not slice_.queued_resource:
        again = (
            "tpukit",
            "up",
            slice_.accelerator_type,
            *place,
            *remaking_flags(slice_),
            "--recreate",
        )
        note = "tpukit watch does this by itself and restarts your command"
        remake = Fix.command(*again, note=note)
    return SliceLost(
        f"slice {slice_.name} is {slice_.state}: its workers are gone",
        exists=(f"slice {slice_.name} in {slice_.zone}, {slice_.state}; it keeps its quota",),
        fix=remake,
        otherwise=None if remake is delete else delete,
    )


def remaking_flags(slice_: Slice) -> Iterator[str]:
    """Yield the flags of `up` that ask for such a slice again, with as long a life.

    Metadata is left out, because it can carry secrets.
    """
    from tpukit.accelerators import AcceleratorType, is_listed

    kind, life = slice_.accelerator_type, lifetime.asked(slice_.labels)
    usual = AcceleratorType.parse(kind).runtime_version if is_listed(kind) else ""
    account = slice_.service_account
    if slice_.reservation:
        yield from ("--reservation", slice_.reservation)
    elif slice_.provisioning != "on-demand":
        yield f"--{slice_.provisioning}"
    if slice_.api != "tpu":
        yield from ("--api", slice_.api)
    if not slice_.external_addresses:
        yield "--internal-ips"
    for name, value in {
        "runtime-version": slice_.runtime_version,
        "network": slice_.network.rpartition("/")[2],
        "ttl": life["ttl"] and f"{float(life['ttl'][:-2]) / 60:g}m",
        "idle": life["idle"] and f"{life['idle']}s",
        "max-run-duration": life["max run"] and f"{life['max run']}s",
        "purpose": life["purpose"],
        "labels": ",".join(f"{key}={value}" for key, value in slice_.labels.items() if _own(key)),
        "tags": ",".join(filter(_own, slice_.tags)),
        "subnetwork": slice_.subnetwork.rpartition("/")[2],
        "service-account": "" if account.endswith(DEFAULT_ACCOUNT) else account,
    }.items():
        if value not in ("", usual, "default"):
            yield from (f"--{name}", value)
    for disk in slice_.data_disks:
        mode = ",mode=read-only" if disk.read_only else ""
        yield from ("--data-disk", f"{disk.source}{mode}")


def _own(name: str) -> bool:
    """Return True if a label or tag is not one that tpukit makes."""
    return not name.startswith("tpukit-")


def check_reachable(slice_: Slice) -> None:
    """Raise if the workers cannot answer in the slice's state.

    Raises:
        SliceLost: it was preempted or terminated, or is being deleted.
        TpukitError: it is stopped, or it has no workers yet.
    """
    if slice_.lost:
        raise loss(slice_)
    if slice_.state == "DELETING":
        raise SliceLost(f"slice {slice_.name} is being deleted")
    if slice_.state in ("STOPPED", "STOPPING"):
        start = Fix.command("tpukit", "start", slice_.name, "--zone", slice_.zone)
        stopped = slice_.state == "STOPPED"
        raise TpukitError(f"slice {slice_.name} is {slice_.state}", fix=start if stopped else None)
    if not slice_.workers:
        raise TpukitError(
            f"slice {slice_.name} is {slice_.state} and has no workers yet",
            fix=Fix.command("tpukit", "wait", slice_.name, "--zone", slice_.zone),
        )

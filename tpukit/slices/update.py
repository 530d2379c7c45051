"""Change a slice's labels, tags, metadata and data disks, and verify the change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tpukit.clock import Deadline
from tpukit.errors import BadInput, DeadlinePassed, Fix, NotFound, TpukitError
from tpukit.google.provider import Doubtful, SliceProvider
from tpukit.models import DataDisk, Slice, SliceChange
from tpukit.slices.last_seen import LastSeen, OnState, last_seen, naming_what_exists, passing
from tpukit.slices.losses import check_reachable, gone
from tpukit.slices.naming import OURS

#: The metadata that admits SSH keys, one a line: `user:ssh-ed25519 AAAA… comment`.
KEYS = "ssh-keys"


@dataclass(frozen=True)
class Edits:
    """The values to add, change and remove; all others stay.

    A label of `swaps` that has another value than the old one stays, too.
    """

    labels: Mapping[str, str | None] = field(default_factory=dict)  #: None removes a label
    swaps: Mapping[str, tuple[str, str]] = field(default_factory=dict)  #: old and new label values
    tags: Sequence[str] = ()
    without_tags: Sequence[str] = ()
    metadata: Mapping[str, str | None] = field(default_factory=dict)
    keys: Sequence[str] = ()  #: lines of the metadata `ssh-keys`
    disks: Sequence[DataDisk] = ()
    without_disks: Sequence[str] = ()  #: whole paths, or their last parts
    ours: bool = False  #: True if tpukit changes its own labels

    def check(self) -> None:
        """Raise `BadInput` for no edits, or for labels and tags that only tpukit may change."""
        if self == Edits():
            raise BadInput("there is nothing to update", fix=Fix(note="--update-labels a=b, …"))
        named = (*self.labels, *self.swaps, *self.tags, *self.without_tags)
        ours = next((word for word in named if word.startswith(OURS)), "")
        if ours and not self.ours:
            raise BadInput(f"{ours} belongs to tpukit, which needs it for ownership or access")

    def applied(self, to: Slice) -> SliceChange:
        """Return the change that these edits make, with only the parts that differ."""
        swaps = self.swaps.items()
        swapped = {key: new for key, (old, new) in swaps if to.labels.get(key) == old}
        parts = {
            "labels": _merged(to.labels, {**swapped, **self.labels}),
            "tags": tuple(
                tag for tag in dict.fromkeys((*to.tags, *self.tags)) if tag not in self.without_tags
            ),
            "metadata": self._metadata(to),
            "data_disks": self._disks(to),
        }
        differ = {name: part for name, part in parts.items() if part != getattr(to, name)}
        return SliceChange(**differ)  # type: ignore[arg-type]

    def _metadata(self, to: Slice) -> dict[str, str]:
        merged = _merged(to.metadata, self.metadata)
        lines = merged.get(KEYS, "").splitlines()
        new = [line for line in self.keys if line not in lines]
        return {**merged, KEYS: "\n".join([*lines, *new])} if new else merged

    def _disks(self, to: Slice) -> tuple[DataDisk, ...]:
        gone = set(self.without_disks)
        new = {disk.source for disk in self.disks}
        kept = [
            disk
            for disk in to.data_disks
            if not {disk.source, disk.source.rpartition("/")[2]} & gone and disk.source not in new
        ]
        return (*kept, *self.disks)


@dataclass(frozen=True)
class Updated:
    """The updated slice, the written parts, and `beside`, operations of others' updates.

    Our write may have undone others' writes since our read: the API replaces a part as a whole and
    has no etag.
    """

    slice: Slice
    changed: Sequence[str]
    beside: Sequence[str] = ()


def update(
    provider: SliceProvider,
    slice_: Slice,
    edits: Edits,
    *,
    deadline: Deadline,
    on_state: OnState = lambda state: None,
) -> Updated:
    """Apply the edits to the slice, and return when reading shows them.

    Each part is read immediately before it is written, and again afterwards. If another write came
    in between, the edits are applied again.

    Raises:
        BadInput: the edits ask for nothing.
        SliceLost, TpukitError: the slice cannot be updated in its state; the API refused.
        DeadlinePassed: it does not have all of it yet.
    """
    edits.check()
    if edits.ours and not edits.applied(slice_).parts:
        return Updated(slice_, ())
    provider = provider.within(deadline).only(slice_.api)
    seen = last_seen(provider, slice_, *(() if edits.ours else ("describe",)))
    with naming_what_exists(seen):
        writes = _Writes(provider, on_state, seen)
        before, settled = None if edits.ours else writes.updates(), 0
        for current in seen.looks(provider, deadline, on_state):
            if current is None:
                seen.state = ""
                raise gone(slice_) if edits.ours else NotFound(f"slice {slice_.name} is gone")
            change = edits.applied(current)
            settled = 0 if change.parts else settled + 1
            if change.parts:
                with suppress(Doubtful):  # the next round reads the operation again
                    writes.write(current, change)
            elif edits.ours and current.state == "DELETING":
                check_reachable(current)  # the change came too late
            # A writer that read the slice before our write may undo it a moment later.
            elif settled == 2 or not writes.changed:
                return Updated(current, sorted(writes.changed), writes.beside(before))
        what = "its SSH keys" if edits.keys else "all requested values"
        raise DeadlinePassed(f"slice {slice_.name} does not have {what} yet")


@dataclass
class _Writes:
    """Our writes; `base` is the slice before the last one, `operation` the last one's."""

    provider: SliceProvider
    on_state: OnState
    seen: LastSeen
    operation: str = ""
    base: Slice | None = None
    changed: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    unanswered: bool = False

    def write(self, current: Slice, change: SliceChange) -> None:
        """Write the change, or read what became of the last write."""
        if current.lost or current.state not in ("READY", "STOPPED"):
            check_reachable(current)
            raise TpukitError(f"slice {current.name} is {current.state} and cannot be updated")
        fields = {"dataDisks" if part == "data_disks" else part for part in change.parts}
        if unknown := ", ".join(sorted(fields & {*current.unreadable})):
            why = "the API's answer for it was unreadable, and a change would replace all of it"
            raise TpukitError(f"cannot change {unknown} of slice {current.name}", why=why)
        if self.operation:
            self._follow(current, change)
            return
        self.base = current
        self.changed |= change.parts.keys()
        try:
            self.operation = self.provider.update(current.zone, current.name, change)
            self.own.add(self.operation)
        except TpukitError as error:
            if not (passing(error) or isinstance(error, NotFound)):
                raise  # after NOT_FOUND, the next look tells whether the slice is gone
            self.seen.refusal = error.what
            self.unanswered = self.unanswered or isinstance(error, Doubtful)

    def _follow(self, current: Slice, change: SliceChange) -> None:
        """Forget our write if it has failed or was undone, so that the next round repeats it."""
        failure = self.seen.failure(self.provider, self.operation, f"update slice {current.name}")
        if failure and not passing(failure):
            raise failure
        if not failure:
            if all(getattr(self.base, part) == getattr(current, part) for part in change.parts):
                return  # our write is on its way
            self.on_state("another update changed it; applying the edits again")
        self.operation = ""

    def updates(self) -> frozenset[str] | None:
        """Return the update operations of the slice; None if they cannot be read."""
        try:
            return self.provider.once().operations(self.seen.zone, self.seen.name, "update")
        except TpukitError:
            return None

    def beside(self, before: frozenset[str] | None) -> Sequence[str]:
        """Return the operations of others since `before`."""
        # If the answer to our write was lost, one of these operations may be ours.
        if not self.changed or self.unanswered or before is None:
            return ()
        return sorted((self.updates() or frozenset()) - before - self.own)


def _merged(has: Mapping[str, str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**has, **wanted}.items() if value is not None}

"""Make sure that a slice exists and is READY.

GA `CreateNode` has no request id, so a lost answer cannot be asked for again. A create is
therefore a convergence: the name is known before the call, a nonce in the labels tells our slice
from another's, and after every doubtful answer the slice is read back before anything is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tpukit.clock import Deadline
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import DeadlinePassed, Fix, NameTaken, SliceLost, TpukitError
from tpukit.models import Slice, SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.slices.find import loss
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import LastSeen, OnState, naming_what_exists
from tpukit.slices.naming import MANAGED, NONCE, OURS, OWNER
from tpukit.slices.update import Edits, update

#: Seconds after a refusal for which a create that was not answered before it is looked for: the
#: service may be carrying it out, and the slice that it makes may be what used up the quota.
READ_BACK_SECONDS = 60.0
#: Seconds after an accepted create, or a first answer that the name is taken, for which a slice
#: that nobody sees is looked for.
APPEAR_SECONDS = 120.0
#: The most seconds from one look at a slice to the next: a refusal is told no later than that.
LOOK_SECONDS = 3.0
#: Fields in which an existing slice must equal what the request asks for.
_SPEC = (
    *("accelerator_type", "runtime_version", "provisioning"),
    *("network", "subnetwork", "service_account"),
)


@dataclass(frozen=True)
class Ensured:
    """A slice that is READY, and whether this very call made it."""

    slice: Slice
    created: bool


def ensure(
    provider: SliceProvider,
    request: SliceRequest,
    *,
    deadline: Deadline,
    journal: Journal,
    on_state: OnState,
) -> Ensured:
    """Make sure that the slice exists as requested and is READY, and return it.

    The request carries its nonce and owner (`labelled`). An equal slice of the same owner is
    adopted; a stopped one is started; one that is being deleted is waited out. Whatever ends this
    early, the error names what exists and how to delete it, and nothing is deleted.

    Raises:
        NameTaken: the name exists with another spec, another owner, or was not made by tpukit.
        SliceLost: it was preempted or terminated.
        NoCapacity, QuotaExceeded, NotAllowed, BadInput: the API refused.
        DeadlinePassed: it is not READY yet; it still exists.
        TpukitError: no create was confirmed by the deadline.
    """
    seen = LastSeen(request.name, request.zone, bills=provider.bills)
    with naming_what_exists(seen):
        provider = provider.within(deadline)
        return _Creation(provider, request, deadline, journal, on_state, seen).converge()


@dataclass
class _Creation:
    """One convergence; `operation` is that of our own call, once it was answered.

    `unconfirmed` is what came of the last call that was not. The slice is looked for until `until`
    if another call is refused after that, or if the API took the call or says that the name is
    taken, and shows no slice.
    """

    provider: SliceProvider
    request: SliceRequest
    deadline: Deadline
    journal: Journal
    on_state: OnState
    seen: LastSeen
    operation: str = ""
    appeared: bool = False
    started: bool = False
    unconfirmed: TpukitError | None = None
    refusal: TpukitError | None = None
    until: Deadline | None = None

    def converge(self) -> Ensured:
        looks = self.seen.looks(self.provider, self.deadline, self.on_state, most=LOOK_SECONDS)
        for found in looks:
            with suppress(Doubtful):  # an operation that cannot be read now is read again
                if not (self.operation or self.unconfirmed):
                    # Its time begins with what is asked for next, by the cloud's clock.
                    labels = lifetime.renewed(self.request.labels, self.provider.now())
                    self.request = replace(self.request, labels=labels)
                if found is None:
                    self._ask()
                    continue
                self.appeared = self.appeared or bool(self.operation)
                if found.state == "READY":
                    check_same(found, self.request)
                if found.ready:
                    ours = found.labels.get(NONCE) == self.request.labels[NONCE]
                    return Ensured(self._with_lifetime(found), ours)
                self._wait_for(found)
        raise self._overdue()

    def _ask(self) -> None:
        """Make the one call, or learn why the one that was made came to nothing."""
        if self.operation:
            failure = self._failure()
            if failure or self.appeared:
                self._nothing_is_left()
                if failure and not isinstance(failure, SliceLost):
                    raise failure
                # What an operation says of a lost slice is how to delete it, and it is gone.
                gone = f"slice {self.request.name} vanished while it was being created"
                raise SliceLost(gone, why=failure.what if failure else "")
            if not self.deadline.passed():
                what = f"the API took the create of slice {self.request.name}"
                why = "neither the slice nor a reason came of it"
                self._look_on(TpukitError(f"{what} and shows no such slice", why=why))
        elif self.refusal is None:
            self._create()
        elif self.until is None or self.until.passed():
            raise self.refusal

    def _look_on(self, error: TpukitError) -> None:
        """Raise `error` once the slice has been looked for long enough."""
        self.until = self.until or self.deadline.within(APPEAR_SECONDS)
        if self.until.passed():
            self.seen.state, self.seen.doubt = "", True
            raise error

    def _create(self) -> None:
        end = lifetime.seconds_of(self.request.labels.get(lifetime.EXPIRES, ""))
        if end is not None and end <= self.provider.now():
            over = f"slice {self.request.name} is not made: its lifetime is over"
            raise SliceLost(over, retry="never")
        self._record("create")
        self.seen.state, self.seen.doubt = "", True
        try:
            self.operation = self.provider.create(self.request)
            self.seen.state, self.until = "requested", None
        except NameTaken as taken:  # it appeared meanwhile: the next look tells whose it is
            self._look_on(taken)
        except Doubtful as doubt:
            if self.unconfirmed is None:
                self.on_state(f"{doubt.what}; reading back")
            self.unconfirmed = doubt
        except TpukitError as refusal:
            self.refusal = refusal
            if self.unconfirmed:
                self.on_state(f"{refusal.what}; looking for what was asked for before")
                self.until = self.deadline.within(READ_BACK_SECONDS)
                return
            self._nothing_is_left()
            raise
        self.seen.doubt = self.unconfirmed is not None

    def _wait_for(self, found: Slice) -> None:
        if found.state == "DELETING":
            return
        check_same(found, self.request)
        if found.lost:
            raise loss(found)
        if found.state == "STOPPED" and not self.started:
            self.operation = self.seen.asked(self.provider.start, found, self.on_state)
            self.started = bool(self.operation)
        elif failure := self._failure():
            raise failure

    def _with_lifetime(self, found: Slice) -> Slice:
        """Give a slice that was there the end and purpose that are asked for, where it has none."""
        lacks = lifetime.ending(found, self.request.labels, self.provider.now())
        wanted = self.request.labels.get(lifetime.EXPIRES, "")
        end = found.labels.get(lifetime.EXPIRES, "")
        if wanted and end not in (wanted, "") and lifetime.EXPIRES not in lacks:
            self.on_state(f"it lives until {end}, as before; tpukit extend changes that")
        if not lacks:
            return found
        edits = Edits(labels=lacks, ours=True)
        told = update(self.provider, found, edits, deadline=self.deadline, on_state=self.on_state)
        return told.slice

    def _failure(self) -> TpukitError | None:
        verb = "start" if self.started else "create"
        doing = f"{verb} slice {self.request.name}"
        return self.seen.failure(self.provider, self.operation, doing)

    def _nothing_is_left(self) -> None:
        self.seen.state = ""
        if self.unconfirmed is None:
            self.seen.doubt = False
            self._record("refused")

    def _record(self, event: str) -> None:
        asked = self.request
        self.journal.record(event, asked.project, asked.zone, asked.name, asked.data_disks)

    def _overdue(self) -> TpukitError:
        name, zone = self.request.name, self.request.zone
        if self.refusal:
            return self.refusal
        if self.unconfirmed and not self.seen.state:
            what = f"slice {name} was not created before the deadline"
            return TpukitError(what, why=self.unconfirmed.summary())
        wait = ("tpukit", "wait", name, "--zone", zone)
        return DeadlinePassed(
            f"slice {name} is not READY yet",
            fix=Fix.command(*wait, note="or type the same command again"),
        )


def check_same(found: Slice, request: SliceRequest) -> None:
    """Raise `NameTaken` unless the slice is ours and has all that the request asks for.

    What the request leaves to the API, and what the slice has beside it, is no difference.
    """
    check_owner(found, request.labels[OWNER])
    differences = list(unlike(found, request))
    if differences:
        raise NameTaken(
            f"slice {found.name} exists with another spec",
            why="; ".join(differences),
            fix=Fix(note="choose another name"),
            otherwise=Fix.command("tpukit", "delete", found.name, "--zone", found.zone),
        )


def check_owner(found: Slice, owner: str) -> None:
    """Raise `NameTaken` unless tpukit made the slice for `owner`, as its label names one."""
    if found.labels.get(MANAGED) != "1":
        raise NameTaken(
            f"slice {found.name} exists and was not made by tpukit",
            fix=Fix.command(
                *("tpukit", "provision", found.name, "--zone", found.zone),
                note="sets it up as it is; or choose another name",
            ),
            retry="other-zone",
        )
    if not naming.is_owner(owner, found.labels):
        raise NameTaken(
            f"slice {found.name} exists and belongs to {naming.owner(found)}",
            fix=Fix(note="choose another name"),
            retry="other-zone",
        )


def unlike(found: Slice, request: SliceRequest) -> Iterator[str]:
    """Yield what the request asks for and the slice has not, as far as the API tells of it."""
    for field in _SPEC:
        has, wanted = (_last(getattr(each, field)) for each in (found, request))
        if has and wanted and has != wanted:
            yield f"{field.replace('_', ' ')} is {has}, not {wanted}"
    if found.external_addresses != request.external_addresses:
        yield f"it has {'external' if found.external_addresses else 'no external'} addresses"
    for disk in request.data_disks:
        if disk not in found.data_disks:
            mode = "to read" if disk.read_only else "to read and write"
            yield f"data disk {_last(disk.source)} is not attached {mode}"
    for tag in request.tags:
        if tag not in found.tags and not tag.startswith(OURS):
            yield f"tag {tag} is missing"
    for kind in ("labels", "metadata"):
        has = getattr(found, kind)
        for key, wanted in getattr(request, kind).items():
            if has.get(key) != wanted and not key.startswith(OURS) and key != "ssh-keys":
                yield f"{kind}: {key} is {has.get(key, 'not set')}, not {wanted}"


def _last(path: str) -> str:
    """Return the name at the end of a resource's path: the API answers with whole paths."""
    return path.rpartition("/")[2]

"""Make sure that a slice exists and is READY.

GA `CreateNode` has no request id, so a create with a lost answer cannot be repeated safely. We
therefore choose the name before the call, mark our slice with a nonce in its labels, and after
every doubtful answer read the slice back before we repeat anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tpukit.clock import Deadline
from tpukit.errors import (
    DeadlinePassed,
    Fix,
    NameTaken,
    SliceLost,
    TpukitError,
)
from tpukit.google.provider import Doubtful, SliceProvider
from tpukit.models import Slice, SliceRequest
from tpukit.slices import lifetime, naming
from tpukit.slices.change import delete
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import REQUESTED, LastSeen, OnState, naming_what_exists
from tpukit.slices.losses import loss
from tpukit.slices.naming import GANG, HOSTS, MANAGED, NONCE, OURS, OWNER
from tpukit.slices.update import Edits, update

#: Seconds to look for the slice of an unanswered create if a later create is refused. The service
#: may still be making that slice, and the slice may be why the quota is used up.
READ_BACK_SECONDS = 60.0
#: Seconds to look for a slice after an accepted create, or after the answer "name taken".
APPEAR_SECONDS = 120.0
#: The most seconds between two reads of a slice, so that a failure is reported soon.
LOOK_SECONDS = 3.0
#: Fields in which an existing slice must equal the request.
_SPEC = (
    *("api", "accelerator_type", "runtime_version", "provisioning"),
    *("reservation", "network", "subnetwork", "service_account"),
)


@dataclass(frozen=True)
class Ensured:
    """A READY slice; `created` is True if this call made it."""

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
    """Return the requested slice when it is READY; create it if it does not exist.

    The request carries its nonce and owner (`labelled`). If an equal slice of the same owner
    exists in the request's API, it is used, and started if it is stopped. If it is being deleted,
    it is created again afterwards. Every error names the slice that exists and how to delete it.
    Nothing is deleted, except a slice of Compute Engine whose create has failed.

    Raises:
        NameTaken: a slice of that name has another spec or owner, or tpukit did not make it.
        SliceLost: it was preempted or terminated.
        NoCapacity, QuotaExceeded, NotAllowed, BadInput: the API refused.
        DeadlinePassed: it is not READY yet; it still exists.
        TpukitError: no create was confirmed by the deadline.
    """
    seen = LastSeen(request.name, request.zone, bills=provider.bills)
    with naming_what_exists(seen):
        provider = provider.within(deadline).only(request.api)
        creation = _Creation(provider, request, deadline, journal, on_state, seen)
        for slice_ in seen.looks(provider, deadline, on_state, most=LOOK_SECONDS):
            with suppress(Doubtful):  # the next round reads the operation again
                creation.renew_lifetime()
                if slice_ and slice_.ready:
                    return creation.done(slice_)
                if slice_:
                    creation.wait_for(slice_)
                elif creation.operation or creation.refusal:
                    creation.check_absence()
                else:
                    creation.create()
        raise creation.overdue()


@dataclass
class _Creation:
    """One call of `ensure`; `operation` is the API's operation for our confirmed create.

    `unconfirmed` is the error of the last create that was not confirmed. `until` limits the search
    for a slice that the API does not show: after a refusal that follows an unconfirmed create,
    after an accepted create, and after the answer "name taken".
    """

    provider: SliceProvider
    request: SliceRequest
    deadline: Deadline
    journal: Journal
    on_state: OnState
    seen: LastSeen
    operation: str = ""
    started: bool = False
    unconfirmed: TpukitError | None = None
    refusal: TpukitError | None = None
    until: Deadline | None = None

    def renew_lifetime(self) -> None:
        """Let the lifetime begin at the next create, by the cloud's clock."""
        if not (self.operation or self.unconfirmed):
            labels = lifetime.renewed(self.request.labels, self.provider.now())
            self.request = replace(self.request, labels=labels)

    def done(self, slice_: Slice) -> Ensured:
        """Return the READY slice with its lifetime; raise `NameTaken` if it is another one."""
        check_same(slice_, self.request)
        ours = slice_.labels.get(NONCE) == self.request.labels[NONCE]
        return Ensured(self._with_lifetime(slice_), ours)

    def check_absence(self) -> None:
        """Raise the reason if the slice of an earlier create will not appear any more."""
        if self.operation:
            failure = self._failure()
            appeared = self.seen.state != REQUESTED
            if appeared:  # the API may have forgotten the operation, or one answer is odd
                failure = failure or self._failure()
            if failure or appeared:
                self._nothing_is_left()
                if failure and not (isinstance(failure, SliceLost) or _is_ended(failure)):
                    raise failure
                # The operation's error would say how to delete the slice, but it is gone.
                gone = f"slice {self.request.name} vanished while it was being created"
                raise SliceLost(gone, why=failure.what if failure else "")
            if not self.deadline.passed():
                what = f"the API accepted the create of slice {self.request.name}"
                why = "it gave no reason"
                self._look_on(TpukitError(f"{what} but shows no such slice", why=why))
        elif self.refusal and (self.until is None or self.until.passed()):
            raise self.refusal

    def _look_on(self, error: TpukitError) -> None:
        """Raise `error` if the search for the slice has taken `APPEAR_SECONDS`."""
        self.until = self.until or self.deadline.within(APPEAR_SECONDS)
        if self.until.passed():
            self.seen.state, self.seen.doubt = "", True
            raise error

    def create(self) -> None:
        """Send the create; raise the errors of the API if it was refused."""
        if self.request.queue_only:
            gone = f"slice {self.request.name} is gone, and only the queue has its capacity"
            self._look_on(SliceLost(gone, fix=Fix.command("tpukit", "queue", "list")))
            return
        end = lifetime.seconds_of(self.request.labels.get(lifetime.EXPIRES, ""))
        if end is not None and end <= self.provider.now():
            over = f"slice {self.request.name} was not created: its lifetime is over"
            raise SliceLost(over, retry="never")
        self._record("create")
        self.seen.state, self.seen.doubt = "", True
        try:
            self.operation = self.provider.create(self.request)
            self.seen.state, self.until = REQUESTED, None
        except NameTaken as taken:  # it has just appeared; the next read shows its owner
            if taken.retry == "other-zone":  # something else has the name, and keeps it
                self._nothing_is_left()
                raise
            self._look_on(taken)
        except Doubtful as doubt:
            if self.unconfirmed is None:
                self.on_state(f"{doubt.what}; reading back")
            self.unconfirmed = doubt
        except TpukitError as refusal:
            self.refusal = refusal
            if self.unconfirmed:
                self.on_state(
                    f"{refusal.what}; checking whether the unconfirmed create made a slice"
                )
                self.until = self.deadline.within(READ_BACK_SECONDS)
                return
            self._nothing_is_left()
            raise
        self.seen.doubt = self.unconfirmed is not None

    def wait_for(self, slice_: Slice) -> None:
        """Start the slice if it is stopped; raise if it is another one, lost, or has failed."""
        if slice_.state == "DELETING":
            return
        check_same(slice_, self.request)
        if slice_.lost:
            raise loss(slice_)
        if naming.lacks_group(slice_) and slice_.workers:
            raise TpukitError(
                f"slice {slice_.name} has lost its group",
                why=f"{len(slice_.workers)} of its machines are left, and nothing completes them",
            )
        if slice_.state == "STOPPED" and not self.started:
            self.operation = self.seen.asked(self.provider.start, slice_, self.on_state)
            self.started = bool(self.operation)
        elif failure := self._failure(slice_.operation):
            # One machine that does not start again keeps its disk.
            if slice_.api == "compute" and (not self.started or HOSTS in slice_.labels):
                self._withdraw(slice_)
            raise failure

    def _withdraw(self, slice_: Slice) -> None:
        """Delete a slice whose create has failed: Google would go on trying, and bill later."""
        self.on_state("the create failed; deleting the slice, because Google would go on trying")
        with suppress(TpukitError):  # then the failure says what exists
            delete(
                *(self.provider, slice_),
                deadline=self.deadline,
                journal=self.journal,
                on_state=self.on_state,
                seen=self.seen,
            )
            self.seen.doubt = False

    def _with_lifetime(self, slice_: Slice) -> Slice:
        """Add the requested end, idle time and purpose that it lacks; let its claim time begin."""
        wanted_now = lifetime.ending(slice_, self.request.labels, self.provider.now())
        lacks: dict[str, str | None] = {**wanted_now}
        wanted = self.request.labels.get(lifetime.EXPIRES, "")
        end = slice_.labels.get(lifetime.EXPIRES, "")
        if wanted and end not in (wanted, "") and lifetime.EXPIRES not in lacks:
            self.on_state(f"it still lives until {end}; tpukit extend changes that")
        if lifetime.CLAIM in self.request.labels.keys() - slice_.labels.keys():
            self.on_state("it was there before and needs no claim")
        if GANG in slice_.labels.keys() - self.request.labels.keys():
            lacks[GANG] = None  # asked for alone, it is of an incomplete gang no more
        if not lacks:
            return slice_
        # Somebody may claim it meanwhile, which removes this label; it must not come back.
        claim = lacks.pop(lifetime.CLAIM, None)
        swaps = {lifetime.CLAIM: (slice_.labels[lifetime.CLAIM], claim)} if claim else {}
        edits = Edits(labels=lacks, swaps=swaps, ours=True)
        told = update(self.provider, slice_, edits, deadline=self.deadline, on_state=self.on_state)
        return told.slice

    def _failure(self, other: str = "") -> TpukitError | None:
        """Return why our operation failed, or without one the other operation."""
        verb = "start" if self.started else "create"
        doing = f"{verb} slice {self.request.name}"
        return self.seen.failure(self.provider, self.operation or other, doing)

    def _nothing_is_left(self) -> None:
        self.seen.state = ""
        if self.unconfirmed is None:
            self.seen.doubt = False
            self._record("refused")

    def _record(self, event: str) -> None:
        asked = self.request
        self.journal.record(event, asked.project, asked.zone, asked.name, asked.data_disks)

    def overdue(self) -> TpukitError:
        """Return the error for a slice that is not READY at the deadline."""
        name, zone = self.request.name, self.request.zone
        if self.refusal:
            return self.refusal
        if self.unconfirmed and not self.seen.state:
            what = f"slice {name} was not created before the deadline"
            return TpukitError(what, why=self.unconfirmed.summary())
        verb = "start" if self.seen.state == "STOPPED" else "wait"
        again = Fix.command(
            *("tpukit", verb, name, "--zone", zone), note="or run the same command again"
        )
        return DeadlinePassed(f"slice {name} is not READY yet", fix=again)


def _is_ended(failure: TpukitError) -> bool:
    """Return True if a create failed because somebody deleted its slice meanwhile."""
    return failure.reason.startswith("CANCELLED")


def check_same(slice_: Slice, request: SliceRequest) -> None:
    """Raise `NameTaken` unless the slice is ours and matches the request.

    Values that the request leaves to the API, and additional properties of the slice, may differ.
    """
    check_owner(slice_, request.labels[OWNER])
    differences = list(unlike(slice_, request))
    if differences:
        raise NameTaken(
            f"slice {slice_.name} exists with another spec",
            why="; ".join(differences),
            fix=Fix(note="choose another name"),
            otherwise=Fix.command("tpukit", "delete", slice_.name, "--zone", slice_.zone),
        )


def check_owner(slice_: Slice, owner: str) -> None:
    """Raise `NameTaken` unless tpukit made the slice for `owner`, the value of an owner label."""
    if slice_.labels.get(MANAGED) != "1":
        raise NameTaken(
            f"slice {slice_.name} exists and was not made by tpukit",
            fix=Fix.command(
                *("tpukit", "provision", slice_.name, "--zone", slice_.zone),
                note="provisions that slice; or choose another name",
            ),
            retry="other-zone",
        )
    if not naming.is_owner(owner, slice_.labels):
        raise NameTaken(
            f"slice {slice_.name} exists and belongs to {naming.owner(slice_)}",
            fix=Fix(note="choose another name"),
            retry="other-zone",
        )


def unlike(slice_: Slice, request: SliceRequest) -> Iterator[str]:
    """Yield the differences between the slice and the request, as far as the API shows them."""
    for field in _SPEC:
        has, wanted = (_last(getattr(thing, field)) for thing in (slice_, request))
        if has and wanted and has != wanted:
            yield f"{field.replace('_', ' ')} is {has}, not {wanted}"
    if slice_.external_addresses != request.external_addresses:
        yield f"it has {'external' if slice_.external_addresses else 'no external'} addresses"
    for disk in request.data_disks:
        if disk not in slice_.data_disks:
            mode = "to read" if disk.read_only else "to read and write"
            yield f"data disk {_last(disk.source)} is not attached {mode}"
    for tag in request.tags:
        if tag not in slice_.tags and not tag.startswith(OURS):
            yield f"tag {tag} is missing"
    for kind in ("labels", "metadata"):
        has = getattr(slice_, kind)
        for key, wanted in getattr(request, kind).items():
            if has.get(key) != wanted and not key.startswith(OURS) and key != "ssh-keys":
                yield f"{kind}: {key} is {has.get(key, 'not set')}, not {wanted}"


def _last(path: str) -> str:
    """Return the last part of a resource's path; the API answers with whole paths."""
    return path.rpartition("/")[2]

"""Make sure that a slice exists and is READY.

GA `CreateNode` has no request id, so a lost answer cannot be asked for again. A create is
therefore a convergence: the name is known before the call, a nonce in the labels tells our slice
from another's, and after every doubtful answer the slice is read back before anything is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpukit.clock import Deadline
from tpukit.cloud.provider import Doubtful, SliceProvider
from tpukit.errors import DeadlinePassed, Fix, NameTaken, SliceLost, TpukitError
from tpukit.models import Slice, SliceRequest
from tpukit.slices.journal import Journal
from tpukit.slices.last_seen import LastSeen, OnState, asked, naming_what_exists
from tpukit.slices.naming import MANAGED, NONCE, OWNER

#: Fields in which an existing slice must equal the request to be taken for the same one.
_SPEC = ("accelerator_type", "runtime_version", "provisioning")


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
    """
    seen = LastSeen(request.name, request.zone, bills=provider.bills)
    with naming_what_exists(seen):
        return _Creation(provider, request, deadline, journal, on_state, seen).converge()


@dataclass
class _Creation:
    """One convergence; `operation` is that of our own call, once it was made."""

    provider: SliceProvider
    request: SliceRequest
    deadline: Deadline
    journal: Journal
    on_state: OnState
    seen: LastSeen
    operation: str = ""
    appeared: bool = False
    started: bool = False

    def converge(self) -> Ensured:
        for found in self.seen.looks(self.provider, self.deadline, self.on_state):
            if found is None:
                self._ask()
                continue
            self.appeared = self.appeared or bool(self.operation)
            if found.state == "READY":
                check_same(found, self.request)
                return Ensured(found, found.labels.get(NONCE) == self.request.labels[NONCE])
            self._wait_for(found)
        raise DeadlinePassed(f"slice {self.request.name} is not READY yet", fix=self._resume())

    def _ask(self) -> None:
        """Make the one call, or learn why the one that was made came to nothing."""
        if self.operation:
            failure = self._failure()
            if failure or self.appeared:
                self.seen.state = ""
            if failure:
                raise failure
            if self.appeared:
                raise SliceLost(f"slice {self.request.name} vanished while it was being created")
            return
        asked = self.request
        self.journal.record("create", asked.project, asked.zone, asked.name)
        self.seen.state = "requested"
        try:
            self.operation = self.provider.create(self.request)
        except NameTaken:
            return  # it appeared meanwhile: the next look tells whose it is
        except Doubtful as doubt:
            self.on_state(f"{doubt.what}; reading back")
        except TpukitError:
            self.seen.state = ""  # refused: nothing was made
            raise

    def _wait_for(self, found: Slice) -> None:
        if found.state == "DELETING":
            return
        check_same(found, self.request)
        if found.lost:
            raise SliceLost(
                f"slice {found.name} is {found.state} and does not come back",
                why="it keeps its quota until it is deleted",
                exists=self.seen.exists(),
                fix=self.seen.delete_command(),
            )
        failure = self._failure()
        if failure:
            raise failure
        if found.state == "STOPPED" and not self.started:
            self.operation = asked(self.provider.start, found)
            self.started = bool(self.operation)

    def _failure(self) -> TpukitError | None:
        if not self.operation:
            return None
        verb = "start" if self.started else "create"
        return self.provider.failure(self.operation, f"{verb} slice {self.request.name}")

    def _resume(self) -> Fix:
        return Fix.command(
            *("tpukit", "wait", self.request.name, "--zone", self.request.zone),
            note="or type the same command again",
        )


def check_same(found: Slice, request: SliceRequest) -> None:
    """Raise `NameTaken` unless the slice is ours and equal to the request in all that matters."""
    owner = found.labels.get(OWNER)
    if found.labels.get(MANAGED) != "1":
        raise NameTaken(
            f"slice {found.name} exists and was not made by tpukit",
            fix=Fix.command(
                *("tpukit", "provision", found.name, "--zone", found.zone),
                note="sets it up as it is; or choose another name",
            ),
        )
    if owner != request.labels[OWNER]:
        raise NameTaken(
            f"slice {found.name} exists and belongs to {owner}", fix=Fix(note="choose another name")
        )
    differences = [
        f"{field.replace('_', ' ')} is {getattr(found, field)}, not {getattr(request, field)}"
        for field in _SPEC
        if getattr(found, field) != getattr(request, field)
    ]
    if differences:
        raise NameTaken(
            f"slice {found.name} exists with another spec",
            why="; ".join(differences),
            fix=Fix(note="choose another name"),
            otherwise=Fix.command("tpukit", "delete", found.name, "--zone", found.zone),
        )

"""Refusals of places to give a slice, and if it is worth asking there again.

Errors are classified by their text (`data/api_errors.toml`), because the API uses the same codes
for missing capacity, quotas and rate limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tpukit.errors import (
    BadInput,
    Fix,
    NoCapacity,
    NotAuthenticated,
    QuotaExceeded,
    SliceLost,
    TpukitError,
)
from tpukit.google.roads import delete_in
from tpukit.models import Slice, SliceRequest

#: Where to ask again after a refusal: here later, only elsewhere, here after a fix, or nowhere.
LATER, ELSEWHERE, AFTER_FIX, NEVER = "later", "elsewhere", "after a fix", "never"
#: Errors after which the same call may succeed a little later (google.rpc.Code).
_PASSING = ("UNKNOWN", "ABORTED", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "no answer")


@dataclass(frozen=True)
class Refusal:
    """The last refusal of a place, and the number of refusals."""

    request: SliceRequest = field(compare=False)
    again: str  #: `LATER`, `ELSEWHERE`, `AFTER_FIX` or `NEVER`
    times: int
    error: TpukitError = field(compare=False)

    @property
    def zone(self) -> str:
        return self.request.zone

    @property
    def line(self) -> str:
        """The refusal as one line: the place, where to ask again, and the reason."""
        asked = f", asked {self.times} times" if self.times > 1 else ""
        message = self.error.what.partition(": ")[2] or self.error.what
        said = " ".join(((self.again == LATER and self.error.why) or message).split())
        reason = f" ({self.error.reason})" if self.error.reason else ""
        note = self.error.fix.note if self.error.fix and self.again == AFTER_FIX else ""
        fix = f" Fix: {note}." if note else ""
        return f"{place(self.request)}: {self.again}{asked}{reason}: {said}{fix}"

    @property
    def doubt(self) -> str:
        """The line about a slice that may still appear: its create was not confirmed; or ""."""
        lines = self.error.why.splitlines()
        return next((line for line in lines if "may still appear" in line), "")

    def document(self) -> dict[str, Any]:
        """Return the JSON value."""
        return {
            "zone": self.zone,
            "code": self.error.exit_code,
            "message": self.error.what,
            "reason": self.error.reason,
            "why": self.error.why,
            "accelerator_type": self.request.accelerator_type,
            "provisioning": self.request.provisioning,
            "api": self.request.api,
            "again": self.again,
            "times": self.times,
        }


def place(one: SliceRequest | Slice) -> str:
    """Return a place in words: zone, type, how it is bought, and the API."""
    tier = "" if one.provisioning == "on-demand" else one.provisioning
    api = "on Compute Engine" if one.api == "compute" else ""
    return " ".join(filter(None, (one.zone, one.accelerator_type, tier, api)))


def outlook(error: TpukitError) -> str:
    """Return where to ask again after a refusal; an unknown error needs a fix first."""
    if error.retry == "never" or isinstance(error, NotAuthenticated):
        return NEVER
    if isinstance(error, (NoCapacity, SliceLost)) or error.retry == "same-zone":
        return LATER
    if error.retry == "other-zone" or (isinstance(error, BadInput) and not error.retry):
        return ELSEWHERE
    return LATER if not error.retry and error.reason.startswith(_PASSING) else AFTER_FIX


def noted(before: Refusal | None, request: SliceRequest, error: TpukitError) -> Refusal:
    """Return the new refusal of a place; `before` is its previous one."""
    times = before.times + 1 if before else 1
    return Refusal(request, outlook(error), times, error)


def nowhere(name: str, refusals: Sequence[Refusal], *, keeps_trying: bool) -> TpukitError:
    """Return the error if every place has refused: the first one about capacity or quota, or else
    the first one.
    """
    first = next(
        (refusal for refusal in refusals if isinstance(refusal.error, (NoCapacity, QuotaExceeded))),
        refusals[0],
    )
    hope = [refusal for refusal in refusals if refusal.again == LATER]
    fix = first.error.fix
    if hope and keeps_trying:
        fix = Fix(note="the same command asks again, here or on another machine")
    elif hope:
        fix = Fix(note="add --keep-trying, or more places: --zones, --anywhere, --types")
    places = "its place" if len(refusals) == 1 else f"all {len(refusals)} places"
    return type(first.error)(
        f"slice {name} was refused in {places}",
        reason=first.error.reason,
        why="\n".join(refusal.line for refusal in refusals),
        fix=fix,
        retry=first.error.retry,
        details=documents(refusals),
    )


def doubtful(refusals: Sequence[Refusal], made: Slice | None = None) -> Sequence[Refusal]:
    """Return the refusals with a slice that may still appear, one for each zone and API.

    An API has only one slice of a name in a zone, so the place of our slice `made` has no other.
    """
    places = {(one.zone, one.request.api): one for one in refusals if one.doubt}
    if made:
        places.pop((made.zone, made.api), None)
    return [*places.values()]


def removals(made: Slice, refusals: Sequence[Refusal]) -> tuple[Fix, ...]:
    """Return the commands that delete slices that may still appear beside ours, and not ours."""
    note = "it may still appear there, and bills then"
    left = doubtful(refusals, made)
    zones = [made.zone, *(one.zone for one in left)]
    return tuple(
        delete_in(one.request.api, made.name, one.zone, "--missing-ok", note=note)
        if zones.count(one.zone) > 1
        else Fix.command(
            "tpukit", "delete", made.name, "--missing-ok", "--zone", one.zone, note=note
        )
        for one in left
    )


def documents(refusals: Sequence[Refusal], made: Slice | None = None) -> dict[str, Any]:
    """Return refusals, and slices that may still appear beside ours, as keys of a document."""
    exists = list(dict.fromkeys(one.doubt for one in doubtful(refusals, made)))
    return {
        **({"refusals": [refusal.document() for refusal in refusals]} if refusals else {}),
        **({"exists": exists} if exists else {}),
    }

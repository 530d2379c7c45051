"""The smoke test of several slices: each is tested alone, and all give one result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpukit.errors import decisive
from tpukit.models import Slice
from tpukit.smoke.smoke_report import SmokeReport
from tpukit.ssh.fan_out import Outcome, fan_out

Tested = Outcome[Slice, SmokeReport]


def smoke_each(slices: Sequence[Slice], test: Callable[[Slice], SmokeReport]) -> list[SmokeReport]:
    """Test all slices at once and return their reports in order.

    If a slice fails, its error is raised. With several slices, the most important error is raised:
    it names its slice, has the other errors in `also` and the results of all slices in `details`.
    """
    outcomes = fan_out(slices, test)
    errors = {outcome.item.name: outcome.error for outcome in outcomes if outcome.error}
    if not errors:
        return [outcome.value for outcome in outcomes if outcome.value]
    first = decisive(errors.values()) or next(iter(errors.values()))
    if len(slices) > 1:
        for name, error in errors.items():
            error.what = f"{name}: {error.what}"
        first.also = tuple(error for error in errors.values() if error is not first)
        first.details = {"slices": [_document(outcome) for outcome in outcomes]}
    raise first


def _document(tested: Tested) -> dict[str, Any]:
    known = tested.error.details if tested.error else {}
    report = tested.value.document() if tested.value else known
    return {"name": tested.item.name, "zone": tested.item.zone, "smoke": report}

"""The smoke test of a multislice: each of its slices by itself, and one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tpukit.errors import decisive
from tpukit.models import Slice
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.smoke.smoke_report import SmokeReport

Tested = Outcome[Slice, SmokeReport]


def smoke_each(slices: Sequence[Slice], test: Callable[[Slice], SmokeReport]) -> list[SmokeReport]:
    """Return each slice's report, in order; all are tested at once.

    Where several slices are tested and any fails, raises its error, with its name, the others' that
    failed beside it, and what came of every slice in `details`; of one slice, its error as it is.
    """
    tested = fan_out(slices, test)
    errors = {each.item.name: each.error for each in tested if each.error}
    if not errors:
        return [each.value for each in tested if each.value]
    first = decisive(errors.values()) or next(iter(errors.values()))
    if len(slices) > 1:
        for name, error in errors.items():
            error.what = f"{name}: {error.what}"
        first.also = tuple(each for each in errors.values() if each is not first)
        first.details = {"slices": [_document(each) for each in tested]}
    raise first


def _document(tested: Tested) -> dict[str, Any]:
    known = tested.error.details if tested.error else {}
    found = tested.value.document() if tested.value else known
    return {"name": tested.item.name, "zone": tested.item.zone, "smoke": found}

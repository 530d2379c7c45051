"""Results as tables and documents, where no command of the tests comes to show them."""

from __future__ import annotations

from typing import Any

import pytest

from tpukit.cli import views
from tpukit.models import (
    FirewallRule,
    ProvisionReport,
    Slice,
    SliceList,
    SmokeReport,
    WorkerSmokeReport,
)
from tpukit.up import UpReport

NOTE = "v3-8 should have 1 worker, the slice has 2"
SMOKE = SmokeReport("jax", (WorkerSmokeReport(0), WorkerSmokeReport(1)), notes=(NOTE,))


def up_report() -> UpReport:
    found = Slice("demo", "project", "zone", "v3-8", "image", "READY")
    rule = FirewallRule("rule", "default", (), ())
    return UpReport(found, True, rule, True, ProvisionReport("jax", ()), SMOKE)


@pytest.mark.parametrize(("bills", "word"), [(True, "bills"), (False, "stays")])
def test_up_says_what_comes_next_and_whether_it_bills(bills: bool, word: str) -> None:
    ssh, delete = views.up(up_report(), bills).next
    assert (str(ssh), str(delete)) == ("tpukit ssh demo", "tpukit delete demo")
    assert delete.note == f"until then it {word}"


@pytest.mark.parametrize("view", [views.smoke(SMOKE), views.up(up_report(), True)])
def test_what_contradicts_the_table_of_types_is_warned_of(view: Any) -> None:
    assert view.warnings == (NOTE,)
    assert view.document["smoke"]["notes"] == [NOTE]
    assert len(view.rows) == 2


def test_a_location_that_did_not_answer_is_warned_of() -> None:
    view = views.slices(SliceList((), ("locations/x",)))
    assert view.warnings == ["locations/x did not answer: the list may be incomplete"]

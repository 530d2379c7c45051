"""The nouns: what they derive, and the documents that scripts read."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tpukit import models
from tpukit.models import (
    FirewallRule,
    ProvisionReport,
    Slice,
    SmokeReport,
    StepReport,
    Worker,
    WorkerProvisionReport,
    WorkerSmokeReport,
)


def a_slice(**given: object) -> Slice:
    values = {"state": "READY", **given}
    return Slice("demo", "p", "z", "v3-8", "image", **values)  # type: ignore[arg-type]


def test_every_value_is_frozen() -> None:
    classes = [each for each in vars(models).values() if dataclasses.is_dataclass(each)]
    assert len(classes) > 8
    assert all(each.__dataclass_params__.frozen for each in classes)


def test_a_worker_is_reached_at_its_external_address_where_it_has_one() -> None:
    assert Worker(0, "10.0.0.2", "203.0.113.7").address == "203.0.113.7"
    assert Worker(0, "10.0.0.2").address == "10.0.0.2"


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED", "HIDDEN", "HIDING"])
def test_a_lost_slice_is_not_ready(state: str) -> None:
    assert a_slice(state=state).lost
    assert not a_slice(state=state).ready


@pytest.mark.parametrize("state", ["CREATING", "READY", "STOPPED", "DELETING", "REPAIRING", "99"])
def test_a_slice_in_any_other_state_is_not_lost(state: str) -> None:
    assert not a_slice(state=state).lost


def test_the_document_of_a_slice_holds_no_metadata() -> None:
    document = a_slice(metadata={"startup-script": "secret"}, workers=(Worker(0, "a"),)).document()
    assert "secret" not in json.dumps(document)
    assert document["workers"] == [{"index": 0, "internal_address": "a", "external_address": ""}]


def test_the_document_of_a_rule_names_everything_it_opens() -> None:
    document = FirewallRule("r", "default", ("192.0.2.0/24",), ("t",)).document()
    assert document == {
        "name": "r",
        "network": "default",
        "source_ranges": ["192.0.2.0/24"],
        "target_tags": ["t"],
        "allowed": ["tcp:22"],
        "priority": 1000,
        "disabled": False,
    }


def test_a_provision_report_counts_changes_and_fails_with_any_worker() -> None:
    steps = (StepReport("a", "changed"), StepReport("b", "unchanged"))
    good = WorkerProvisionReport(0, steps)
    bad = WorkerProvisionReport(1, steps, error="apt failed")
    assert ProvisionReport("jax", (good, good)).changes == 2
    assert ProvisionReport("jax", (good,)).ok
    assert not ProvisionReport("jax", (good, bad)).ok
    assert [each["ok"] for each in ProvisionReport("jax", (good, bad)).document()["workers"]] == [
        True,
        False,
    ]


def test_a_smoke_report_without_workers_is_no_success() -> None:
    assert not SmokeReport("jax", ()).ok
    assert SmokeReport("jax", (WorkerSmokeReport(0),)).ok
    assert not SmokeReport("jax", (WorkerSmokeReport(0), WorkerSmokeReport(1, error="x"))).ok


def test_every_document_is_json() -> None:
    reports = (
        a_slice(),
        FirewallRule("r", "n", (), ()),
        ProvisionReport("jax", (WorkerProvisionReport(0, ()),)),
        SmokeReport("jax", (WorkerSmokeReport(0, matmul=1.5),)),
    )
    for report in reports:
        assert json.loads(json.dumps(report.document()))  # type: ignore[attr-defined]

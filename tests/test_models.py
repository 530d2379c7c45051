"""The nouns: what they derive, and the documents that scripts read."""

from __future__ import annotations

import dataclasses
import json

from tpukit import models
from tpukit.errors import TpukitError
from tpukit.models import FirewallRule, Slice, Worker
from tpukit.provision import provision_report
from tpukit.provision.provision_report import ProvisionReport, StepReport, WorkerProvisionReport
from tpukit.smoke import smoke_report
from tpukit.smoke.smoke_report import Measurement, SmokeReport, WorkerSmokeReport


def a_slice(**given: object) -> Slice:
    values = {"state": "READY", **given}
    return Slice("demo", "p", "z", "v3-8", "image", **values)  # type: ignore[arg-type]


def test_every_value_is_frozen() -> None:
    rooms = (models, provision_report, smoke_report)
    found = [var for room in rooms for var in vars(room).values()]
    classes = [each for each in found if dataclasses.is_dataclass(each)]
    assert len(classes) > 15
    assert all(class_.__dataclass_params__.frozen for class_ in classes)


def test_a_worker_is_reached_at_its_external_address_where_it_has_one() -> None:
    assert Worker(0, "10.0.0.2", "203.0.113.7").address == "203.0.113.7"
    assert Worker(0, "10.0.0.2").address == "10.0.0.2"


def test_a_lost_slice_is_not_ready() -> None:
    for state in ["PREEMPTED", "TERMINATED"]:
        assert a_slice(state=state).lost
        assert not a_slice(state=state).ready


def test_a_slice_in_any_other_state_is_not_lost() -> None:
    for state in [
        "CREATING",
        "READY",
        "STOPPED",
        "DELETING",
        "REPAIRING",
        "HIDING",
        "HIDDEN",
        "99",
    ]:
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
        "denied": [],
        "target_service_accounts": [],
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
    assert [
        worker["ok"] for worker in ProvisionReport("jax", (good, bad)).document()["workers"]
    ] == [
        True,
        False,
    ]


def test_a_smoke_report_without_workers_is_no_success() -> None:
    assert not SmokeReport("jax", ()).ok
    assert SmokeReport("jax", (WorkerSmokeReport(0),)).ok
    assert not SmokeReport("jax", (WorkerSmokeReport(0), WorkerSmokeReport(1, error="x"))).ok


def test_every_document_has_these_keys_and_no_others() -> None:
    """Scripts read them; what is left out is a secret, or of no use to a script."""
    cause = TpukitError("x")
    step, rule = StepReport("a", "changed", seconds=1.23456), FirewallRule("r", "n", (), ())
    provisioned = WorkerProvisionReport(0, (step,), error="x", cause=cause)
    tested = WorkerSmokeReport(0, seconds=1.23456, error="x", cause=cause)
    keys = [
        (
            a_slice(),
            "name project zone accelerator_type topology runtime_version state id health "
            "health_description provisioning reservation network subnetwork workers labels tags "
            "created queued_resource service_account external_addresses data_disks api unreadable",
        ),
        (
            rule,
            "name network source_ranges target_tags allowed denied target_service_accounts "
            "priority disabled",
        ),
        (step, "name outcome detail seconds"),
        (provisioned, "worker slice ok changes python emulated steps error log_tail log_path"),
        (ProvisionReport("jax", (provisioned,)), "recipe ok changes workers"),
        (
            tested,
            "worker ok framework version platform device_kind devices devices_expected "
            "global_devices global_devices_expected processes matmul matmul_expected global_sum "
            "global_sum_expected seconds emulated error log_tail chip",
        ),
        (
            Measurement("link", 0, 1, 86.8, "GB/s"),
            "what worker device value unit peak share verdict note to_worker to_device size",
        ),
        (SmokeReport("jax", (tested,)), "framework ok stand_in notes workers level measurements"),
    ]
    for value, expected in keys:
        document = value.document()  # type: ignore[attr-defined]
        assert set(document) == set(expected.split()), type(value)
        assert json.loads(json.dumps(document)) == document
    assert step.document()["seconds"] == tested.document()["seconds"] == 1.235


def test_every_document_is_json() -> None:
    reports = (
        a_slice(),
        FirewallRule("r", "n", (), ()),
        ProvisionReport("jax", (WorkerProvisionReport(0, ()),)),
        SmokeReport("jax", (WorkerSmokeReport(0, global_sum=1.5),)),
    )
    for report in reports:
        assert json.loads(json.dumps(report.document()))  # type: ignore[attr-defined]

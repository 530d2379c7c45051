"""Results as tables and documents, where no command of the tests comes to show them."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest

from tpukit.access.rule_opening import Opening
from tpukit.cli.views import job_views, provision_views, slice_views, smoke_views, up_views
from tpukit.console import Console
from tpukit.jobs.end import EndReport, Holder
from tpukit.jobs.guard import GuardReport
from tpukit.jobs.job_list import JobState
from tpukit.models import FirewallRule, Slice, SliceList, Worker
from tpukit.provision.provision_report import ProvisionReport, StepReport, WorkerProvisionReport
from tpukit.slices import lifetime
from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport
from tpukit.ssh.fan_out import Outcome
from tpukit.ssh.worker import RemoteWorker
from tpukit.up import UpReport

NOTE = "v3-8 should have 1 worker, the slice has 2"
SMOKE = SmokeReport("jax", (WorkerSmokeReport(0), WorkerSmokeReport(1)), notes=(NOTE,))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def up_report(*others: FirewallRule) -> UpReport:
    found = Slice("demo", "project", "zone", "v3-8", "image", "READY")
    opening = Opening(FirewallRule("rule", "default", (), ()), True, rules=others)
    return UpReport(found, True, opening, None, ProvisionReport("jax", ()), SMOKE)


@pytest.mark.parametrize(("bills", "word"), [(True, "bills"), (False, "stays")])
def test_up_says_what_comes_next_and_whether_it_bills(bills: bool, word: str) -> None:
    ssh, train, delete = up_views.up(up_report(), bills).next
    assert (str(ssh), str(delete)) == ("tpukit ssh demo --with jax", "tpukit delete demo")
    assert str(train) == "tpukit train demo -- python train.py"
    assert delete.note == f"until then it {word}"


def test_up_says_which_command_claims_a_slice_that_waits_for_it() -> None:
    report = up_report()
    labels = {lifetime.CLAIM: "2026-11-22t19-35-00z"}
    claim, *_ = up_views.up(replace(report, slice=replace(report.slice, labels=labels)), True).next
    assert str(claim) == "tpukit extend demo --zone zone"
    assert claim.note.endswith("else it is deleted at 19:35:00 UTC")


def test_a_list_shows_on_a_terminal_that_a_slice_waits_for_its_claim() -> None:
    labels = {lifetime.CLAIM: "2026-11-22t19-35-00z", lifetime.EXPIRES: "2026-11-22t19-40-00z"}
    found = replace(up_report().slice, labels=labels)
    now = lifetime.utc_seconds("2026-11-22T19:05:00")
    (row,) = slice_views.slices(SliceList((found,)), now, {}).rows
    assert "30 min to claim" in [getattr(cell, "shown", cell) for cell in row]


def test_up_says_aloud_who_else_can_come_in_and_what_closes_that() -> None:
    everybody = FirewallRule("default-allow-ssh", "default", ("0.0.0.0/0",), ())
    elsewhere = FirewallRule("web", "default", ("0.0.0.0/0",), ("web",))
    shown = up_views.up(up_report(everybody, elsewhere), True)
    (warning,) = [line for line in shown.warnings if "world" in line]
    assert "default-allow-ssh" in warning
    close = "gcloud compute firewall-rules update default-allow-ssh --disabled --project project"
    assert str(shown.next[-1]) == close
    assert shown.document["firewall"]["open_to_world"] == ["default-allow-ssh"]


def test_without_a_rule_of_its_own_up_has_nothing_to_say_of_any() -> None:
    report = replace(up_report(), opening=None)
    assert report.document()["firewall"] is None
    assert report.changes == 1


@pytest.mark.parametrize("view", [smoke_views.smoke(SMOKE), up_views.up(up_report(), True)])
def test_what_contradicts_the_table_of_types_is_warned_of(view: Any) -> None:
    assert view.warnings == (NOTE,)
    assert view.document["smoke"]["notes"] == [NOTE]
    assert len(view.rows) == 2


def test_a_location_that_did_not_answer_is_warned_of() -> None:
    view = slice_views.slices(SliceList((), ("locations/x",)), 0.0, {})
    assert view.warnings == ["locations/x did not answer: the list may be incomplete"]


def made(name: str, created: str = "", state: str = "READY", **labels: str) -> Slice:
    return Slice(name, "p", "z", "v3-8", "image", state, created=created, labels=labels)


def test_a_list_says_for_people_how_long_ago_a_slice_was_made() -> None:
    noon = 1_763_812_800.0  # 2025-11-22T12:00:00Z
    ages = {
        "2025-11-22T11:59:30.5Z": "just now",
        "2025-11-22T11:55:00Z": "5 min ago",
        "2025-11-22T07:00:00Z": "5 h ago",
        "2025-11-19T11:00:00Z": "3 d ago",
        "": "",
    }
    view = slice_views.slices(SliceList(tuple(made("a", created) for created in ages)), noon, {})
    assert [row[8].shown for row in view.rows] == list(ages.values())
    assert [str(row[8]) for row in view.rows] == [created[:19] for created in ages]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_ten_slices_take_ten_lines_of_a_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    noon = 1_763_812_800.0
    ends = {lifetime.EXPIRES: "2025-11-22t20-00-00z", "tpukit-owner": "ada"}
    slices = [
        replace(
            made(f"experiment-{number:02}", "2025-11-22T07:00:00Z", **ends),
            zone="europe-west4-a",
            accelerator_type="v5litepod-16",
            health="HEALTHY",
            workers=tuple(Worker(index, f"10.0.0.{index}", "") for index in range(4)),
            provisioning="spot",
        )
        for number in range(10)
    ]
    out = Terminal()
    shown = Console(out, io.StringIO())
    shown.emit(slice_views.slices(SliceList(tuple(slices)), noon, {"v5e": 1.2}))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert len(lines) == 12, "a head, a rule and ten slices"
    for slice_, line in zip(slices, lines[2:], strict=True):
        assert line.split()[:4] == [slice_.name, slice_.zone, "v5litepod-16", "READY"]
        assert "8 h left" in line


def test_labels_are_in_one_order_whatever_the_api_s() -> None:
    documents = [
        made("a", **labels).document() for labels in ({"b": "1", "a": "2"}, {"a": "2", "b": "1"})
    ]
    assert list(documents[0]["labels"]) == list(documents[1]["labels"]) == ["a", "b"]


def test_provisioning_shows_what_changed_and_who_had_it_all() -> None:
    same = [StepReport(name, "unchanged", "", 1.0) for name in ("uv", "packages")]
    changed = [same[0], StepReport("packages", "changed", "jax", 2.0)]
    workers = (
        WorkerProvisionReport(0, tuple(same), "python"),
        WorkerProvisionReport(1, tuple(changed), "python"),
    )
    view = provision_views.provision(ProvisionReport("jax", workers))
    assert [[str(cell) for cell in row] for row in view.rows] == [
        ["0", "", "unchanged", "2.0 s", "python"],
        ["1", "packages", "changed", "2.0 s", "jax"],
    ]
    assert len(view.document["provision"]["workers"][0]["steps"]) == 2


RUNTIME = Holder(5380, "", "/grpc_tpu_worker/main", "tpu-runtime")
SOMEBODY = Holder(17, "", "python train.py", "ada")


def test_an_end_that_is_not_certain_is_not_told_as_one() -> None:
    worker = RemoteWorker(0, lambda: None, "demo")
    shown = job_views.ended("demo", [Outcome(worker, EndReport(ended=1, certain=False))])
    assert shown.warnings == [
        "some processes on demo worker 0 may still run: the run had no control group"
    ]


def test_a_log_with_gaps_is_told_by_the_list_of_runs() -> None:
    worker = RemoteWorker(0, lambda: None, "demo")
    state = JobState("train", "running", dropped=5)
    shown = job_views.jobs([Outcome(worker, [state])], "", 0.0)
    assert shown.document["jobs"][0]["dropped"] == 5
    assert shown.warnings == [
        "demo worker 0: 5 bytes of the output of run train were dropped: its disk was full"
    ]


@pytest.mark.parametrize(
    ("spared", "expected"),
    [
        ((), []),
        ((SOMEBODY,), ["tpukit kill demo --all-holders"]),
        ((RUNTIME,), ["tpukit run demo --worker all -- sudo systemctl stop tpu-runtime"]),
        (
            (SOMEBODY, RUNTIME),
            [
                "tpukit kill demo --all-holders",
                "tpukit run demo --worker all -- sudo systemctl stop tpu-runtime",
            ],
        ),
    ],
)
def test_what_frees_a_device_depends_on_who_holds_it(
    spared: tuple[Holder, ...], expected: list[str]
) -> None:
    worker = RemoteWorker(0, lambda: None, "demo")
    shown = job_views.ended("demo", [Outcome(worker, EndReport(spared=spared))])
    assert [str(each) for each in shown.next] == expected
    assert len(shown.warnings) == len(spared)


def test_a_guard_that_nobody_could_ask_is_not_blamed_on_an_account() -> None:
    assert GuardReport("", None, why="no answer").summary == "none: no answer"
    refused = GuardReport("a@b.example", False, why="no role")
    assert refused.summary == "none: a@b.example cannot end it: no role"

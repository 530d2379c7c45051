"""The screens at four widths, as files to look at: tests/screens.

After a change that is meant, write them anew with `python tests/test_screens.py`, and look at the
difference.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tpukit.cli.verbs.doctor import shown
from tpukit.cli.views import job_views, queue_views, slice_views, smoke_views
from tpukit.console import Console, View
from tpukit.doctor.findings import Finding
from tpukit.errors import Fix, NoCapacity
from tpukit.jobs.job_list import JobState
from tpukit.models import QueuedResource, QueuedResourceList, Slice, SliceList, Worker
from tpukit.slices import lifetime
from tpukit.smoke.smoke_report import SmokeReport, WorkerSmokeReport
from tpukit.ssh.fan_out import Outcome
from tpukit.ssh.worker import RemoteWorker

WIDTHS = (40, 60, 80, 120)
FOLDER = Path(__file__).parent / "screens"
#: 2025-11-22T12:00:00Z
NOON = 1_763_812_800.0
#: The colours that every terminal shows on a light and on a dark ground: bold, red, green, yellow.
PAINTS = {"0", "1", "31", "32", "33"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slice_(name: str, zone: str, kind: str, **given: object) -> Slice:
    labels = {"tpukit-owner": "ada"}
    known = Slice(name, "my-lab", zone, kind, "tpu-ubuntu2204-base", "READY", labels=labels)
    usual = {"health": "HEALTHY", "created": "2025-11-22T07:00:00Z", "workers": (worker(0),)}
    return replace(known, **{**usual, **given})  # type: ignore[arg-type]


def worker(index: int) -> Worker:
    return Worker(index, f"10.128.0.{index}", f"34.141.0.{index}")


def views() -> Mapping[str, View]:
    """Return a view for each screen."""
    ends = {lifetime.EXPIRES: "2025-11-22t20-00-00z", "tpukit-owner": "ada"}
    pod = slice_("night-run", "europe-west4-a", "v5litepod-16", labels=ends, provisioning="spot")
    pod = replace(pod, workers=tuple(map(worker, range(4))))
    slices = (
        slice_("demo", "us-central1-a", "v3-8"),
        slice_("eval-1", "us-central2-b", "v4-8", state="STOPPED", health=""),
        slice_("lost-one", "us-east1-d", "v6e-8", state="PREEMPTED", health=""),
        pod,
    )
    remote = [
        RemoteWorker(index, lambda: pytest.fail("connects"), slice="night-run")
        for index in range(2)
    ]
    runs = [
        JobState("20251122-110000-1a2b", "running", None, "python train.py", started=NOON - 3600),
        JobState("sweep", "finished", 1, "python sweep.py --rates 0.1,0.01", started=NOON - 7200),
    ]
    request = QueuedResource(
        "wait-for-v4", "my-lab", "us-central2-b", "WAITING_FOR_RESOURCES", accelerator_type="v4-32"
    )
    findings = [
        Finding("account", "ok", "ada@example.com"),
        Finding("firewall", "warning", "rule default-allow-ssh lets the whole world reach port 22"),
        Finding("worker 0, disk", "failure", "98% of 97 GiB in use", Fix(note="delete old runs")),
    ]
    tested = [
        WorkerSmokeReport(
            0,
            "jax",
            "0.10.2",
            "tpu",
            devices=4,
            devices_expected=4,
            global_devices=8,
            global_devices_expected=8,
        ),
        WorkerSmokeReport(1, error="The TPU is already in use by process with pid 4711."),
    ]
    return {
        "list": slice_views.slices(SliceList(slices), NOON, {"v5e": 1.2}),
        "describe night-run": slice_views.described(pod, NOON, {"v5e": 1.2}),
        "jobs": job_views.jobs([Outcome(one, runs) for one in remote], "", NOON),
        "queue list": queue_views.requests(QueuedResourceList((request,)), NOON),
        "smoke": smoke_views.smoke(SmokeReport("jax", tuple(tested))),
        "doctor": shown(findings, lambda fix: fix),
    }


def screens(width: int) -> tuple[str, set[str]]:
    """Return the text of all screens at a width, and the codes of their paints."""
    terminal = Terminal()
    environ = {"TERM": "xterm", "COLUMNS": str(width)}
    for name, view in views().items():
        terminal.write(f"$ tpukit {name}\n")
        Console(terminal, terminal, environ=environ).emit(view)
        terminal.write("\n")
    failure = NoCapacity(
        "cannot create slice demo: there is no more capacity in zone us-central1-a",
        why="Google has no free slice of this type in this zone now. It is not your quota.",
        exists=("firewall rule tpukit-demo-1a2b3c, which costs nothing",),
        fix=Fix.command("tpukit", "create", "v3-8", "demo", "--keep-trying"),
    )
    terminal.write("$ tpukit create v3-8 demo\n")
    Console(terminal, terminal, environ=environ).fail(failure)
    text = terminal.getvalue()
    paints = {code for codes in re.findall(r"\x1b\[([0-9;]*)m", text) for code in codes.split(";")}
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines), paints


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screens_are_those_that_were_looked_at(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    text, paints = screens(width)
    assert text == (FOLDER / f"{width}.txt").read_text(encoding="utf-8")
    assert paints <= PAINTS


@pytest.mark.parametrize("width", WIDTHS)
def test_no_row_of_a_table_is_wider_than_the_terminal(width: int) -> None:
    """Narration is left to the terminal: a command on two lines could not be pasted."""
    text = (FOLDER / f"{width}.txt").read_text(encoding="utf-8")
    narration = ("next: ", "note: ", "warning: ", "error: ", "why: ", "exists: ", "fix: ", "$ ")
    rows = [line for line in text.splitlines() if not line.startswith(narration)]
    assert max(map(len, rows)) <= width


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for width in WIDTHS:
        os.environ.update(COLUMNS=str(width), TERM="xterm")
        (FOLDER / f"{width}.txt").write_text(screens(width)[0], encoding="utf-8")
    sys.exit()

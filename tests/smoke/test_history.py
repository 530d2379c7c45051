"""Smoke tests are kept on this machine, compared on the same slice alone, and drawn."""

from __future__ import annotations

import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from support.clocks import HandClock

from tpukit.errors import BadInput
from tpukit.models import Slice
from tpukit.smoke.history import History, changes
from tpukit.smoke.plot import check_plot, plot
from tpukit.smoke.smoke_report import Measurement, SmokeReport, WorkerSmokeReport

SLICE = Slice("demo", "p", "us-east5-b", "v6e-8", "v2", "READY", created="2030-01-01T00:00:00Z")


def report(matmul: float, link: float = 86.0, size: int = 64 << 20) -> SmokeReport:
    figures = (
        Measurement("matmul", 0, 0, matmul, "TFLOP/s", peak=918.0),
        Measurement("matmul", 0, 1, 800.0, "TFLOP/s", peak=918.0),
        Measurement("all-reduce", None, None, 150.0, "GB/s", size=size),
        Measurement("link", 0, 0, link, "GB/s", to_worker=0, to_device=1),
        Measurement("link-health", 0, None, 0.0 if matmul == 700 else 5.0, "of 10"),
    )
    return SmokeReport("jax", (WorkerSmokeReport(0),), level=2, measurements=figures)


def kept(folder: Path, *reports: SmokeReport) -> History:
    found = History(folder / "demo.json", HandClock())
    for each in reports:
        found.record(SLICE, each)
    return found


def test_a_slower_figure_is_named_beside_its_own_median(tmp_path: Path) -> None:
    history = kept(tmp_path, report(800), report(810), report(805), report(700, link=84))
    (slower,) = changes(history.runs())
    assert (slower.what, slower.place, slower.before) == ("matmul", "worker 0 device 0", 805)
    assert round(slower.share, 2) == 0.87
    newest = history.runs()[-1]
    assert [newest.summary(what) for what in ("matmul", "link", "hbm")] == [750, 84, None]


def test_a_figure_is_compared_with_those_of_its_own_place_and_size(tmp_path: Path) -> None:
    """Device 1 was always slower than device 0, and small messages than large ones."""
    history = kept(tmp_path, report(1600), report(1600))
    assert changes(history.runs()) == ()
    small = report(1600)
    sum_of_small = replace(small.measurements[2], value=50.0, size=1 << 20)
    figures = (*small.measurements[:2], sum_of_small, *small.measurements[3:])
    history.record(SLICE, replace(small, measurements=figures))
    assert changes(history.runs()) == ()


def test_cpu_devices_have_no_past(tmp_path: Path) -> None:
    stood_in = replace(report(700), stand_in="8 CPU devices")
    assert changes(kept(tmp_path, report(800), stood_in).runs()) == ()


def test_another_slice_of_the_same_name_is_not_compared_with(tmp_path: Path) -> None:
    history = kept(tmp_path, report(800))
    history.record(replace(SLICE, created="2031-01-01T00:00:00Z"), report(400))
    assert changes(history.runs()) == ()
    history.record(replace(SLICE, zone="us-east5-a"), report(300))
    assert [len(history.runs(zone)) for zone in ("", "us-east5-a", "nowhere")] == [3, 1, 0]


def test_what_cannot_be_read_or_written_is_no_history_and_no_error(tmp_path: Path) -> None:
    history = kept(tmp_path, report(800))
    history.path.write_text('{"runs": [{"time": "yesterday"}, 7, null]}')
    assert history.runs() == ()
    history.path.write_text("[")
    history.record(SLICE, report(800))
    assert len(history.runs()) == 1
    folder = tmp_path / "file"
    folder.write_text("")
    History(folder / "demo.json", HandClock()).record(SLICE, report(800))


def test_only_so_many_runs_are_kept(tmp_path: Path) -> None:
    history = kept(tmp_path, *[report(number + 1) for number in range(55)])
    assert [run.figures[0].value for run in history.runs()][::49] == [6, 55]


@pytest.mark.process
def test_a_picture_has_every_kind_of_figure_and_its_file_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"ends in .svg or .png"):
        check_plot(tmp_path / "demo.pdf")
    with pytest.raises(BadInput, match="there is no folder"):
        check_plot(tmp_path / "nowhere/demo.svg")
    runs = kept(tmp_path, report(800), report(700)).runs()
    picture = tmp_path / "demo.svg"
    plot(runs, picture, "demo, v6e-8")
    drawn = xml.etree.ElementTree.parse(picture).getroot()
    assert drawn.tag.endswith("svg")
    text = picture.read_text()
    assert all(f"<!-- {word} -->" in text for word in ("demo, v6e-8", "worker 0 device 1"))
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(BadInput, match="cannot write"):
        plot(runs, tmp_path / "taken.svg", "demo")

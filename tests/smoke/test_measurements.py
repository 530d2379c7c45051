"""Figures are judged beside the lowest published peak and beside their neighbours, and named."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tpukit.accelerators import GENERATIONS, AcceleratorType, types_of
from tpukit.smoke.measurements import (
    TOO_FAST,
    Bench,
    Soak,
    WorkerFigures,
    measurements,
    thresholds,
)
from tpukit.smoke.smoke_report import Measurement
from tpukit.ssh.programs import program_text

V6E_8 = AcceleratorType.parse("v6e-8")
#: What healthy v6e chips reach: thresholds.toml.
HEALTHY = {"matmul": 805.0, "hbm": 1400.0, "host-to-device": 12.0, "device-to-host": 9.0}
LINKS = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (2, 4), (4, 6)]


def part(
    *,
    devices: dict[str, Sequence[Sequence[float]]] | None = None,
    link: float = 86.8,
    slow_links: dict[tuple[int, int], float] | None = None,
    wrong_link: tuple[int, int] | None = None,
    all_reduce: float = 150.0,
    wrong: Sequence[tuple[str, int]] = (),
    seed: int = 0,
    worker: int = 0,
    count: int = 8,
    soak: Soak | None = None,
) -> WorkerFigures:
    """One worker's healthy figures, with noise of a percent, but for what is given."""
    noise = random.Random(seed)

    def passes(figure: float) -> list[list[float]]:
        return [[figure * noise.uniform(0.99, 1.0) for _ in range(2)] for _ in range(count)]

    figures = {what: passes(figure) for what, figure in HEALTHY.items()}
    speeds = dict.fromkeys(LINKS, link) | (slow_links or {})
    found = {
        "devices": {**figures, **(devices or {})},
        "right": {what: [(what, n) not in wrong for n in range(count)] for what in figures},
        "all_reduce": [[64 << 20, all_reduce, ("all-reduce", 0) not in wrong]],
        "links": [[*pair, speed, pair != wrong_link] for pair, speed in speeds.items()],
    }
    bench = Bench.model_validate_json(json.dumps(found))
    return WorkerFigures(worker, range(worker * count, (worker + 1) * count), bench, soak)


def judged(
    *parts: WorkerFigures, accelerator: AcceleratorType = V6E_8, stand_in: bool = False
) -> list[str]:
    """The figures with a verdict: `fail matmul worker 0 device 3`."""
    found = measurements(parts, accelerator, stand_in)
    return [
        f"{measurement.verdict} {measurement.what} {measurement.place}"
        for measurement in found
        if measurement.verdict
    ]


def passes_with(slow: dict[int, float], figure: float = 805.0) -> list[list[float]]:
    return [[figure * slow.get(device, 1.0) * n for n in (0.995, 0.99)] for device in range(8)]


def test_a_healthy_slice_passes_whatever_the_noise() -> None:
    for seed in range(20):
        assert judged(part(seed=seed)) == [], seed


def test_every_figure_that_is_low_is_named() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"devices": {"matmul": passes_with({3: 0.8})}}, ["fail matmul worker 0 device 3"]),
        ({"devices": {"matmul": passes_with({3: 0.93})}}, ["warn matmul worker 0 device 3"]),
        ({"devices": {"hbm": passes_with({0: 0.8}, 1400)}}, ["fail hbm worker 0 device 0"]),
        (
            {"devices": {"matmul": passes_with({1: 0.8, 6: 0.85})}},
            ["fail matmul worker 0 device 1", "fail matmul worker 0 device 6"],
        ),
        # All alike: beside the peak alone. What HBM reaches on a v6e nobody has published.
        (
            {"devices": {"matmul": passes_with({}, 500)}},
            [f"fail matmul worker 0 device {device}" for device in range(8)],
        ),
        (
            {"devices": {"hbm": passes_with({}, 900)}},
            [f"warn hbm worker 0 device {device}" for device in range(8)],
        ),
        ({"slow_links": {(2, 4): 60.0}}, ["fail link worker 0 device 2 - worker 0 device 4"]),
        ({"slow_links": {(2, 4): 75.0}}, ["warn link worker 0 device 2 - worker 0 device 4"]),
        ({"wrong_link": (0, 1)}, ["fail link worker 0 device 0 - worker 0 device 1"]),
        ({"all_reduce": 80.0}, ["warn all-reduce all devices"]),
        # Below the floor, and above the chip's peak.
        ({"all_reduce": 50.0}, ["fail all-reduce all devices"]),
        ({"all_reduce": 1120.0}, ["fail all-reduce all devices"]),
        (
            {"devices": {"hbm": passes_with({}, 460)}},
            [f"fail hbm worker 0 device {device}" for device in range(8)],
        ),
        (
            {"devices": {"matmul": passes_with({5: 6.0})}},
            ["fail matmul worker 0 device 5"],
        ),
        (
            {"devices": {"hbm": passes_with({}, 100_000)}},
            [f"fail hbm worker 0 device {device}" for device in range(8)],
        ),
        ({"slow_links": {(2, 4): 101.0}}, ["fail link worker 0 device 2 - worker 0 device 4"]),
        # Fast, of values that are wrong.
        ({"wrong": [("matmul", 4)]}, ["fail matmul worker 0 device 4"]),
        ({"wrong": [("host-to-device", 0)]}, ["fail host-to-device worker 0 device 0"]),
        ({"wrong": [("all-reduce", 0)]}, ["fail all-reduce all devices"]),
    ]
    for given, said in cases:
        assert judged(part(**given)) == said, given


def test_a_device_that_is_slow_once_is_not_named() -> None:
    figures = passes_with({})
    figures[3][0] *= 0.8
    assert judged(part(devices={"matmul": figures})) == []


def test_devices_that_are_not_steady_are_not_compared() -> None:
    """As CPU devices are, which share processors: no figure says then what a device can do."""
    noise = random.Random(7)
    for _ in range(200):
        figures = [[noise.uniform(60, 160) for _ in range(2)] for _ in range(8)]
        assert judged(part(devices={"matmul": figures, "hbm": figures}), stand_in=True) == []


def test_a_stand_in_has_no_peak_and_its_slow_device_is_named() -> None:
    slow = part(devices={"matmul": passes_with({2: 0.83}, 0.1)})
    found = measurements([slow], V6E_8, stand_in=True)
    assert {(each.peak, each.share) for each in found} == {(None, None)}
    assert judged(slow, stand_in=True) == ["fail matmul worker 0 device 2"]


def test_figures_of_two_workers_are_one_slice_s() -> None:
    """A link has an end on each, and both saw it: the slower sight counts."""
    sixteen, ends = AcceleratorType.parse("v6e-16"), {(7, 8): 40.0}
    first, second = part(slow_links=ends), part(slow_links={(7, 8): 80.0}, worker=1, seed=1)
    assert judged(first, second, accelerator=sixteen) == [
        "fail link worker 0 device 7 - worker 1 device 0"
    ]
    shown = [
        measurement
        for measurement in measurements([first, second], sixteen, False)
        if measurement.what == "link"
    ]
    assert len(shown) == len(LINKS) + 1


def test_the_denominator_is_the_lowest_published_peak_of_a_device() -> None:
    cases = {
        "v3-8": (123 / 2, 825 / 2, 100, 200),
        "v5p-8": (459, 2460, 90, 180),
        "v6e-8": (918, 1600, 90, 180),
        "v5litepod-1": (197, 819, 45, None),
        "v2-8": (46 / 2, 716 / 2, None, None),
    }
    for name, wanted in cases.items():
        found = {}
        for measurement in measurements([part()], AcceleratorType.parse(name), False):
            found[measurement.what] = measurement.peak
        got = tuple(found[what] for what in ("matmul", "hbm", "link", "all-reduce"))
        assert got == wanted, name


def test_where_nothing_is_published_a_figure_is_warned_of_and_fails_below_the_floor_alone() -> None:
    for name in GENERATIONS:
        accelerator = types_of(name)[-1]
        peaks = {e.what: e.peak for e in measurements([part()], accelerator, False) if e.peak}
        for share, all_fail in ((0.31, False), (0.29, True)):
            low = {what: peak * share for what, peak in peaks.items()}
            slow = {what: passes_with({}, low.get(what, 1.0)) for what in HEALTHY}
            found = judged(
                part(devices=slow, link=low.get("link", 1), all_reduce=low.get("all-reduce", 1)),
                accelerator=accelerator,
            )
            failing = {text.split()[1] for text in found if text.startswith("fail")}
            published = {what for what, each in thresholds().items() if name in each.published}
            assert failing == (set(peaks) if all_fail else published), (name, share)


def test_impossible_and_hopeless_figures_fail() -> None:
    """5,000 TFLOP/s and 100 TB/s on a v6e-4, 46 of 459 TFLOP/s on a v5p-8."""
    for name, what, figure, note in (
        ("v6e-4", "matmul", 5000.0, TOO_FAST),
        ("v6e-4", "hbm", 100_000.0, TOO_FAST),
        ("v5p-8", "matmul", 46.0, ""),
    ):
        devices = [[figure, figure]] * 4
        shown = measurements(
            [part(devices={what: devices}, count=4)], AcceleratorType.parse(name), False
        )
        found = [
            (measurement.verdict, measurement.note)
            for measurement in shown
            if measurement.what == what
        ]
        assert found == [("fail", note)] * 4, name


def test_a_chip_as_fast_as_its_highest_published_peak_passes() -> None:
    """v5p has 2,460 GB/s in one source and 2,765 in two others."""
    shown = measurements(
        [part(devices={"hbm": passes_with({}, 2765.0)})], AcceleratorType.parse("v5p-8"), False
    )
    assert {measurement.verdict for measurement in shown if measurement.what == "hbm"} == {""}


@pytest.mark.parametrize("seed", range(20))
def test_a_chip_at_88_percent_of_its_peak_passes(seed: int) -> None:
    """On every generation, with noise of two percent between devices and passes."""
    noise = random.Random(seed)
    for name in GENERATIONS:
        accelerator = types_of(name)[-1]
        peaks = {e.what: e.peak for e in measurements([part()], accelerator, False) if e.peak}

        def near(what: str, peaks: dict[str, float] = peaks) -> float:
            return peaks.get(what, 10.0) * 0.88 * noise.uniform(0.99, 1.01)

        healthy = part(
            devices={what: [[near(what), near(what)] for _ in range(8)] for what in HEALTHY},
            slow_links={pair: near("link") for pair in LINKS},
            all_reduce=near("all-reduce"),
        )
        assert judged(healthy, accelerator=accelerator) == [], name


def test_every_threshold_has_a_source_and_an_order() -> None:
    for name, each in thresholds().items():
        assert each.sources, name
        assert 0 <= each.floor < each.fail < each.warn < 1 < each.most, name
        assert set(each.published) <= set(GENERATIONS), name


@pytest.mark.parametrize("sides", [(2, 2, 1), (2, 4, 1), (4, 4, 4), (1, 1, 1)])
def test_every_link_between_chips_is_measured_once_and_no_two_at_once_share_a_device(
    sides: tuple[int, int, int],
) -> None:
    program: dict[str, Any] = {}
    exec(program_text("smoke/jax_bench_program.py"), program)
    places = list(itertools.product(*map(range, sides)))
    cores = [SimpleNamespace(coords=place) for place in places for _ in range(2)]
    groups = program["_matchings"](cores)
    for group in groups:
        ends = [end for pair in group for end in pair]
        assert len(ends) == len({*ends})
    pairs = [(cores[one].coords, cores[other].coords) for group in groups for one, other in group]
    near = [
        (a, b)
        for a, b in itertools.product(places, places)
        if a < b and sum(abs(x - y) for x, y in zip(a, b, strict=True)) == 1
    ]
    assert sorted(pairs) == sorted(near)
    assert len(groups) <= 6, "so many programs are compiled, however large the slice"


def test_a_device_whose_memory_is_not_known_is_no_broken_device() -> None:
    program: dict[str, Any] = {}
    exec(program_text("smoke/jax_program.py"), program)

    def refuse() -> None:
        raise RuntimeError("UNIMPLEMENTED: memory stats")

    for stats in (refuse, lambda: None):
        assert program["memory_stats"](SimpleNamespace(memory_stats=stats)) == {}
    known = SimpleNamespace(memory_stats=lambda: {"bytes_limit": 2**34})
    assert program["memory_stats"](known) == {"bytes_limit": 2**34}


def soaked(rates: Sequence[float], **more: Any) -> Measurement:
    """The worst window of device 0 of two; the other one is steady."""
    found = {"wrong": (0, 0), "flipped": (0, 0), "metrics": {}, **more}
    windows = tuple((rate, 800.0) for rate in rates)
    soak = Soak(window_seconds=10.0, rates=windows, **found)
    return measurements([part(soak=soak)], V6E_8, False)[-2]


def test_a_link_that_libtpu_calls_bad_is_named_with_its_worker() -> None:
    """Its worst score of all windows counts; what is no score is none."""
    cases: list[tuple[tuple[str, ...], list[tuple[float, str, str]]]] = [
        ((), []),
        (("a score of another form",), []),
        (("tray1.chip0.ici0.int: 0", "tray1.chip0.ici1.int: 0"), [(0, "", "")]),
        (("t.ici0: 0", "t.ici1: 1", "t.ici1: 0"), [(1, "warn", "t.ici1: 1")]),
        (("t.ici0: 3", "t.ici1: 5", "t.ici0: 0"), [(5, "warn", "t.ici1: 5, t.ici0: 3")]),
        (("t.ici0: 0", "t.ici1: 6"), [(6, "fail", "t.ici1: 6")]),
        (("t.ici0: 10", "t.ici0: 0"), [(10, "fail", "t.ici0: 10")]),
    ]
    for lines, expected in cases:
        load = Soak(
            window_seconds=10.0, rates=((800.0,),), wrong=(0,), flipped=(0,),
            metrics={"ici_link_health": lines, "tpu_throttle_score": ("t.ici0: 9",)},
        )  # fmt: skip
        found = [
            measurement
            for measurement in measurements([part(soak=load, worker=3)], V6E_8, False)
            if measurement.what == "link-health"
        ]
        assert [
            (measurement.value, measurement.verdict, measurement.note) for measurement in found
        ] == expected
        assert {each.place for each in found} <= {"worker 3"}


def test_the_worst_window_of_a_load_is_judged_by_the_first_minute() -> None:
    steady = [800.0] * 6
    cases: list[tuple[Measurement, str, str]] = [
        (soaked([*steady, 799, 801]), "", "window 7 of 8"),
        (soaked([*steady, 770, 801]), "warn", "window 7 of 8"),
        (soaked([*steady, 801, 750, 801]), "fail", "window 8 of 9"),
        (soaked(steady, wrong=(1, 0)), "fail", "1 windows with wrong bits; window 1 of 6"),
        (soaked(steady, flipped=(2, 0)), "fail", "2 words of memory that changed"),
    ]
    for measurement, verdict, note in cases:
        assert (measurement.worker, measurement.device, measurement.verdict) == (0, 0, verdict), (
            note
        )
        assert measurement.note.startswith(note)

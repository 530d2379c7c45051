"""`tpukit top`: the load of every worker and its chips."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.output import place
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import ended_by_interrupt
from tpukit.cli.views.outcome_views import worst
from tpukit.console import Console, View, amount
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.smoke.loads import Loads, WorkerLoad

_COLUMNS = ("WORKER", "CPU", "DUTY", "TENSORCORE", "HBM", "MEMORY", "DISK", "IN", "OUT", "NOTE")
_WIDTHS = (6, 12, 5, 10, 18, 20, 20, 12, 12, 0)

Once = Annotated[bool, Option("--once", help="Print one sample, as --json does.")]
Every = Annotated[str, Option(metavar="DURATION", help="Time between two samples: 2s, 1m.")]


@flag.connecting
def top(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    worker: flag.Workers = "all",
    once: Once = False,
    every: Every = "2s",
    timeout: flag.Timeout = "60s",
) -> View:
    """Show the load of every worker and its chips.

    libtpu reports the chips' duty cycle, TensorCore use and HBM while a program computes. On a
    terminal each sample replaces the one before; elsewhere every sample is printed. Ctrl-C ends it.

    Examples:
      tpukit top demo
      tpukit top demo --once --worker 0
      tpukit top demo --json
    """
    from tpukit.smoke.loads import LoadWatch

    pause = flag.seconds(every, "--every")
    workers = toolkit.reach.workers(name, worker, flag.seconds(timeout))
    with LoadWatch(workers, toolkit.clock) as watch:
        samples = watch.samples(pause)
        first = next(samples)
        if once or toolkit.console.as_json:
            return _view(first)
        with ended_by_interrupt() as status:
            _show(toolkit.console, first, samples)
    return View({}, status=status())


def _show(console: Console, first: Loads, samples: Iterator[Loads]) -> None:
    """Show sample after sample until an interrupt."""
    shown = [first]
    try:
        if console.repaints:
            console.paint(lambda columns: [(line, "") for line in _lines(shown[0])])
        for shown[0] in chain([first], samples):
            if console.repaints:
                console.repaint()
            else:
                console.emit(_view(shown[0]))
    finally:
        console.end_progress()


def _view(loads: Loads) -> View:
    documents = [
        {
            **place(outcome.item),
            **({"load": outcome.value.document()} if outcome.value else {}),
            **({"error": outcome.error.document()} if outcome.error else {}),
        }
        for outcome in loads
    ]
    warnings = [outcome.error.summary() for outcome in loads if outcome.error]
    return View(
        {"workers": documents}, _COLUMNS, _rows(loads), warnings=warnings, status=worst(loads)
    )


def _rows(loads: Loads) -> list[list[object]]:
    return [
        [outcome.item.index, *_cells(outcome.value)]
        if outcome.value
        else [outcome.item.index, *[""] * 8, "?"]
        for outcome in loads
    ]


def _cells(load: WorkerLoad) -> list[object]:
    duty, busy = load.chip("duty_cycle_pct"), load.chip("tensorcore_util")
    used, total = load.chip("hbm_capacity_usage"), load.chip("hbm_capacity_total")
    hbm = "" if used is None or total is None else f"{amount(used)} of {amount(total)}"
    silent = "CPU devices in place of a TPU" if load.emulated else "libtpu reports nothing"
    return [
        f"{load.busy:.0%} of {load.processors}",
        "" if duty is None else f"{duty:.0f}%",
        "" if busy is None else f"{busy:.0f}%",
        hbm,
        f"{amount(load.memory_used)} of {amount(load.memory_total)}",
        f"{amount(load.disk_used)} of {amount(load.disk_total)}",
        f"{amount(load.received)}/s",
        f"{amount(load.sent)}/s",
        "" if load.chips else silent,
    ]


def _lines(loads: Loads) -> list[str]:
    lines: list[str] = []
    header: list[object] = [*_COLUMNS]
    for row in (header, *_rows(loads)):
        cells = zip(map(str, row), _WIDTHS, strict=True)
        lines.append("".join(f"{one_line(cell):<{width}}  " for cell, width in cells))
    return lines

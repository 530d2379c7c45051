"""`tpukit cp`: files and folders to workers and from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpukit.cli import parameters as flag
from tpukit.cli.meter import Meter
from tpukit.cli.route import EXTERNAL, Route
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import TpukitError, interruption

if TYPE_CHECKING:
    from pathlib import Path

    from tpukit.copies import Means
    from tpukit.models import Slice
    from tpukit.remote.fanout import Outcome
    from tpukit.remote.transfer import Recipient
    from tpukit.remote.worker import RemoteWorker

Paths = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE… DESTINATION", help="PATH here, or NAME:PATH on the workers."),
]
Workers = Annotated[
    str,
    typer.Option(
        "--worker", metavar="WORKERS", help="all, 0 or 0,2-5; default: all to copy to, 0 from."
    ),
]
NoRelay = Annotated[
    bool, typer.Option("--no-relay", help="Send to each worker from here, none to another.")
]


def cp(
    toolkit: Toolkit,
    paths: Paths,
    worker: Workers = "",
    no_relay: NoRelay = False,
    timeout: flag.Timeout = "60s",
    route: Route = EXTERNAL,
) -> View:
    """Copy files and folders to workers or from them.

    Typed again after an interruption, it goes on where it stopped. Paths on workers count from the
    home folder. The timeout is for connecting.

    Examples:
      tpukit cp train.py data/ demo:
      tpukit cp 'demo:logs/*.txt' logs/ --worker all
    """
    from tpukit import copies

    toolkit = toolkit.by(route)
    copy = copies.Copy.parse(paths)
    up = copy.direction == "up"
    found = toolkit.find(copy.slice)
    workers = workers_of(toolkit, found, worker or ("all" if up else "0"), flag.seconds(timeout))
    with metered(toolkit, "sent" if up else "received", relay=not no_relay) as means:
        if up:
            return uploaded(toolkit, copies.upload(copy, copies.recipients(found, workers), means))
        return _downloaded(toolkit, copies.fetch(copy, workers, means))


def workers_of(
    toolkit: Toolkit, found: Slice, selection: str, patience: float
) -> list[RemoteWorker]:
    """Return the selected workers of a slice that was found already."""
    from tpukit import fleet

    deadline, say = toolkit.deadline(patience), toolkit.console.say
    return fleet.workers(toolkit.means(), [found], selection, deadline, patience, on_wait=say)


@contextmanager
def metered(toolkit: Toolkit, verb: str, *, relay: bool) -> Iterator[Means]:
    """Yield what transfers work with; show how far they are, and say what an interrupt leaves."""
    from tpukit.copies import Means

    meter = Meter(toolkit.console, toolkit.clock, verb)
    try:
        yield Means(toolkit.clock, meter, relay, toolkit.connector.close)
    except KeyboardInterrupt as signal:
        error = interruption(signal)
        error.exists = ("what has arrived is kept: the same command goes on from there",)
        raise error from None
    finally:
        meter.finish()


def uploaded(toolkit: Toolkit, outcomes: Sequence[Outcome[Recipient, Any]]) -> View:
    """Show what each worker got."""
    results = [(each.item.worker, each.value, each.error) for each in outcomes]
    return _view(toolkit, results, [])


def _downloaded(toolkit: Toolkit, outcomes: Sequence[Outcome[RemoteWorker, list[Path]]]) -> View:
    """Show the paths here that hold what was received."""
    paths = [[str(path)] for each in outcomes for path in each.value or []]
    results = [
        (each.item, [str(path) for path in each.value or []], each.error) for each in outcomes
    ]
    return _view(toolkit, results, paths)


def _view(
    toolkit: Toolkit,
    results: Sequence[tuple[RemoteWorker, Any, TpukitError | None]],
    rows: Sequence[Sequence[str]],
) -> View:
    failed = [error for _, _, error in results if error]
    if len(failed) == len(results) == 1:
        raise failed[0]
    for worker, _, error in results:
        if error:
            toolkit.console.warn(f"{worker.label}: {error.summary()}")
    documents = [
        {"worker": worker.index, **({"error": error.document()} if error else {"result": value})}
        for worker, value, error in results
    ]
    status = max([0, *(error.exit_code for error in failed)])
    return View({"copied": documents}, rows=rows, status=status)

"""`tpukit profile`: capture a trace of a running program, for XProf."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.cp import metered
from tpukit.cli.views import copy_views
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound
from tpukit.text import counted, one_line

if TYPE_CHECKING:
    from tpukit.ssh.worker import RemoteWorker

#: The longest recording, in seconds: gRPC takes no deadline that is centuries away.
_LONGEST = 24 * 3600.0

Run = Annotated[
    str, Argument(metavar="[RUN]", help="Only the workers on which this run is running.")
]
Length = Annotated[str, Option("--for", metavar="DURATION", help="How long to record: 2s, 1m.")]
Port = Annotated[
    int, Option(metavar="PORT", min=1, max=65535, help="Port of the profiler's server.")
]
Directory = Annotated[
    str, Option(metavar="DIRECTORY", help="Folder here for traces, which XProf opens.")
]


@flag.connecting
def profile(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    run: Run = "",
    length: Length = "2s",
    port: Port = 9012,
    worker: flag.Workers = "all",
    output_directory: Directory = "profiles",
    timeout: flag.Timeout = "60s",
) -> View:
    """Capture a trace of a running program, for XProf.

    The program must have a profiler's server: `jax.profiler.start_server(9012)` at its start. For
    the duration, all workers record at the same time what the program does; it goes on unchanged.
    The traces are copied here, and the last line shows the command that opens them. A worker fails
    if it sends nothing for as long as the timeout after the recording.

    Examples:
      tpukit profile demo
      tpukit profile demo 20261121-143355-3f2a --for 5s --worker 0
    """
    from tpukit.jobs.profiles import Profile, capture
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.worker_files import new_run_id

    seconds, patience = flag.seconds(length, "--for"), flag.seconds(timeout)
    if seconds > _LONGEST:
        raise BadInput("--for is at most 24h", fix=Fix(note="for example: --for 2s"))
    workers = toolkit.reach.workers(name, worker, patience)
    if run:
        workers = _running(toolkit, workers, run, patience)
    directory = Path(output_directory)
    wanted = Profile(port, seconds, new_run_id(toolkit.clock), directory)
    toolkit.console.say(f"recording {length} on {counted(len(workers), 'worker')}")
    stays = "traces that have arrived stay; the program goes on"
    with (
        _writable(directory),
        metered(toolkit, "received", relay=False, silence=patience, stays=stays) as context,
    ):
        captured = capture(wanted, workers, context)
    traces = [outcome.value for outcome in captured if outcome.value]
    if emulated := sum(trace.emulated for trace in traces):
        devices = counted(emulated, "CPU device")
        toolkit.console.say(f"the traces show {devices} standing in for a TPU")
    files = [
        Outcome(outcome.item, [outcome.value.path] if outcome.value else None, outcome.error)
        for outcome in captured
    ]
    view = copy_views.received(files)
    note = "then open http://127.0.0.1:8791; without uv: python -m pip install xprof"
    opens = Fix.command("uvx", "xprof", str(directory), note=note)
    return replace(view, next=(*view.next, *([opens] if traces else ())))


@contextmanager
def _writable(directory: Path) -> Iterator[None]:
    """Make a folder before the recording; remove it afterwards if it is empty.

    Raises `BadInput` if it cannot be written.
    """
    fix = Fix(note="--output-directory with a folder of yours")
    what = f"cannot write into the folder {one_line(str(directory))}"
    try:
        made = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(what, why=error.strerror or "", fix=fix) from error
    if not os.access(directory, os.W_OK):
        raise BadInput(what, why="its permissions forbid it", fix=fix)
    try:
        yield
    finally:
        with suppress(OSError):
            directory.rmdir() if made else None


def _running(
    toolkit: Toolkit, workers: list[RemoteWorker], run: str, patience: float
) -> list[RemoteWorker]:
    """Return the workers on which the run is running; raise `NotFound` if there are none."""
    from tpukit.jobs import runs

    states = runs.states(workers, toolkit.clock, run, patience=patience)
    having = runs.holding(states, run)
    live = [
        state.item
        for state in states
        if state.item in having
        and (state.error or any(job.state in ("running", "attached") for job in state.value or ()))
    ]
    if not live:
        fix = Fix.command("tpukit", "jobs", workers[0].slice)
        raise NotFound(f"run {run} has ended", fix=fix)
    return live

"""`tpukit wait`: wait for a state, and change nothing."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.toolkit.known_slices import KnownSlices
from tpukit.cli.views import slice_views
from tpukit.clock import Deadline
from tpukit.console import View
from tpukit.errors import BadInput, Fix, NotFound
from tpukit.models import Slice
from tpukit.slices import change

State = Annotated[
    str, Option("--for", metavar="STATE", help="ready, healthy, ssh, stopped or gone.")
]
_STATES = ("ready", "healthy", "ssh", "stopped", "gone")


@flag.connecting
def wait(
    toolkit: Toolkit, name: flag.Name, state: State = "ready", timeout: flag.Timeout = "20m"
) -> View:
    """Wait until a slice is in a state.

    Ready means that the API says READY; healthy also needs the health HEALTHY. Ssh means that every
    worker has answered with a verified host key. If the wait ends early, the slice stays.

    Examples:
      tpukit wait demo --for ready --timeout 20m
      tpukit wait demo --for gone
    """
    wanted = state.lower()
    if wanted not in _STATES:
        raise BadInput(
            f"cannot wait for {state!r}", fix=Fix(note=f"--for {', or --for '.join(_STATES)}")
        )
    deadline, on_state = toolkit.deadline(flag.seconds(timeout)), toolkit.display.say_state(name)
    try:
        slice_ = toolkit.slices.find(name, deadline)
    except NotFound:
        if wanted != "gone":
            raise
        return _gone(toolkit.slices, name)
    on_state(slice_.state)
    if wanted == "gone":
        change.wait(
            toolkit.cloud.provider, slice_, change.GONE, deadline=deadline, on_state=on_state
        )
        return _gone(toolkit.slices, name)
    word = "READY" if wanted == "ssh" else wanted.upper()
    result = change.wait(toolkit.cloud.provider, slice_, word, deadline=deadline, on_state=on_state)
    if wanted == "ssh":
        _connect(toolkit, result, deadline)
    return slice_views.one_slice(result)


def _gone(slices: KnownSlices, name: str) -> View:
    slices.name_hints.forget([name])
    return View({"slice": None, "gone": name}, rows=[[name]])


def _connect(toolkit: Toolkit, slice_: Slice, deadline: Deadline) -> None:
    """Return once every worker has answered over authenticated SSH."""
    from tpukit.slices.last_seen import last_seen, naming_what_exists
    from tpukit.ssh.fan_out import fan_out, values

    with naming_what_exists(last_seen(toolkit.cloud.provider, slice_, "wait", "--for", "ssh")):
        workers = toolkit.reach.workers(slice_, "all", deadline.remaining())
        values(fan_out(workers, lambda worker: worker.connect().close()))
    toolkit.console.say(f"{len(workers)} of {len(workers)} workers answered")

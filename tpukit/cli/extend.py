"""`tpukit extend`: another end for a slice's life."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from tpukit.cli import ownership
from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import slice_views
from tpukit.console import View
from tpukit.slices import lifetime
from tpukit.slices.update import Edits, update

Ttl = Annotated[
    str, Option("--ttl", metavar="DURATION|never", help="How long from now on: 90m, 8h, 3d.")
]


def extend(
    toolkit: Toolkit,
    name: flag.Name,
    ttl: Ttl,
    force: ownership.Force = False,
    timeout: flag.Timeout = "5m",
) -> View:
    """Change how long a slice may live.

    The time counts from now on, whatever end was set before; a shorter one ends it sooner.

    Examples:
      tpukit extend demo --ttl 8h
      tpukit extend demo --ttl never
    """
    seconds = None if ttl == "never" else flag.seconds(ttl, "--ttl")
    deadline = toolkit.deadline(flag.seconds(timeout))
    found = toolkit.find(name, deadline)
    ownership.confirm(toolkit, "extend", [found], force=force, always=False, flags=("--ttl", ttl))
    now = toolkit.provider.now()
    end = "" if seconds is None else lifetime.moment(now + seconds)
    label = lifetime.EXPIRES
    gone = (label,) if not end and label in found.labels else ()
    if not end and not gone:
        return slice_views.extended(found, now)
    edits = Edits(labels={label: end} if end else {}, without_labels=gone, ours=True)
    done = update(
        toolkit.provider, found, edits, deadline=deadline, on_state=toolkit.say_state(name)
    )
    return slice_views.extended(done.slice, now)

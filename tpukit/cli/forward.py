"""`tpukit forward`: ports of a worker on this machine."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import ended_by_interrupt
from tpukit.console import View

Ports = Annotated[
    list[str], Argument(metavar="PORT…", help="PORT, or HERE:THERE; HERE 0 takes a free one.")
]


def forward(
    toolkit: Toolkit,
    name: flag.Name,
    ports: Ports,
    worker: flag.WorkerNumber = 0,
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Reach ports of a worker on this machine.

    Both ends are loopback addresses: nobody else can connect. A lost connection is made again, for
    as long as it takes. Ctrl-C ends it.

    Examples:
      tpukit forward demo 6006
      tpukit forward demo 6006 8888:8889 --worker 2
    """
    from tpukit.remote.connection.forwarding import Forward, Tunnels

    toolkit = toolkit.by(route)
    wanted = [Forward.parse(each) for each in ports]
    (chosen,) = toolkit.workers(name, str(worker), flag.seconds(timeout))
    say = toolkit.console.say
    with (
        Tunnels(chosen.connect, wanted, toolkit.clock, say) as tunnels,
        ended_by_interrupt() as status,
    ):
        for each in tunnels.forwards:
            say(f"127.0.0.1:{each.local} leads to port {each.remote} of {chosen.label}")
        tunnels.keep()
    return View({}, status=status())

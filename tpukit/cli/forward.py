"""`tpukit forward`: ports of a worker on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from tpukit.cli import parameters as flag
from tpukit.cli.cp import workers_of
from tpukit.cli.route import EXTERNAL, Route
from tpukit.cli.ssh import WorkerNumber
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View

Ports = Annotated[
    list[str], typer.Argument(metavar="PORT…", help="PORT, or HERE:THERE; HERE 0 takes a free one.")
]


def forward(
    toolkit: Toolkit,
    name: flag.Name,
    ports: Ports,
    worker: WorkerNumber = 0,
    timeout: flag.Timeout = "60s",
    route: Route = EXTERNAL,
) -> View:
    """Reach ports of a worker on this machine.

    Both ends are loopback addresses: nobody else can connect. A lost connection is made again, for
    as long as it takes. Ctrl-C ends it.

    Examples:
      tpukit forward demo 6006
      tpukit forward demo 6006 8888:8889 --worker 2
    """
    from tpukit.remote.tunnel import Forward, Tunnels

    toolkit = toolkit.by(route)
    wanted = [Forward.parse(each) for each in ports]
    found = toolkit.find(name)
    (chosen,) = workers_of(toolkit, found, str(worker), flag.seconds(timeout))
    say = toolkit.console.say
    with Tunnels(chosen.connect, wanted, toolkit.clock, say) as tunnels:
        for each in tunnels.forwards:
            say(f"127.0.0.1:{each.local} leads to port {each.remote} of {chosen.label}")
        tunnels.keep()
    return View({})

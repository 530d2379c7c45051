"""`tpukit forward`: reach ports of a worker on this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import ended_by_interrupt, only_name
from tpukit.console import View
from tpukit.errors import BadInput, Fix

if TYPE_CHECKING:
    from tpukit.ssh.forwarding import Forward

Ports = Annotated[
    list[str] | None,
    Argument(
        metavar="PORT…",
        help="PORT, HERE:THERE or [HERE:]HOST:PORT; if HERE is 0, a free port.",
    ),
]
COLUMNS = ("LISTENS", "LEADS TO")


@flag.connecting
def forward(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    ports: Ports = None,
    worker: flag.WorkerNumber = 0,
    timeout: flag.Timeout = "60s",
) -> View:
    """Reach ports of a worker on this machine.

    tpukit listens on this machine's loopback, so nobody else can connect. Connections go to the
    worker's loopback, or to another host that the worker can reach. If the connection to the worker
    is lost, tpukit connects again until it succeeds. Ctrl-C ends it. For a Unix socket or the other
    direction, run `tpukit ssh-config`, then `ssh -L` or `ssh -R`.

    Examples:
      tpukit forward 6006
      tpukit forward demo 6006
      tpukit forward demo 6006 8888:8889 --worker 2
      tpukit forward demo 8080:10.128.0.7:80
    """
    from tpukit.ssh.forwarding import Forward, Tunnels

    if name[:1].isdigit() or ":" in name:  # no slice has such a name
        name, ports = only_name(toolkit), [name, *(ports or ())]
    wanted = [Forward.parse(port) for port in ports or ()]
    if not wanted:
        fix = Fix.command("tpukit", "forward", name, "6006", note="for example")
        raise BadInput("there is no port to forward", fix=fix)
    chosen = toolkit.reach.worker(name, worker, flag.seconds(timeout))

    def instead(taken: Forward) -> Fix:
        words = [
            str(replace(forward_, listen=0) if forward_ is taken else forward_)
            for forward_ in wanted
        ]
        where = ["--worker", str(worker)] if worker else []
        note = "takes a free port instead, and prints its number"
        route = toolkit.route.words
        return Fix.command("tpukit", "forward", name, *words, *where, *route, note=note)

    with (
        Tunnels(chosen.connect, wanted, toolkit.clock, toolkit.console.say, instead) as tunnels,
        ended_by_interrupt() as status,
    ):
        toolkit.console.emit(_view(tunnels.open(), chosen.label))
        tunnels.keep()
    return View({}, status=status())


def _view(forwards: list[Forward], label: str) -> View:
    rows, documents = [], []
    for forward in forwards:
        rows.append([f"127.0.0.1:{forward.listen}", f"{label}, {forward.to}"])
        documents.append({"port": forward.listen, "to": forward.to})
    return View({"forwards": documents}, COLUMNS, rows)

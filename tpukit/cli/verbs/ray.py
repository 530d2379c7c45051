"""`tpukit ray`: a Ray cluster over the workers of slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from tpukit.cli import parameters as flag
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import ended_by_interrupt, group
from tpukit.cli.verbs import provision
from tpukit.console import View
from tpukit.errors import Fix, NotFound
from tpukit.text import quote

if TYPE_CHECKING:
    from tpukit.jobs.ray_cluster import RayCluster, RayNode


def application() -> typer.Typer:
    return group("Join the workers of slices to a Ray cluster.", up, status, dashboard, down)


@flag.connecting
def up(toolkit: Toolkit, name: flag.Names, timeout: flag.Timeout = "30m") -> View:
    """Install Ray on the workers of slices, and join them to one cluster.

    The first worker of the first slice is the head, unless the cluster has one. Run it again after
    a preemption, or with one more slice: it starts only missing nodes. `watch --ray` does so after
    each preemption. The slices need one network, on which Ray's ports are open; Google's rule
    default-allow-internal opens them.

    Examples:
      tpukit ray up demo
      tpukit ray up demo,other
    """
    from tpukit.jobs.ray_cluster import RECIPE

    deadline = toolkit.deadline(flag.seconds(timeout))
    for slice_ in name.split(","):
        provision.apply(toolkit, slice_, [RECIPE], timeout=timeout)
    cluster = _cluster(toolkit, name, timeout)
    try:
        nodes = cluster.up(deadline)
    except KeyboardInterrupt as signal:
        error = toolkit.seen.interrupted(signal)
        error.exists = (*error.exists, "the Ray processes that have started keep running")
        error.otherwise = Fix.command("tpukit", "ray", "up", name, note="goes on")
        raise error from None
    return _view(nodes, [Fix.command("tpukit", "ray", "dashboard", cluster.head)])


@flag.connecting
def status(toolkit: Toolkit, name: flag.Names, timeout: flag.Timeout = "60s") -> View:
    """Show which workers are in the cluster; the exit status is 1 if one is missing.

    Examples:
      tpukit ray status demo,other
    """
    nodes = _cluster(toolkit, name, timeout).nodes()
    missing = [Fix.command("tpukit", "ray", "up", name)]
    return _view(nodes, [] if all(node.alive for node in nodes) else missing)


@flag.connecting
def dashboard(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    port: flag.PortHere = 8265,
    timeout: flag.Timeout = "60s",
) -> View:
    """Reach the dashboard of the cluster whose head is on this slice, until Ctrl-C.

    It prints the address, and the variables with which Ray's own clients submit jobs. The variables
    hold the cluster's token: anyone who has it can run code there.

    Examples:
      tpukit ray dashboard demo
      tpukit ray dashboard demo --port 0
    """
    from tpukit.jobs.ray_cluster import DASHBOARD_PORT
    from tpukit.ssh.forwarding import Forward, Tunnels

    cluster = _cluster(toolkit, name, timeout)
    token = cluster.token()
    if not token:
        fix = Fix.command("tpukit", "ray", "up", name)
        if cluster.runs:
            fix = Fix(note="name the slice with the head")
        raise NotFound(f"no head of a Ray cluster runs on {name}", fix=fix)
    worker = toolkit.reach.worker(name, 0, flag.seconds(timeout))
    forward = Forward.parse(f"{port}:{DASHBOARD_PORT}")

    def instead(_: Forward) -> Fix:
        return Fix.command("tpukit", "ray", "dashboard", name, "--port", "0")

    with (
        Tunnels(worker.connect, [forward], toolkit.clock, toolkit.console.say, instead) as tunnels,
        ended_by_interrupt() as ended,
    ):
        (opened,) = tunnels.open()
        address = f"http://127.0.0.1:{opened.listen}"
        variables = {
            "RAY_API_SERVER_ADDRESS": address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
        }
        lines = [[f"export {key}={quote([value])}"] for key, value in variables.items()]
        toolkit.console.emit(View({"dashboard": address, "environment": variables}, rows=lines))
        tunnels.keep()
    return View({}, status=ended())


@flag.connecting
def down(toolkit: Toolkit, name: flag.Names, timeout: flag.Timeout = "60s") -> View:
    """End Ray on every worker of the slices; the slices stay, and bill.

    Examples:
      tpukit ray down demo,other
    """
    cluster = _cluster(toolkit, name, timeout)
    cluster.down()
    return _view(cluster.nodes(), [])


def _cluster(toolkit: Toolkit, name: str, timeout: str) -> RayCluster:
    from tpukit.jobs.ray_cluster import RayCluster

    workers = toolkit.reach.workers(name, "all", flag.seconds(timeout))
    return RayCluster(workers, toolkit.clock, toolkit.console.say)


def _view(nodes: Sequence[RayNode], after: Sequence[Fix]) -> View:
    rows = [
        [
            node.slice,
            node.worker,
            "alive" if node.alive else "missing",
            " ".join(f"{key}={count:g}" for key, count in sorted(node.resources.items())),
        ]
        for node in nodes
    ]
    return View(
        {"nodes": [node.document() for node in nodes]},
        ("SLICE", "WORKER", "RAY", "RESOURCES"),
        rows,
        next=after,
        status=int(bool(after) and not all(node.alive for node in nodes)),
    )

"""`tpukit notebook`: run Jupyter on a worker for a browser on this machine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.python_commands import cache_variable
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verb import ended_by_interrupt
from tpukit.console import Console, View
from tpukit.errors import Fix, TpukitError

if TYPE_CHECKING:
    from tpukit.jobs.notebooks import Notebook
    from tpukit.ssh.forwarding import Tunnels

Recipe = Annotated[
    str, Option("--with", metavar="RECIPE", help=f"{flag.RECIPES} Default: the provisioned one.")
]
Lease = Annotated[
    str, Option(metavar="DURATION", help="How long Jupyter runs without this machine: 8h.")
]
Install = Annotated[bool, Option("--install", help="Install JupyterLab first.")]


@flag.connecting
def notebook(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    worker: flag.WorkerNumber = 0,
    port: flag.PortHere = 8888,
    recipe: Recipe = "",
    install: Install = False,
    lease: Lease = "24h",
    timeout: flag.Timeout = "60s",
) -> View:
    """Open Jupyter on a worker, with the provisioned environment.

    Jupyter listens only on the worker's loopback and requires a token, which the printed address
    contains. Ctrl-C ends Jupyter and its kernels. They continue while this machine sleeps or is
    offline, but end if it does not return within the lease.

    Examples:
      tpukit notebook demo
      tpukit notebook demo --worker 2 --port 0 --install
    """
    from tpukit.jobs import notebooks
    from tpukit.jobs.python_environments import usual_environment
    from tpukit.ssh.forwarding import Forward, Tunnels

    lease_seconds = flag.life(lease, "--lease")
    if recipe:
        flag.check_recipe(recipe, toolkit.project_files.recipes.names())
    chosen = toolkit.reach.worker(name, worker, flag.seconds(timeout))
    say = toolkit.console.say
    recipe = recipe or usual_environment(chosen, flag.DEFAULT_RECIPE, toolkit.clock)
    if install:
        say(f"installing JupyterLab on {chosen.label}")
        notebooks.install(chosen, recipe, toolkit.clock)

    def instead(taken: Forward) -> Fix:
        return Fix.command("tpukit", "notebook", name, "--port", "0", note="takes a free one here")

    variables = cache_variable(toolkit)
    served = notebooks.Notebook(chosen, recipe, toolkit.clock, lease_seconds, variables)
    try:
        there = served.start()
        with Tunnels(
            chosen.connect, [Forward(port, there)], toolkit.clock, say, instead
        ) as tunnels:
            (forward,) = tunnels.open()
            url = served.url(forward.listen)
            toolkit.console.emit(View({"url": url}, rows=[[url]]))
            with ended_by_interrupt() as status:
                reason = _serve(served, tunnels)
    finally:
        _end(toolkit.console, name, served, lease)
    if status():
        return View({}, status=status())
    raise TpukitError(f"Jupyter on {chosen.label} has ended", reason=reason)


def _serve(served: Notebook, tunnels: Tunnels) -> str:
    """Forward connections until an interrupt or until Jupyter ends; return how it ended."""
    reasons: list[str] = []

    def watch() -> None:
        reasons.append(served.wait())
        tunnels.close()

    threading.Thread(target=watch, name="tpukit-lease", daemon=True).start()
    tunnels.keep()
    return reasons[0]


def _end(console: Console, name: str, served: Notebook, lease: str) -> None:
    try:
        served.end()
    except TpukitError as error:
        console.warn(f"Jupyter may still run: {error.summary()}")
        now = f"ends it now; otherwise it ends within {lease}"
        console.suggest(Fix.command("tpukit", "kill", name, served.run_id, note=now))

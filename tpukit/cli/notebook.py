"""`tpukit notebook`: Jupyter on a worker, in a browser on this machine."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

from typer import Option

from tpukit.cli import parameters as flag
from tpukit.cli.cp import workers_of
from tpukit.cli.hints import Hints
from tpukit.cli.route import EXTERNAL, Route
from tpukit.cli.ssh import WorkerNumber
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View
from tpukit.errors import BadInput, TpukitError
from tpukit.text import one_line, quote

if TYPE_CHECKING:
    from tpukit.notebooks import Notebook
    from tpukit.remote.tunnel import Tunnels

Port = Annotated[int, Option(metavar="PORT", help="Port here; 0 takes a free one.", min=0)]
Install = Annotated[bool, Option("--install", help="Install JupyterLab first.")]


def notebook(
    toolkit: Toolkit,
    name: flag.Name,
    worker: WorkerNumber = 0,
    port: Port = 8888,
    recipe: flag.Recipe = "jax",
    install: Install = False,
    timeout: flag.Timeout = "60s",
    route: Route = EXTERNAL,
) -> View:
    """Open Jupyter on a worker, with the provisioned environment.

    It listens on the worker's loopback alone and asks for a token, which is in the address that is
    printed. Ctrl-C ends it. Where this machine is gone for 5 minutes it ends by itself.

    Examples:
      tpukit notebook demo
      tpukit notebook demo --worker 2 --port 0 --install
    """
    from tpukit import notebooks
    from tpukit.remote.tunnel import Forward, Tunnels

    _check_recipe(recipe)
    toolkit = toolkit.by(route)
    found = toolkit.find(name)
    (chosen,) = workers_of(toolkit, found, str(worker), flag.seconds(timeout))
    say = toolkit.console.say
    if install:
        say(f"installing JupyterLab on {chosen.label}")
        notebooks.install(chosen, recipe, toolkit.clock)
    served = notebooks.Notebook(chosen, recipe, toolkit.clock)
    try:
        there = served.start()
        with Tunnels(chosen.connect, [Forward(port, there)], toolkit.clock, say) as tunnels:
            (forward,) = tunnels.forwards
            url = served.url(forward.local)
            toolkit.console.emit(View({"url": url}, rows=[[url]]))
            reason = _keep(served, tunnels)
    finally:
        _end(toolkit, name, served)
    raise TpukitError(f"Jupyter on {chosen.label} has ended", reason=reason)


def _check_recipe(recipe: str) -> None:
    from tpukit.provision.recipes import recipe_names

    if recipe not in recipe_names():
        fix = f"--with {' or '.join(recipe_names())}"
        raise BadInput(f"there is no recipe {one_line(recipe)}", fix=fix)


def _keep(served: Notebook, tunnels: Tunnels) -> str:
    """Lead connections until an interrupt, or until Jupyter has ended; return how it ended."""
    reasons: list[str] = []

    def watch() -> None:
        reasons.append(served.wait())
        tunnels.close()

    threading.Thread(target=watch, name="tpukit-lease", daemon=True).start()
    tunnels.keep()
    return reasons[0]


def _end(toolkit: Toolkit, name: str, served: Notebook) -> None:
    try:
        served.end()
    except TpukitError as error:
        toolkit.console.warn(f"Jupyter may still run: {error.summary()}")
        hints = Hints.of(toolkit.flags, toolkit.environ)
        fix = hints.complete(quote(["tpukit", "kill", name, served.run_id]))
        toolkit.console.warn(f"it ends by itself within 5 minutes, or at once: {fix}")

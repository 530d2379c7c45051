"""`tpukit push`: a working tree on every worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli import views
from tpukit.cli.cp import NoRelay, metered
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View

Directory = Annotated[
    str, Argument(metavar="[DIRECTORY]", help="Folder to push; default: this one.")
]
Target = Annotated[
    str, Option("--to", metavar="PATH", help="Folder on the workers; default: its own name.")
]


def push(
    toolkit: Toolkit,
    name: flag.Name,
    directory: Directory = ".",
    to: Target = "",
    worker: flag.Workers = "all",
    no_relay: NoRelay = False,
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Put a working tree on every worker.

    Sends what git tracks and what is new, but for .gitignore and .tpukitignore; only what changed
    since the last push. Files made on a worker stay. The timeout is for connecting.

    Examples:
      tpukit push demo
      tpukit push demo ~/src/project --to project
    """
    from tpukit.work import copies, pushes
    from tpukit.work.worktree import read_tree

    toolkit = toolkit.by(route)
    root = Path(directory).expanduser().resolve()
    tree = read_tree(root)
    target = pushes.target_path(to or root.name)
    workers = toolkit.workers(name, worker, flag.seconds(timeout))
    with metered(toolkit, "sent", relay=not no_relay) as context:
        outcomes = pushes.push(tree, target, copies.recipients(workers), context)
    sent = sum(each.value == "sent" for each in outcomes)
    toolkit.console.say(f"{len(tree.names)} files; {sent} of {len(outcomes)} workers changed")
    return views.sent(outcomes)

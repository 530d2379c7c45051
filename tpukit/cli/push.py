"""`tpukit push`: a working tree on every worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpukit.cli import parameters as flag
from tpukit.cli.cp import NoRelay, metered, uploaded, workers_of
from tpukit.cli.route import EXTERNAL, Route
from tpukit.cli.toolkit import Toolkit
from tpukit.console import View

Directory = Annotated[
    str, typer.Argument(metavar="[DIRECTORY]", help="Folder to push; default: this one.")
]
Target = Annotated[
    str, typer.Option("--to", metavar="PATH", help="Folder on the workers; default: its own name.")
]


def push(
    toolkit: Toolkit,
    name: flag.Name,
    directory: Directory = ".",
    to: Target = "",
    worker: flag.Workers = "all",
    no_relay: NoRelay = False,
    timeout: flag.Timeout = "60s",
    route: Route = EXTERNAL,
) -> View:
    """Put a working tree on every worker.

    Sends what git tracks and what is new, but for .gitignore and .tpukitignore; only what changed
    since the last push. Files made on a worker stay. The timeout is for connecting.

    Examples:
      tpukit push demo
      tpukit push demo ~/src/project --to project
    """
    from tpukit import copies, pushes
    from tpukit.worktree import read_tree

    toolkit = toolkit.by(route)
    root = Path(directory).expanduser().resolve()
    tree = read_tree(root)
    target = pushes.target_path(to or root.name)
    found = toolkit.find(name)
    workers = workers_of(toolkit, found, worker, flag.seconds(timeout))
    with metered(toolkit, "sent", relay=not no_relay) as means:
        outcomes = pushes.push(tree, target, copies.recipients(found, workers), means)
    sent = sum(each.value == "sent" for each in outcomes)
    toolkit.console.say(f"{len(tree.names)} files; {sent} of {len(outcomes)} workers changed")
    return uploaded(toolkit, outcomes)

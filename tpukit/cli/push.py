"""`tpukit push`: a working tree on every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.cp import NoRelay, metered
from tpukit.cli.stages import Stages
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.views import copy_views
from tpukit.console import View, amount
from tpukit.text import one_line

if TYPE_CHECKING:
    from tpukit.work.pushes import Push
    from tpukit.work.worktree import Tree

#: Files and bytes above which somebody at a terminal is asked, and names of secrets that are shown.
_MANY, _LARGE, _SHOWN = 10_000, 10**9, 5

Directory = Annotated[
    str, Argument(metavar="[DIRECTORY]", help="Folder to push; default: this one.")
]
Target = Annotated[
    str, Option("--to", metavar="PATH", help="Folder on the workers; default: its own name.")
]
WithSecrets = Annotated[
    bool, Option("--with-secrets", help="Send also what is left out: .ssh, .aws, .netrc, .env ….")
]

Overwrite = Annotated[
    bool, Option("--overwrite", help="Replace also files on the workers that no push has brought.")
]


def push(
    toolkit: Toolkit,
    name: flag.Name,
    directory: Directory = ".",
    to: Target = "",
    worker: flag.Workers = "all",
    with_secrets: WithSecrets = False,
    overwrite: Overwrite = False,
    no_relay: NoRelay = False,
    timeout: flag.Timeout = "60s",
    route: flag.RouteFlags = flag.EXTERNAL,
) -> View:
    """Put a working tree on every worker.

    Sends what git tracks and what is new, but for .gitignore and .tpukitignore; only what changed
    since the last push. Each file is replaced in one step, under a program that runs there too.

    Files made on a worker stay: if the tree has other content under such a name, nothing is
    changed on that worker, unless you give --overwrite. A file that a push brought becomes the
    pushed one again if it was changed there, and goes if it is gone here.

    Keys and passwords, which are known by their names, are left out. The home folder is never
    pushed. A worker that says nothing for as long as the timeout is given up.

    Examples:
      tpukit push demo
      tpukit push demo ~/src/project --to project
    """
    from tpukit.work import pushes
    from tpukit.work.worktree import read_tree, source_folder

    toolkit = toolkit.by(route)
    root = source_folder(directory)
    tree = read_tree(root, with_secrets=with_secrets)
    target = pushes.target_path(to or root.name)
    _tell_secrets(toolkit, tree)
    workers = toolkit.workers(name, worker, flag.seconds(timeout))
    with metered(toolkit, "sent", relay=not no_relay, silence=flag.seconds(timeout)) as context:
        with Stages(toolkit.console, toolkit.clock) as stages:
            size = amount(tree.size(tree.names))
            stages.progress("compare", f"{len(tree.names)} files, {size}, with the workers'")
            prepared = pushes.prepare(tree, target, workers, context, overwrite=overwrite)
        _show(toolkit, prepared)
    with metered(toolkit, "sent", relay=not no_relay, silence=flag.seconds(timeout)) as context:
        outcomes = prepared.send(context)
    sent = sum(each.value == "sent" for each in outcomes)
    toolkit.console.say(f"{len(tree.names)} files; {sent} of {len(outcomes)} workers changed")
    return copy_views.copied(outcomes)


def _tell_secrets(toolkit: Toolkit, tree: Tree) -> None:
    if tree.secrets:
        shown = [one_line(each) for each in tree.secrets[:_SHOWN]]
        more = len(tree.secrets) - len(shown)
        names = ", ".join(shown) + (f" and {more} more" if more else "")
        toolkit.console.say(f"left out as secrets: {names} (--with-secrets sends them)")


def _show(toolkit: Toolkit, prepared: Push) -> None:
    """Say what is going to be sent, and ask where that is much."""
    if not prepared.pending:
        return
    files, size = len(prepared.changed), prepared.tree.size(prepared.changed)
    workers = len(prepared.pending)
    toolkit.console.say(f"{files} files, {amount(size)} changed, to {workers} workers")
    if (files > _MANY or size > _LARGE) and toolkit.can_ask:
        toolkit.confirm(f"send {files} files, {amount(size)}, to {workers} workers?")

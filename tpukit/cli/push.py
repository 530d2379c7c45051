"""`tpukit push`: copy a working tree to every worker."""

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

#: Files and bytes above which tpukit asks first, and the number of secrets' names to show.
_MANY, _LARGE, _SHOWN = 10_000, 10**9, 5

Directory = Annotated[
    str, Argument(metavar="[DIRECTORY]", help="Folder to push; default: this one.")
]
Target = Annotated[
    str, Option("--to", metavar="PATH", help="Folder on the workers; default: its own name.")
]
WithSecrets = Annotated[
    bool, Option("--with-secrets", help="Also send files that hold secrets: .ssh, .aws, .env, ….")
]

Overwrite = Annotated[
    bool, Option("--overwrite", help="Also replace files on the workers that no push has sent.")
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
    """Copy a working tree to every worker.

    It sends tracked and new files, except those in .gitignore and .tpukitignore, and only if they
    have changed since the last push. Each file is replaced in one step, so you can push while a
    program runs.

    Files that were made on a worker stay. If the tree has another file of such a name, tpukit
    changes nothing on that worker, unless you give --overwrite. A file that a push has sent is
    replaced if it was changed on the worker, and deleted if you delete it here.

    Files with names typical of keys and passwords are left out. The home folder is never pushed.
    tpukit gives up a worker that makes no progress for as long as the timeout.

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
    sent = sum(outcome.value == "sent" for outcome in outcomes)
    toolkit.console.say(f"{len(tree.names)} files; {sent} of {len(outcomes)} workers changed")
    return copy_views.copied(outcomes)


def _tell_secrets(toolkit: Toolkit, tree: Tree) -> None:
    if tree.secrets:
        shown = [one_line(secret) for secret in tree.secrets[:_SHOWN]]
        more = len(tree.secrets) - len(shown)
        names = ", ".join(shown) + (f" and {more} more" if more else "")
        toolkit.console.say(f"left out as secrets: {names} (--with-secrets sends them)")


def _show(toolkit: Toolkit, prepared: Push) -> None:
    """Show the number and size of changed files; ask on a terminal before sending very many."""
    if not prepared.pending:
        return
    files, size = len(prepared.changed), prepared.tree.size(prepared.changed)
    workers = len(prepared.pending)
    toolkit.console.say(f"{files} files, {amount(size)} changed, to {workers} workers")
    if (files > _MANY or size > _LARGE) and toolkit.can_ask:
        toolkit.confirm(f"send {files} files, {amount(size)}, to {workers} workers?")

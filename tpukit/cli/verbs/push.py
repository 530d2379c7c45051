"""`tpukit push`: copy a working tree to every worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.stages import Stages
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.cp import NoRelay, metered
from tpukit.cli.views import copy_views
from tpukit.console import Console, View, amount
from tpukit.errors import interruption
from tpukit.text import counted, one_line

if TYPE_CHECKING:
    from tpukit.files.pushes import Push
    from tpukit.files.worktree import Tree
    from tpukit.ssh.fan_out import Outcome
    from tpukit.ssh.worker import RemoteWorker

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
Watch = Annotated[bool, Option("--watch", help="Push again after each change, until Ctrl-C.")]


@dataclass(frozen=True)
class PushFlags:
    """The folder that a command pushes before it starts."""

    push: Annotated[
        str, Option(metavar="DIRECTORY", help="Push this folder first, and start in it.")
    ] = ""
    to: Target = ""


@dataclass(frozen=True)
class TreeToPush:
    """A folder to push, read once; `target` is its path on the workers."""

    tree: Tree
    target: str
    overwrite: bool = False
    relay: bool = True
    silence: float = 60.0  #: seconds without progress after which a worker is given up

    def send(
        self, toolkit: Toolkit, workers: list[RemoteWorker]
    ) -> list[Outcome[RemoteWorker, str]]:
        """Send what the workers lack; on a terminal, ask before very many files."""
        from tpukit.files import pushes

        tree = self.tree
        with metered(toolkit, "sent", relay=self.relay, silence=self.silence) as context:
            with Stages(toolkit.console, toolkit.clock) as stages:
                size = amount(tree.size(tree.names))
                stages.progress(
                    "compare", f"{counted(len(tree.names), 'file')}, {size}, with the workers'"
                )
                prepared = pushes.prepare(
                    tree, self.target, workers, context, overwrite=self.overwrite
                )
            _show(toolkit, prepared)
        with metered(toolkit, "sent", relay=self.relay, silence=self.silence) as context:
            outcomes = prepared.send(context)
        sent = sum(outcome.value == "sent" for outcome in outcomes)
        toolkit.console.say(
            f"{counted(len(tree.names), 'file')}; {sent} of {len(outcomes)} workers changed"
        )
        return outcomes


def push(
    toolkit: Toolkit,
    name: flag.OnlyName = flag.LEFT_OUT,
    directory: Directory = ".",
    to: Target = "",
    worker: flag.Workers = "all",
    with_secrets: WithSecrets = False,
    overwrite: Overwrite = False,
    watch: Watch = False,
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
      tpukit push demo --watch
    """
    toolkit = toolkit.by(route)
    silence = flag.seconds(timeout)
    source = read_source(directory, to, with_secrets=with_secrets)
    source = replace(source, overwrite=overwrite, relay=not no_relay, silence=silence)
    _tell_secrets(toolkit.console, source.tree)
    workers = toolkit.reach.workers(name, worker, silence)
    result = copy_views.copied(source.send(toolkit, workers))
    if not watch or result.status:
        return result
    try:
        for tree in source.tree.changes(toolkit.clock, with_secrets=with_secrets):
            result = copy_views.copied(replace(source, tree=tree).send(toolkit, workers))
            if result.status:
                break
    except KeyboardInterrupt as signal:
        return replace(result, status=interruption(signal).exit_code)
    return result


def read_source(directory: str, to: str, *, with_secrets: bool = False) -> TreeToPush:
    """Return a folder's files as they are now; raise `BadInput` if it cannot be pushed."""
    from tpukit.files.pushes import target_path
    from tpukit.files.worktree import read_tree, source_folder

    root = source_folder(directory)
    tree = read_tree(root, with_secrets=with_secrets)
    return TreeToPush(tree, target_path(to or root.name))


def source_of(flags: PushFlags, console: Console) -> TreeToPush:
    """Return the folder that the flags name, and say which secrets stay here."""
    source = read_source(flags.push, flags.to)
    _tell_secrets(console, source.tree)
    return source


def _tell_secrets(console: Console, tree: Tree) -> None:
    if tree.secrets:
        shown = [one_line(secret) for secret in tree.secrets[:_SHOWN]]
        more = len(tree.secrets) - len(shown)
        names = ", ".join(shown) + (f" and {more} more" if more else "")
        console.say(f"left out as secrets: {names} (--with-secrets sends them)")


def _show(toolkit: Toolkit, prepared: Push) -> None:
    """Show the number and size of changed files; ask on a terminal before sending very many."""
    if not prepared.pending:
        return
    files, size = len(prepared.changed), prepared.tree.size(prepared.changed)
    workers = len(prepared.pending)
    what, whom = counted(files, "file"), counted(workers, "worker")
    toolkit.console.say(f"{what}, {amount(size)} changed, to {whom}")
    if (files > _MANY or size > _LARGE) and toolkit.questions.possible:
        toolkit.questions.confirm(f"send {what}, {amount(size)}, to {whom}?")

"""`tpukit push`: copy a working tree to every worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tpukit.cli import parameters as flag
from tpukit.cli.push_flags import Overwrite, PushFlags, Target, WithSecrets
from tpukit.cli.stages import Stages
from tpukit.cli.toolkit import Toolkit
from tpukit.cli.verbs.cp import NoRelay, metered
from tpukit.cli.views import copy_views
from tpukit.console import Console, View, amount
from tpukit.errors import (
    BadInput,
    Interrupted,
    SecurityRefusal,
    Terminated,
    TpukitError,
    interruption,
)
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
Watch = Annotated[bool, Option("--watch", help="Push again after each change, until Ctrl-C.")]


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
        if sent or not any(outcome.error for outcome in outcomes):
            toolkit.console.say(
                f"{counted(len(tree.names), 'file')}; {sent} of {len(outcomes)} workers changed"
            )
        return outcomes


@flag.connecting
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
) -> View:
    """Copy a working tree to every worker.

    It sends tracked and new files, except those in .gitignore and .tpukitignore, and only if they
    have changed since the last push. Each file is replaced in one step, so you can push while a
    program runs.

    Files that were made on a worker stay. If the tree has another file of such a name, tpukit
    changes nothing on that worker, unless you give --overwrite. A file that a push has sent is
    replaced if it was changed on the worker, and deleted if you delete it here.

    If the target has the push of another folder, tpukit changes nothing there, unless you give
    --overwrite. A checkout of the same git remote counts as the same folder, unless the last
    push had uncommitted changes.

    Files with names typical of keys and passwords are left out. The home folder is never pushed.
    tpukit gives up a worker that makes no progress for as long as the timeout. With --watch, it
    tries again until it succeeds.

    Examples:
      tpukit push demo
      tpukit push demo ~/src/project --to project
      tpukit push demo --watch
    """
    silence = flag.seconds(timeout)
    source = source_of(PushFlags(directory, to, with_secrets, overwrite), toolkit.console)
    source = replace(source, relay=not no_relay, silence=silence)

    def send(tree: Tree) -> View:
        workers = toolkit.reach.workers(name, worker, silence)
        return copy_views.copied(replace(source, tree=tree).send(toolkit, workers))

    result = send(source.tree)
    if not watch or result.status:
        return result
    status = _keep_pushed(toolkit, source.tree, send, with_secrets=with_secrets)
    return replace(result, status=status)


def _keep_pushed(
    toolkit: Toolkit, tree: Tree, send: Callable[[Tree], View], *, with_secrets: bool
) -> int:
    """Send the tree after each change, and again while that fails; return the exit status.

    A failure is shown once, until there is another one.
    """
    from tpukit.files.worktree import AGAIN_SECONDS

    console, failure = toolkit.console, View({})
    changes = tree.changes(
        toolkit.clock,
        with_secrets=with_secrets,
        # Bad input may be a "no" to a question, which is not asked again without a change.
        failing=lambda: failure.status not in (0, BadInput.exit_code),
    )
    try:
        for changed in changes:
            before, failure = failure, _failure(send, changed)
            if failure.warnings and failure.warnings != before.warnings:
                for line in failure.warnings:
                    console.warn(line)
                for fix in failure.next:
                    console.suggest(fix)
                seconds = f"{AGAIN_SECONDS:.0f} s"
                console.say(f"tried again at each change, and after {seconds} if a worker failed")
    except KeyboardInterrupt as signal:
        return interruption(signal).exit_code
    return failure.status


def _failure(send: Callable[[Tree], View], tree: Tree) -> View:
    """Send the tree; return a view with the warnings and the status of its failure."""
    try:
        return send(tree)
    except (Interrupted, Terminated, SecurityRefusal):
        raise
    except TpukitError as error:
        fixes = [error.fix] if error.fix else []
        return View({}, warnings=[error.summary()], next=fixes, status=error.exit_code)


def source_of(flags: PushFlags, console: Console) -> TreeToPush:
    """Return the files of the folder as they are now, and say which secrets stay here.

    Raises `BadInput` if it cannot be pushed.
    """
    from tpukit.files.pushes import target_path
    from tpukit.files.worktree import read_tree, source_folder

    root = source_folder(flags.push)
    target = target_path(flags.to or root.name)
    tree = read_tree(root, with_secrets=flags.with_secrets)
    _tell_secrets(console, tree)
    return TreeToPush(tree, target, flags.overwrite)


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

"""Pushes: they make a folder on every worker match a working tree, and send only the changes."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import PurePosixPath
from typing import Any

from tpukit.agent.archives import STATE_FOLDER
from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.files.copies import RemotePath
from tpukit.files.payload import Payload, push_payload
from tpukit.files.spread import distribute
from tpukit.files.upload import Placement, TransferContext, ask_with_signs
from tpukit.files.worktree import Tree
from tpukit.ssh.agent_client import AgentAnswer
from tpukit.ssh.fan_out import Outcome, fan_out
from tpukit.ssh.worker import RemoteWorker, RetryingConnection
from tpukit.text import counted, one_line

#: The most bytes of an answer: enough for a million names.
_LARGEST_ANSWER = 256 << 20


def target_path(given: str) -> str:
    """Return the target path for the agent; raise `BadInput` if a push must not replace it."""
    path = RemotePath("", given).clean.rstrip("/")
    parts = PurePosixPath(path).parts
    if not set(parts) - {"/", "//"} or ".." in parts or re.search(r"[\0\n]", path):
        name = one_line(next((part for part in reversed(parts) if part.strip("/.")), "project"))
        raise BadInput(
            f"{one_line(given)!r} is not a folder that a push can replace",
            fix=Fix(note=f"--to {name}, which is in the home folder there, or a whole path"),
        )
    if parts[0].startswith(".") or STATE_FOLDER in parts:
        raise BadInput(
            f"{one_line(given)!r} is not a folder for a push",
            why="on a worker, such a name is for files of the login and of tpukit",
            fix=Fix(note="choose another folder with --to"),
        )
    return path


@dataclass(frozen=True)
class Lack:
    """The names that a worker's tree lacks, and the names removed since its last push."""

    lacks: Set[str]
    gone: Set[str]


@dataclass(frozen=True)
class Push:
    """A push that is compared with the workers' trees; only `send` changes them.

    `looks` has what each worker lacks, or None if it already has the tree.
    """

    tree: Tree
    target: str
    looks: Sequence[Outcome[RemoteWorker, Lack | None]]
    overwrite: bool

    @cached_property
    def pending(self) -> Mapping[RemoteWorker, Lack]:
        """The workers that need the push, and what they lack."""
        return {look.item: look.value for look in self.looks if look.value}

    @cached_property
    def changed(self) -> Sequence[str]:
        """The names of the files to send: every file that at least one worker lacks."""
        lacks = set().union(*(lack.lacks for lack in self.pending.values()))
        return [name for name in self.tree.names if name in lacks]

    @cached_property
    def payload(self) -> Payload:
        """The archive that brings every pending worker's tree up to date."""
        files = self.tree.manifest
        gone = set().union(*(lack.gone for lack in self.pending.values())) - files.keys()
        head = {
            "files": {name: files[name] for name in self.changed},
            "gone": sorted(gone),
            "spared": sorted(filter(self.tree.keeps, gone)),
        }
        paths = {name: self.tree.root / name for name in self.changed}
        return push_payload(json.dumps(head, sort_keys=True).encode(), paths)

    def send(self, context: TransferContext) -> list[Outcome[RemoteWorker, str]]:
        """Bring the target up to date on every worker; files that no push has brought stay."""
        name, digest = PurePosixPath(self.target).name, self.tree.digest
        placement = Placement(
            self.target,
            name,
            kind="push",
            manifest=digest,
            overwrite=self.overwrite,
            origin=asdict(self.tree.origin),
            compared=self.tree.size(self.tree.names),
        )
        pending = list(self.pending)
        sent = distribute(self.payload, pending, context, placement) if pending else []
        done = {outcome.item: outcome for outcome in sent}
        for look in self.looks:
            if look.item not in done:
                value = None if look.error else "unchanged"
                done[look.item] = Outcome(look.item, value, look.error)
        return [done[look.item] for look in self.looks]


def prepare(
    tree: Tree,
    target: str,
    workers: Sequence[RemoteWorker],
    context: TransferContext,
    *,
    overwrite: bool = False,
) -> Push:
    """Compare the workers' trees with this one, and return the push.

    A worker's outcome is an error if the target has the push of another folder, or a file that the
    push would replace and whose content no push has brought; unless `overwrite` is true. It is also
    an error if the first worker has no results under the names that `Tree.without` has left out.
    """
    size, digest = tree.size(tree.names), tree.digest
    about = {"target": target, "digest": digest, "origin": asdict(tree.origin)}

    @cache
    def packed() -> str:
        return base64.b64encode(zlib.compress(json.dumps(tree.manifest).encode())).decode()

    def look(worker: RemoteWorker) -> Lack | None:
        with context.connection(worker) as connection:
            results = tree.results if worker is workers[0] else ()
            request = {**about, "results": results, "strict": not tree.tracked, "files": ""}
            answer = _ask(connection, request, size)
            if sources := answer.texts("sources"):
                raise _no_result(sources[0], worker)
            if not overwrite and answer.text("other"):
                raise _another_folder(answer.text("other"), tree, target, worker)
            if not answer.flag("intact"):
                # Most workers already have the tree; send the manifest only to the others.
                answer = _ask(connection, {**request, "files": packed()}, size)
            if answer.flag("intact"):
                return None
            if not overwrite and answer.number("conflicts"):
                raise _conflict(answer)
            return Lack(set(answer.texts("lacks")), set(answer.texts("gone")))

    return Push(tree, target, fan_out(workers, look, cancel=context.cancel), overwrite)


def _ask(connection: RetryingConnection, request: Mapping[str, Any], size: int) -> AgentAnswer:
    return connection.retry(
        lambda current: ask_with_signs(
            connection,
            current,
            "compare_push",
            request,
            f"the worker cannot accept a push to {one_line(request['target'])}",
            size=size,
            keep=_LARGEST_ANSWER,
        )
    )


def _another_folder(other: str, tree: Tree, target: str, worker: RemoteWorker) -> TpukitError:
    shown, root = target.removeprefix("./"), str(tree.root)
    return TpukitError(
        f"{one_line(shown)} has the push of another folder: {one_line(other)[:400]}",
        why="the push would replace its files; nothing was changed there",
        fix=Fix.command(
            *("tpukit", "push", worker.slice, root, "--to", f"{shown}-2"),
            note="or add --overwrite, which replaces them; run and train have both flags too",
        ),
    )


def _no_result(name: str, worker: RemoteWorker) -> BadInput:
    shown = one_line(name)[:200]
    return BadInput(
        f"{shown} is no result: no program on {worker.label} has written it",
        why=f"to fetch it would replace {shown} here; nothing was sent",
        fix=Fix(note="a result that is already here: name it in .gitignore or .tpukitignore"),
    )


def _conflict(answer: AgentAnswer) -> TpukitError:
    names, count = answer.texts("names"), answer.number("conflicts")
    listed = ", ".join(one_line(name)[:200] for name in names)
    if count > len(names):
        listed += f" and {count - len(names)} more"
    replaced = f"{counted(count, 'file')} whose content no push has brought"
    return TpukitError(
        f"the push would replace {replaced}: {listed}",
        why="a program or somebody else has written them there; nothing was changed",
        fix=Fix(
            note="copy them with cp, or name them in .tpukitignore; push --overwrite replaces them"
        ),
    )

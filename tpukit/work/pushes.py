"""Working trees kept the same on every worker: only what changed is sent, and sent once."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import PurePosixPath

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.remote.agent_client import AgentAnswer
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.transfer.payload import Payload, push_payload
from tpukit.remote.transfer.spread import distribute
from tpukit.remote.transfer.upload import Placement, TransferContext, ask_with_signs
from tpukit.text import counted, one_line
from tpukit.work.copies import RemotePath
from tpukit.work.worktree import Tree

#: Bytes of an answer: more than a million names.
_LARGEST_ANSWER = 256 << 20


def target_path(given: str) -> str:
    """Return the target for a worker's programs; raise `BadInput` for one that is no own folder."""
    path = RemotePath("", given).clean.rstrip("/")
    parts = set(PurePosixPath(path).parts) - {"/", "//"}
    if not parts or ".." in parts or re.search(r"[\0\n]", path):
        raise BadInput(f"{one_line(given)!r} is no folder that a push could replace")
    return path


@dataclass(frozen=True)
class Lack:
    """The names that a worker's tree lacks, and those that are gone since its last push."""

    lacks: Set[str]
    gone: Set[str]


@dataclass(frozen=True)
class Push:
    """A push that was compared with the workers' trees, and changes nothing yet.

    `looks` are what each worker lacks, or None if it has the tree already.
    """

    tree: Tree
    target: str
    looks: Sequence[Outcome[RemoteWorker, Lack | None]]
    overwrite: bool

    @cached_property
    def pending(self) -> Mapping[RemoteWorker, Lack]:
        """The workers that are sent something."""
        return {look.item: look.value for look in self.looks if look.value}

    @cached_property
    def changed(self) -> Sequence[str]:
        """The names of the files that are sent: all that one of the workers lacks."""
        lacks = set().union(*(lack.lacks for lack in self.pending.values()))
        return [name for name in self.tree.names if name in lacks]

    @cached_property
    def payload(self) -> Payload:
        """The archive that makes all pending workers' trees this one."""
        files = self.tree.manifest
        gone = set().union(*(lack.gone for lack in self.pending.values())) - files.keys()
        head = {"files": {name: files[name] for name in self.changed}, "gone": sorted(gone)}
        paths = {name: self.tree.root / name for name in self.changed}
        return push_payload(json.dumps(head, sort_keys=True).encode(), paths)

    def send(self, context: TransferContext) -> list[Outcome[RemoteWorker, str]]:
        """Make the target hold the tree on every worker; files that were made there stay."""
        name, digest = PurePosixPath(self.target).name, self.tree.digest
        placement = Placement(
            self.target,
            name,
            kind="push",
            manifest=digest,
            overwrite=self.overwrite,
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
    """Return a push: how the trees of the workers differ from this one.

    A worker on which the push would replace a file that no push has brought by another one is left
    as it is, with an error that names the file, unless `overwrite` is given.
    """
    size, digest = tree.size(tree.names), tree.digest

    @cache
    def packed() -> str:
        return base64.b64encode(zlib.compress(json.dumps(tree.manifest).encode())).decode()

    def look(worker: RemoteWorker) -> Lack | None:
        with context.connection(worker) as connection:
            request = {"target": target, "digest": digest, "files": ""}
            answer = _ask(connection, request, size)
            if not answer.flag("intact"):
                # Most workers have the tree already: only the others get its manifest.
                answer = _ask(connection, {**request, "files": packed()}, size)
            if answer.flag("intact"):
                return None
            if not overwrite and answer.number("conflicts"):
                raise _conflict(answer)
            return Lack(set(answer.texts("lacks")), set(answer.texts("gone")))

    return Push(tree, target, fan_out(workers, look, cancel=context.cancel), overwrite)


def _ask(connection: RetryingConnection, request: Mapping[str, str], size: int) -> AgentAnswer:
    return connection.retry(
        lambda current: ask_with_signs(
            connection,
            current,
            "compare_push",
            request,
            f"a worker cannot take a push to {one_line(request['target'])}",
            size=size,
            keep=_LARGEST_ANSWER,
        )
    )


def _conflict(answer: AgentAnswer) -> TpukitError:
    names, count = answer.texts("names"), answer.number("conflicts")
    listed = ", ".join(one_line(name)[:200] for name in names)
    if count > len(names):
        listed += f" and {count - len(names)} more"
    return TpukitError(
        f"{counted(count, 'file')} that no push has brought would be replaced: {listed}",
        why="the worker has other content under these names; nothing was changed there",
        fix=Fix(note="copy them with cp, or name them in .tpukitignore; --overwrite replaces them"),
    )

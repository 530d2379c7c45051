"""Working trees kept the same on every worker: only what changed is sent, and sent once."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.remote.agent_client import AgentAnswer
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.transfer.payload import Payload, tree_payload
from tpukit.remote.transfer.spread import distribute
from tpukit.remote.transfer.upload import Delivery, Placement, TransferContext, ask_with_signs
from tpukit.text import counted, one_line
from tpukit.work.copies import RemotePath
from tpukit.work.worktree import STATE_FOLDER, Manifest, Tree

#: Bytes of a manifest that a worker may send: more than a million files.
_LARGEST_MANIFEST = 256 << 20


def target_path(given: str) -> str:
    """Return the target for a worker's programs; raise `BadInput` for one that is no own folder."""
    path = RemotePath("", given).clean.rstrip("/")
    parts = set(PurePosixPath(path).parts) - {"/", "//"}
    if not parts or ".." in parts or re.search(r"[\0\n]", path):
        raise BadInput(f"{one_line(given)!r} is no folder that a push could replace")
    return path


@dataclass(frozen=True)
class Push:
    """What a push is going to send: what is not in `base` as it is here, to `pending` workers.

    `looks` are the digests of the workers' trees, empty for one that is not as a push has left it.
    `base` is what the last push has left on all pending workers, or empty.
    """

    tree: Tree
    target: str
    looks: Sequence[Outcome[RemoteWorker, str]]
    base: Manifest

    @property
    def pending(self) -> Sequence[RemoteWorker]:
        digest = self.tree.manifest.digest
        return [look.item for look in self.looks if not look.error and look.value != digest]

    @cached_property
    def changed(self) -> Sequence[str]:
        """The names of the tree whose files are sent."""
        files = self.tree.manifest.files
        return [name for name in self.tree.names if self.base.files.get(name) != files[name]]

    @cached_property
    def payload(self) -> Payload:
        """The archive that makes the base this tree, or any tree if there is no base."""
        files = self.tree.manifest.files
        head = {
            "whole": not self.base.files,
            "files": {name: files[name] for name in self.changed},
            "gone": sorted(self.base.files.keys() - files.keys()),
        }
        members = {f"files/{name}": self.tree.root / name for name in self.changed}
        return tree_payload({"head": json.dumps(head, sort_keys=True).encode(), **members})

    def send(
        self, context: TransferContext, *, overwrite: bool = False
    ) -> list[Outcome[RemoteWorker, str]]:
        """Make the target hold the tree on every worker; files that were made there stay.

        A worker on which that would replace one of these files by another one is left as it is,
        unless `overwrite` is given.
        """

        def apply(delivery: Delivery) -> bool:
            answer = _ask(
                delivery.connection,
                "apply_push",
                self.target,
                size=self.tree.size(self.tree.names),
                payload=delivery.path,
                digest=self.tree.manifest.digest,
                overwrite=overwrite,
            )
            state = answer.text("state")
            if state == "conflict":
                raise _conflict(answer)
            if state == "differs":
                raise TpukitError(
                    "the files on the worker would not be those that were sent",
                    why="they changed on either side meanwhile; the worker's are as they were",
                    fix=Fix(note="push again"),
                )
            return state == "applied"

        pending = self.pending
        name = PurePosixPath(self.target).name
        placement = Placement(f"{self.target}/{STATE_FOLDER}", name)
        sent = distribute(self.payload, pending, apply, context, placement) if pending else []
        done = {outcome.item: outcome for outcome in sent}
        for look in self.looks:
            if look.item not in done:
                value = None if look.error else "unchanged"
                done[look.item] = Outcome(look.item, value, look.error)
        return [done[look.item] for look in self.looks]


def prepare(
    tree: Tree, target: str, workers: Sequence[RemoteWorker], context: TransferContext
) -> Push:
    """Return what a push has to send: what changed since the last push, to outdated workers.

    It is everything if one of them has no last push, another one than the others, or files that
    were changed there.
    """
    size = tree.size(tree.names)

    def look(worker: RemoteWorker) -> str:
        with context.connection(worker) as connection:
            return _ask(connection, "inspect_tree", target, size=size).text("digest")

    push = Push(tree, target, fan_out(workers, look, cancel=context.cancel), Manifest({}))
    pending = set(push.pending)
    digests = {look.value or "" for look in push.looks if look.item in pending}
    if len(digests) != 1 or "" in digests:
        return push
    with context.connection(push.pending[0]) as connection:
        return replace(push, base=_manifest(connection, target, *digests))


def _manifest(connection: RetryingConnection, target: str, digest: str) -> Manifest:
    """Return the manifest of the last push, which all pending workers have.

    One worker sends it for all: it is empty if it is not the one of that digest.
    """
    packed = _ask(connection, "read_manifest", target, size=0).text("manifest")
    with suppress(ValueError, RecursionError, zlib.error):
        unpacked = zlib.decompressobj().decompress(base64.b64decode(packed), _LARGEST_MANIFEST)
        files = json.loads(unpacked)
        if isinstance(files, dict) and Manifest(files).digest == digest:
            return Manifest(files)
    return Manifest({})


def _ask(
    connection: RetryingConnection, verb: str, target: str, *, size: int, **request: str | bool
) -> AgentAnswer:
    return connection.retry(
        lambda current: ask_with_signs(
            connection,
            current,
            verb,
            {"target": target, **request},
            f"a worker cannot take a push to {one_line(target)}",
            size=size,
            keep=_LARGEST_MANIFEST,
        )
    )


def _conflict(answer: AgentAnswer) -> TpukitError:
    names, count = answer.texts("names"), answer.number("count")
    listed = ", ".join(one_line(name)[:200] for name in names)
    if count > len(names):
        listed += f" and {count - len(names)} more"
    return TpukitError(
        f"{counted(count, 'file')} that no push has brought would be replaced: {listed}",
        why="the worker has other content under these names; nothing was changed there",
        fix=Fix(note="copy them with cp, or name them in .tpukitignore; --overwrite replaces them"),
    )

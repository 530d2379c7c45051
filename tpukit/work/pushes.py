"""Working trees kept the same on every worker: only what changed is sent, and sent once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePosixPath

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RemoteWorker, RetryingConnection
from tpukit.remote.programs import answer, program_line
from tpukit.remote.transfer.payload import Payload, tree_payload
from tpukit.remote.transfer.spread import distribute
from tpukit.remote.transfer.upload import Delivery, TransferContext
from tpukit.text import one_line
from tpukit.work.copies import RemotePath
from tpukit.work.worktree import STATE_FOLDER, Manifest, Tree

_ANSWER = re.compile(rb"^tpukit-push ([a-z]+( [0-9a-f]+)?)$", re.MULTILINE)
_MARK = b"tpukit-bytes\n"
#: Bytes of a manifest that a worker may send: more than a million files.
_LARGEST_MANIFEST = 256 << 20
#: Where in the tree a payload goes, which touches nothing else there: files, and their manifests.
_NEW, _NEXT = f"{STATE_FOLDER}/new", f"{STATE_FOLDER}/next"


def target_path(given: str) -> str:
    """Return the target for a worker's programs; raise `BadInput` for one that is no own folder."""
    path = RemotePath("", given).clean.rstrip("/")
    parts = set(PurePosixPath(path).parts) - {"/", "//"}
    if not parts or ".." in parts or re.search(r"[\0\n]", path):
        raise BadInput(f"{one_line(given)!r} is no folder that a push could replace")
    return path


@dataclass(frozen=True)
class Push:
    """What a push is going to send: `changed` names of the tree, to the workers in `pending`.

    `looks` tell how the target stands: `absent`, `changed` since the last push, `intact DIGEST`.
    """

    tree: Tree
    target: str
    looks: Sequence[Outcome[RemoteWorker, str]]
    changed: Sequence[str]

    @property
    def pending(self) -> Sequence[RemoteWorker]:
        done = f"intact {self.tree.manifest.digest}"
        return [each.item for each in self.looks if each.value and each.value != done]

    @cached_property
    def payload(self) -> Payload:
        """What makes trees with all that has not changed be this one."""
        manifest = self.tree.manifest
        sent = Manifest({name: manifest.files[name] for name in self.changed})
        manifests = {f"{_NEXT}/manifest": manifest.encoded, f"{_NEXT}/sent": sent.encoded}
        files = {f"{_NEW}/{name}": self.tree.root / name for name in self.changed}
        return tree_payload({**manifests, **files})

    def send(self, context: TransferContext) -> list[Outcome[RemoteWorker, str]]:
        """Make the target hold the tree on every worker; files that were made there stay."""
        words = ("apply", self.target, self.payload.digest, self.tree.manifest.digest)

        def apply(delivery: Delivery) -> bool:
            found = _answer(delivery.connection, *words)
            if found == "differs":
                raise TpukitError(
                    "the files on the worker would not be those that were sent",
                    why="they changed on either side meanwhile; the worker's are as they were",
                    fix=Fix(note="push again"),
                )
            return found == "applied"

        pending = self.pending
        sent = distribute(self.payload, pending, apply, context) if pending else []
        done = {each.item: each for each in sent}
        for each in self.looks:
            if each.item not in done:
                done[each.item] = Outcome(
                    each.item, None if each.error else "unchanged", each.error
                )
        return [done[each.item] for each in self.looks]


def prepare(
    tree: Tree, target: str, workers: Sequence[RemoteWorker], context: TransferContext
) -> Push:
    """Return what a push has to send: to whom is not up to date what changed since the last push.

    To a worker that has no last push, or whose files were changed there, that is everything.
    """

    size = tree.size(tree.names)

    def look(worker: RemoteWorker) -> str:
        with context.connection(worker, size) as connection:
            return _answer(connection, "look", target)

    push = Push(tree, target, fan_out(workers, look, cancel=context.cancel), ())
    states = {each.value for each in push.looks if each.item in push.pending}
    base = _base(push.pending[0], states, target, context) if states else tree.manifest
    wanted = tree.manifest.files
    return replace(
        push, changed=[name for name in tree.names if base.files.get(name) != wanted[name]]
    )


def _base(
    one: RemoteWorker, states: set[str | None], target: str, context: TransferContext
) -> Manifest:
    """Return the manifest of the last push where all pending workers have it, else an empty one.

    It comes from one worker and counts for all of them: it has to be of the form that ours have,
    and the one that every worker has.
    """
    (first, *others) = states
    word, _, digest = str(first).partition(" ")
    if others or word != "intact":
        return Manifest({})
    with context.connection(one, 0) as connection:
        done = connection.run(_line("manifest", target), keep=_LARGEST_MANIFEST)
    text = done.stdout.partition(_MARK)[2]
    genuine = hashlib.sha256(text).hexdigest() == digest
    return (Manifest.parse(text) if genuine else None) or Manifest({})


def _answer(connection: RetryingConnection, *words: str) -> str:
    done = connection.run(_line(*words))
    found = answer(done, _ANSWER, f"a worker cannot take a push to {one_line(words[1])}")
    return found[1].decode()


def _line(*words: str) -> str:
    return program_line("work/push.sh", words=words)

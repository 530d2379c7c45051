"""Working trees kept the same on every worker: only what changed is sent, and sent once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from tpukit.errors import BadInput, Fix, TpukitError
from tpukit.remote.command.fan_out import Outcome, fan_out
from tpukit.remote.connection.worker import RetryingConnection
from tpukit.remote.programs import answer, program_line
from tpukit.remote.transfer.payload import Entry, Payload, tree_payload
from tpukit.remote.transfer.spread import distribute
from tpukit.remote.transfer.upload import Delivery, Recipient, TransferContext, TransferState
from tpukit.text import one_line
from tpukit.work.copies import RemotePath
from tpukit.work.worktree import STATE_FOLDER, Manifest, Tree

_ANSWER = re.compile(rb"^tpukit-push ([a-z]+) ?([0-9a-f]*)$", re.MULTILINE)
_MARK = b"tpukit-bytes\n"
#: Bytes of a manifest that a worker may send: more than a million files.
_LARGEST_MANIFEST = 256 << 20

PushResult = Literal["sent", "unchanged"]


@dataclass(frozen=True)
class TreeState:
    """How the target stands on a worker: absent, or intact or changed since the last push."""

    word: str
    digest: str = ""

    def has(self, tree: Tree) -> bool:
        """Tell whether it is this tree, untouched."""
        return self == TreeState("intact", tree.manifest.digest)


def target_path(given: str) -> str:
    """Return the target for a worker's programs; raise `BadInput` for one that is no own folder."""
    path = RemotePath("", given).clean.rstrip("/")
    parts = set(PurePosixPath(path).parts) - {"/", "//"}
    if not parts or ".." in parts or re.search(r"[\0\n]", path):
        raise BadInput(f"{one_line(given)!r} is no folder that a push could replace")
    return path


def push(
    tree: Tree, target: str, to: Sequence[Recipient], context: TransferContext
) -> list[Outcome[Recipient, PushResult]]:
    """Make the target hold the tree on every worker.

    What changed since the last push is sent, and to a worker that has no last push, or whose files
    were changed there, everything. Files that were made on a worker stay.
    """
    outcomes = {each.item: each for each in _look(to, target, context)}
    pending = [each for each in to if (seen := outcomes[each].value) and not seen.has(tree)]
    done: dict[Recipient, Outcome[Recipient, PushResult]] = {}
    if pending:
        base = _base(pending, {outcomes[each].value for each in pending}, target, context)
        payload = delta(tree, base)

        def apply(delivery: Delivery, known: TransferState) -> PushResult:
            return _apply(delivery, target, tree)

        done = {each.item: each for each in distribute(payload, pending, apply, context)}
    return [
        done.get(each)
        or Outcome(each, None if outcomes[each].error else "unchanged", outcomes[each].error)
        for each in to
    ]


def delta(tree: Tree, base: Manifest) -> Payload:
    """Return what turns a tree with the base's files into this one."""
    wanted = tree.manifest.files
    changed = [name for name in tree.names if base.files.get(name) != wanted[name]]
    removed = "".join(f"{name}\n" for name in _removed(base.files, wanted))
    texts = [
        (f"{STATE_FOLDER}/manifest", tree.manifest.encoded),
        (f"{STATE_FOLDER}/removed", removed.encode("utf-8", "surrogateescape")),
    ]
    return tree_payload((Entry(name, tree.root / name) for name in changed), texts)


def _removed(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """Return the names that are gone, and after them, with a slash, folders left without any."""
    kept = set(after)
    gone = sorted(set(before) - kept)
    folders = _folders(gone) - _folders(kept)
    return [*gone, *(f"{each}/" for each in sorted(folders, key=lambda each: -each.count("/")))]


def _folders(names: Iterable[str]) -> set[str]:
    return {str(each) for name in names for each in PurePosixPath(name).parents} - {"."}


def _look(
    to: Sequence[Recipient], target: str, context: TransferContext
) -> list[Outcome[Recipient, TreeState]]:
    def look(each: Recipient) -> TreeState:
        with RetryingConnection(each.worker.connect, context.deadline) as connection:
            return _state(connection, "look", target)

    return fan_out(to, look, cancel=context.cancel)


def _base(
    pending: Sequence[Recipient],
    states: set[TreeState | None],
    target: str,
    context: TransferContext,
) -> Manifest:
    """Return the manifest of the last push where all of these workers have it, else an empty one.

    The manifest comes from one worker and names files on all of them: it has to be of the form that
    ours have, and the one that every worker has.
    """
    (first, *others) = states
    if others or first is None or first.word != "intact":
        return Manifest({})
    command = program_line("work/push.sh", words=["manifest", target])
    with RetryingConnection(pending[0].worker.connect, context.deadline) as connection:
        done = connection.run(command, keep=_LARGEST_MANIFEST)
    text = done.stdout.partition(_MARK)[2]
    genuine = hashlib.sha256(text).hexdigest() == first.digest
    return (Manifest.parse(text) if genuine else None) or Manifest({})


def _apply(delivery: Delivery, target: str, tree: Tree) -> PushResult:
    wanted = tree.manifest.digest
    while True:
        found = _state(delivery.connection, "apply", target, delivery.payload.digest, wanted)
        if found.word == "applied":
            return "sent"
        if found.word == "differs":
            raise TpukitError(
                "the files on the worker would not be those that were sent",
                why="they changed on either side meanwhile; the worker's are as they were",
                fix=Fix(note="push again"),
            )
        delivery.send(TransferState("partial"))


def _state(connection: RetryingConnection, *words: str) -> TreeState:
    done = connection.run(program_line("work/push.sh", words=words))
    found = answer(done, _ANSWER, f"a worker cannot take a push to {one_line(words[1])}")
    return TreeState(found[1].decode(), found[2].decode())

"""Working trees kept the same on every worker: only what changed is sent, and sent once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from tpukit.clock import Deadline
from tpukit.copies import Means, RemotePath
from tpukit.errors import BadInput, TpukitError
from tpukit.remote.fanout import Outcome, fan_out
from tpukit.remote.payload import Entry, Payload, tree_payload
from tpukit.remote.program import program_line
from tpukit.remote.relay import distribute
from tpukit.remote.transfer import Delivery, Line, Recipient, State
from tpukit.text import one_line
from tpukit.worktree import STATE_FOLDER, Manifest, Tree

_ANSWER = re.compile(rb"^tpukit-push ([a-z]+) ?([0-9a-f]*)$", re.MULTILINE)
_MARK = b"tpukit-bytes\n"
#: Bytes of a manifest that a worker may send: more than a million files.
_LARGEST_MANIFEST = 256 << 20

Result = Literal["sent", "unchanged"]


@dataclass(frozen=True)
class Standing:
    """How the target stands on a worker: absent, or intact or changed since the last push."""

    word: str
    digest: str = ""

    def has(self, tree: Tree) -> bool:
        return self == Standing("intact", tree.manifest.digest)


def target_path(given: str) -> str:
    """Return the target for a worker's programs; raise `BadInput` for one that is no own folder."""
    path = RemotePath("", given).clean.rstrip("/")
    parts = set(PurePosixPath(path).parts) - {"/", "//"}
    if not parts or ".." in parts or re.search(r"[\0\n]", path):
        raise BadInput(f"{one_line(given)!r} is no folder that a push could replace")
    return path


def push(
    tree: Tree, target: str, to: Sequence[Recipient], means: Means
) -> list[Outcome[Recipient, Result]]:
    """Make the target hold the tree on every worker.

    What changed since the last push is sent, and to a worker that has no last push, or whose files
    were changed there, everything. Files that were made on a worker stay.
    """
    outcomes = {each.item: each for each in _look(to, target, means)}
    pending = [each for each in to if (seen := outcomes[each].value) and not seen.has(tree)]
    done: dict[Recipient, Outcome[Recipient, Result]] = {}
    if pending:
        base = _base(pending, {outcomes[each].value for each in pending}, target, means)
        payload = delta(tree, base)

        def apply(delivery: Delivery, known: State) -> Result:
            return _apply(delivery, target, tree)

        done = {each.item: each for each in distribute(means.errand(payload), pending, apply)}
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


def _look(to: Sequence[Recipient], target: str, means: Means) -> list[Outcome[Recipient, Standing]]:
    never = Deadline.never(means.clock)

    def look(each: Recipient) -> Standing:
        with Line(each.worker.connect, never) as line:
            return _standing(line, "look", target)

    return fan_out(to, look, cancel=means.cancel)


def _base(
    pending: Sequence[Recipient], standings: set[Standing | None], target: str, means: Means
) -> Manifest:
    """Return the manifest of the last push where all of these workers have it, else an empty one.

    The manifest comes from one worker and names files on all of them: it has to be of the form that
    ours have, and the one that every worker has.
    """
    (first, *others) = standings
    if others or first is None or first.word != "intact":
        return Manifest({})
    command = program_line("push.sh", words=["manifest", target])
    never = Deadline.never(means.clock)
    with Line(pending[0].worker.connect, never) as line:
        done = line.ask(lambda each: each.run(command, deadline=never, keep=_LARGEST_MANIFEST))
    text = done.stdout.partition(_MARK)[2]
    genuine = hashlib.sha256(text).hexdigest() == first.digest
    return (Manifest.parse(text) if genuine else None) or Manifest({})


def _apply(delivery: Delivery, target: str, tree: Tree) -> Result:
    wanted = tree.manifest.digest
    while True:
        found = _standing(delivery.line, "apply", target, delivery.payload.digest, wanted)
        if found.word == "applied":
            return "sent"
        if found.word == "differs":
            raise TpukitError(
                "the files on the worker would not be those that were sent",
                why="they changed on either side meanwhile; the worker's are as they were",
                fix="push again",
            )
        delivery.send(State("partial"))


def _standing(line: Line, *words: str) -> Standing:
    done = line.run(program_line("push.sh", words=words))
    found = _ANSWER.search(done.stdout)
    if not done.ok or found is None:
        reason = one_line(done.stderr[-400:]) or f"status {done.status}"
        raise TpukitError(f"a worker cannot take a push to {one_line(words[1])}", reason=reason)
    return Standing(found[1].decode(), found[2].decode())

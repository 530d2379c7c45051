"""Trees of files on this worker that pushes keep the same as on the client.

A manifest maps each name of a tree to its fingerprint: the SHA-256 of a file, with " x" after it if
the file is a program, or "-> " and the SHA-256 of a link's target. `worktree.py` writes them.

In a tree's folder `.tpukit`, the file `pushed` records the pushes, and archives are unpacked in
`new`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
import zlib
from typing import Any, Dict, Iterable, Iterator

from tpukit.agent import locks
from tpukit.agent.archives import STATE_FOLDER, unpack
from tpukit.agent.contents import fingerprint, manifest_digest
from tpukit.agent.main import Home, Request, say
from tpukit.agent.placing import move_file
from tpukit.agent.progress import ProgressReport

#: The most names of conflicts in an answer.
_NAMED = 5
#: Tenths of a second to wait for another push to the same tree.
_LOCK_TRIES = 3000

Manifest = Dict[str, str]


def compare_push(home: Home, request: Request) -> None:
    """Answer if `target` is `intact`: unchanged since a push of the manifest with this `digest`.

    If it is not, and the request has the manifest as `files` (JSON, compressed, in base64), the
    answer has the names that the tree `lacks`, and the names `gone` since the last push.
    `conflicts` is the number of files with other content that no push has brought there, and
    `names` has the first of them. Exits with a message if no push may touch the target, or if files
    of the user are in the way of a folder, or of a file that replaces their folder.

    `other` is the folder whose push is in the target, if the request's `origin` is another one and
    the tree is not intact. Of the names `results`, `sources` has those that are as a push has
    brought them, and if `strict` is true, also those that do not exist.
    """
    tree = _Tree(home, request["target"], ProgressReport())
    sources = [name for name in request["results"] if tree.is_source(name, request["strict"])]
    answer = {"intact": True, "other": "", "sources": sources[:_NAMED]}
    if not tree.is_intact(request["digest"]):
        answer.update(intact=False, other=tree.other(request["origin"]))
        if request["files"]:
            answer.update(_compared(tree, zlib.decompress(base64.b64decode(request["files"]))))
    say(answer)


def _compared(tree: _Tree, manifest: bytes) -> Request:
    files: Manifest = json.loads(manifest)
    as_before = {name: files[name] for name in files if tree.files.get(name) == files[name]}
    held = {name for name in as_before if tree.holds({name: files[name]})}
    lacks = {name: files[name] for name in sorted(files.keys() - held)}
    gone = sorted(tree.files.keys() - files.keys())
    change = _Change(tree, lacks, gone)
    change.check_way()
    conflicts = {"conflicts": len(change.conflicts), "names": change.conflicts[:_NAMED]}
    return {"lacks": list(lacks), "gone": gone, **conflicts}


def apply_push(home: Home, request: Request, payload: str, progress: ProgressReport) -> Request:
    """Apply the archive of a push to `target`; `manifest` is the SHA-256 of the result's manifest.

    The archive has a JSON file `head`, with the manifest `files` of the sent files and the names
    `gone` since the last push, those of them that are `spared` and stay there, and a folder `files`
    with the sent files.

    The returned `state` is "sent", or "differs" if the result would not match the manifest, or,
    unless `overwrite` is true, if there is a conflict or another folder's push; then nothing has
    changed. Exits with a message as `compare_push` does. Waits for another push to the same tree.
    """
    tree, state = _Tree(home, request["target"], progress), "sent"
    arrived = os.path.join(tree.folder, "new")
    with tree.locked():
        if not tree.is_intact(request["manifest"]):
            shutil.rmtree(arrived, ignore_errors=True)  # a killed push leaves it behind
            try:
                os.mkdir(arrived)
                unpack(payload, arrived, sparse=False, advance=progress.advance)
                state = _apply(tree, arrived, request)
            finally:
                shutil.rmtree(arrived, ignore_errors=True)
    os.unlink(payload)
    return {"state": state}


def _apply(tree: _Tree, arrived: str, request: Request) -> str:
    with open(os.path.join(arrived, "head")) as file:
        head = json.load(file)
    change = _Change(tree, head["files"], head["gone"], head["spared"])
    files = os.path.join(arrived, "files")
    intact = tree.holds(change.sent, files) and tree.holds(change.kept)
    if not intact or manifest_digest(change.wanted) != request["manifest"]:
        return "differs"
    if not request["overwrite"] and (change.conflicts or tree.other(request["origin"])):
        return "differs"
    change.check_way()
    tree.origin = request["origin"]
    change.make(files)
    return "sent"


class _Tree:
    """A pushed folder, by its real path, and the record of its pushes.

    `origin` has the fields of the last push's `worktree.Origin`; it is empty if that is unknown.
    `files` is the manifest of the last finished push. `own` has those of its names that no push has
    brought, because the worker had the same files. If the last push was cut off, `unfinished` has
    all names that pushes have brought; otherwise it is empty.
    """

    def __init__(self, home: Home, target: str, progress: ProgressReport) -> None:
        path = os.path.join(home.path, target)
        if os.path.lexists(path) and not os.path.isdir(path):
            sys.exit("there is a file of that name")
        self.root = os.path.realpath(path)
        self.folder = self.path(STATE_FOLDER)
        if (os.path.realpath(home.path) + "/").startswith(self.root.rstrip("/") + "/"):
            sys.exit("the home folder is in it")
        first, *below = os.path.relpath(self.root, os.path.realpath(home.path)).split(os.sep)
        if STATE_FOLDER in below or (first != ".." and first.startswith(".")):
            sys.exit("files of the login or of tpukit have such a name")
        # The check for the folder comes last, because another push may create it meanwhile.
        if os.path.isdir(path) and os.listdir(path) and not os.path.isdir(self.folder):
            sys.exit("it holds files and no push has made it")
        self.progress = progress
        self._read()

    def _read(self) -> None:
        state: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, ValueError), open(self._state) as file:
            state = json.load(file)
        self.origin: dict[str, Any] = state.get("origin", {})
        self.files: Manifest = state.get("files", {})
        self.own: set[str] = set(state.get("own", []))
        self.unfinished: set[str] = set(state.get("unfinished", []))

    @property
    def brought(self) -> set[str]:
        """The names that pushes have brought."""
        return (set(self.files) - self.own) | self.unfinished

    def other(self, origin: dict[str, Any]) -> str:
        """Return the other folder whose push is here, or "" if a push from `origin` may replace it.

        The files of a commit are not lost if another checkout of its repository replaces them.
        """
        last = self.origin
        same = last.get("place", origin["place"]) == origin["place"]
        kept = last.get("committed") and last["repository"] == origin["repository"] != ""
        return "" if same or kept else str(last["place"])

    def is_source(self, name: str, strict: bool) -> bool:
        """Return True if a file is as a push has brought it, or if `strict`, does not exist."""
        if not os.path.lexists(self.path(name)):
            return strict
        brought = name in self.files and name not in self.own
        return brought and self.holds({name: self.files[name]})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Run the block while no other push changes the tree; first read its latest record."""
        with open(os.path.join(self.folder, "lock"), "a+") as lock:
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self.progress.advance(1)
                    time.sleep(0.1)
            else:
                sys.exit(f"another push is going on there: {locks.holder(lock.fileno())}")
            locks.sign(lock.fileno())
            self._read()
            yield

    def write(self) -> None:
        """Write the record of pushes, in one step."""
        own, unfinished = sorted(self.own), sorted(self.unfinished)
        with open(self._state + ".new", "w") as file:
            state = {"origin": self.origin, "files": self.files, "own": own}
            json.dump({**state, "unfinished": unfinished}, file)
        os.replace(self._state + ".new", self._state)

    def path(self, name: str) -> str:
        """Return the path of a name of the tree."""
        return os.path.join(self.root, name)

    def is_intact(self, digest: str) -> bool:
        """Return True if the tree is unchanged since a push of that manifest."""
        return (
            not self.unfinished and manifest_digest(self.files) == digest and self.holds(self.files)
        )

    def holds(self, manifest: Manifest, folder: str = "") -> bool:
        """Return True if all files of a manifest are in the tree, or in another folder."""
        root = folder or self.root
        return all(self._holds(os.path.join(root, name), manifest[name]) for name in manifest)

    def has(self, name: str) -> bool:
        """Return True if a name exists in the tree itself, not through a link."""
        folder = os.path.dirname(self.path(name))
        inside = (folder + "/").startswith(self.root + "/") and os.path.realpath(folder) == folder
        return inside and os.path.lexists(self.path(name))

    def _holds(self, path: str, wanted: str) -> bool:
        """Return True if a path matches a fingerprint; the mode does not count."""
        try:
            return fingerprint(path, self.progress.advance).rstrip(" x") == wanted.rstrip(" x")
        except BrokenPipeError:  # the client is gone
            raise
        except OSError:
            return False

    @property
    def _state(self) -> str:
        return os.path.join(self.folder, "pushed")


class _Change:
    """The change of a tree by a push.

    It adds or replaces the files `sent`, and removes the files `removed` if they exist. Those of
    the `gone` that are `spared`, or that a program has changed since the last push, stay there and
    no longer belong to the pushed tree. A file in `own` stays, because the user has the same one.
    `conflicts` has the names under which the user or a program has written another file.
    `in_the_way` has the names of files in the place of a new folder, or in a folder that becomes a
    file.
    """

    def __init__(
        self, tree: _Tree, sent: Manifest, gone: Iterable[str], spared: Iterable[str] = ()
    ) -> None:
        self.tree, self.sent = tree, sent
        self.kept = {name: tree.files[name] for name in tree.files.keys() - sent.keys() - set(gone)}
        self.wanted = {**self.kept, **self.sent}

        brought = tree.brought
        standing = {name for name in sent.keys() - brought if _is_file(tree.path(name))}
        same = {name for name in standing if tree.holds({name: sent[name]})}
        written = {name for name in sent.keys() & brought if self._was_changed(name)}
        self.conflicts = sorted(
            (standing - same) | {name for name in written if not tree.holds({name: sent[name]})}
        )
        self.own = (tree.own & set(self.kept)) | same
        gone = brought - set(self.wanted) - set(spared)
        self.removed = {name for name in gone if not self._was_changed(name)}
        self.in_the_way = set(self._in_the_way())

    def _was_changed(self, name: str) -> bool:
        """Return True if a file differs from the last push; after a cut-off one nobody knows."""
        tree, was = self.tree, self.tree.files.get(name)
        known = was is not None and not tree.unfinished and _is_file(tree.path(name))
        return known and not tree.holds({name: str(was)})

    def check_way(self) -> None:
        """End with a message if a file is in the way."""
        for name in sorted(self.in_the_way - self.removed):
            sys.exit(name + " is in the way, and no push has brought it")

    def make(self, arrived: str) -> None:
        """Move the files from a folder into the tree, each in one step; then remove old files."""
        tree = self.tree
        going = {name for name in self.removed if tree.has(name) and _is_file(tree.path(name))}
        tree.unfinished = tree.brought | (set(self.wanted) - self.own)
        tree.write()
        for name in sorted(going & self.in_the_way):
            os.unlink(tree.path(name))
        for name in sorted(self.sent):
            self._put(name, os.path.join(arrived, name))
        # Files that moved are already at their new place, so a running program finds one of them.
        for name in sorted(going - self.in_the_way):
            os.unlink(tree.path(name))
        for folder in sorted(_parents(self.removed), reverse=True):
            if tree.has(folder):
                with contextlib.suppress(OSError):  # it is a link, or not empty
                    os.rmdir(tree.path(folder))
        tree.files, tree.own, tree.unfinished = self.wanted, self.own, set()
        tree.write()

    def _put(self, name: str, arrived: str) -> None:
        path = self.tree.path(name)
        if name in self.own:
            _keep(path, arrived)
            return
        if os.path.isdir(path) and not os.path.islink(path):
            for folder, _, _ in os.walk(path, topdown=False):
                os.rmdir(folder)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        move_file(arrived, path)

    def _in_the_way(self) -> Iterator[str]:
        for folder in _parents(self.sent):
            path = self.tree.path(folder)
            if _is_file(path) and (folder in self.removed or not os.path.isdir(path)):
                yield folder
        for name in self.sent:
            if os.path.islink(self.tree.path(name)):
                continue
            for place, folders, files in os.walk(self.tree.path(name)):
                paths = [os.path.join(place, entry) for entry in folders + files]
                yield from (os.path.relpath(p, self.tree.root) for p in paths if _is_file(p))


def _keep(path: str, arrived: str) -> None:
    """Keep a file of the user, which may be open, and change only its mode."""
    if not os.path.islink(path):
        with contextlib.suppress(PermissionError):  # it is another user's
            os.chmod(path, os.stat(arrived).st_mode)


def _is_file(path: str) -> bool:
    """Return True if something is there that is not a folder."""
    return os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path))


def _parents(names: Iterable[str]) -> set[str]:
    """Return all folders above names."""
    return {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}

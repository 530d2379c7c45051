"""Trees of files that pushes keep as they are on the machine that pushes them.

A manifest gives each name of a tree its fingerprint: the SHA-256 of a file, with " x" after it if
the file is a program, or "-> " and that of where a link leads. `worktree.py` writes them.

A tree's folder `.tpukit` has what pushes have done there in the file `pushed`; what arrives is
unpacked in `new`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import time
import zlib
from typing import Any, Dict, Iterable, Iterator

from tpukit.agent.main import Home, Request, say
from tpukit.agent.progress import ProgressReport
from tpukit.agent.trees import CHUNK, FULL, move_file, unpack

STATE_FOLDER = ".tpukit"
#: The names of a conflict that are answered.
_NAMED = 5
#: Tenths of a second that another push to the tree is waited for.
_LOCK_TRIES = 3000

Manifest = Dict[str, str]


def inspect_tree(home: Home, request: Request) -> None:
    """Answer the `digest` of the manifest of `target`: empty if it is not as a push has left it.

    Ends with a message if no push may touch the target.
    """
    tree = _Tree(home, request["target"])
    digest = _digest(tree.files)
    say({"digest": digest if tree.files and tree.is_intact(digest) else ""})


def read_manifest(home: Home, request: Request) -> None:
    """Answer the `manifest` of the last push to `target`: JSON, compressed, as base64."""
    text = json.dumps(_Tree(home, request["target"]).files).encode()
    say({"manifest": base64.b64encode(zlib.compress(text)).decode()})


def apply_push(home: Home, request: Request) -> None:
    """Make `target` the tree whose manifest has the SHA-256 `digest`, by the archive `payload`.

    The archive has a file `head`, JSON: the `files` that are sent, as a manifest, and if the tree
    is not `whole` the names that are `gone` since the last push, which left all others. The files
    are in its folder `files`.

    The `state` that is answered is applied; or nothing was changed: missing (there is no such
    archive), differs (the files would not be those of the manifest) or, unless `overwrite` is true,
    conflict: `count` files with other content would be replaced that no push has brought, the first
    of them in `names`. Files of the user's in the way of a folder, or in a folder in the way of a
    file, end it with a message. Of two pushes at once, one waits.
    """
    os.umask(0o022)
    tree, payload = _Tree(home, request["target"]), request["payload"]
    os.makedirs(tree.folder, exist_ok=True)
    answer: Request = {"state": "applied"}
    with tree.locked():
        try:
            if not tree.is_intact(request["digest"]):
                answer = _apply(tree, payload, request["digest"], request["overwrite"])
        except OSError as error:
            if error.errno in FULL:
                os.unlink(payload)
            raise
    if answer["state"] == "applied":
        with contextlib.suppress(FileNotFoundError):
            os.unlink(payload)
    say(answer)


def is_state_folder(path: str) -> bool:
    """Return True if a folder is no part of a pushed tree, but says what pushes have done there."""
    return os.path.basename(path) == STATE_FOLDER and os.path.isfile(os.path.join(path, "pushed"))


class _Tree:
    """A folder that pushes keep, by its real path, and what they have done there.

    `files` is the manifest of the last push that was finished. In `own` are those of its names that
    no push has brought: the worker had the same files. `unfinished` has all names that pushes have
    brought if the last one was cut off, and is empty otherwise.
    """

    def __init__(self, home: Home, target: str) -> None:
        path = os.path.join(home.path, target)
        if os.path.lexists(path) and not os.path.isdir(path):
            sys.exit("there is a file of that name")
        self.root = os.path.realpath(path)
        self.folder = self.path(STATE_FOLDER)
        if (os.path.realpath(home.path) + "/").startswith(self.root.rstrip("/") + "/"):
            sys.exit("the home folder is in it")
        # In this order: another push may make its folder meanwhile.
        if os.path.isdir(path) and os.listdir(path) and not os.path.isdir(self.folder):
            sys.exit("it holds files and no push has made it")
        self.progress = ProgressReport()
        self._read()

    def _read(self) -> None:
        state: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, ValueError), open(self._state) as file:
            state = json.load(file)
        self.files: Manifest = state.get("files", {})
        self.own: set[str] = set(state.get("own", []))
        self.unfinished: set[str] = set(state.get("unfinished", []))

    @property
    def brought(self) -> set[str]:
        """The names that pushes have brought."""
        return (set(self.files) - self.own) | self.unfinished

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Run the block while no other push changes the tree, and as the last one has left it."""
        with open(os.path.join(self.folder, "lock"), "w") as lock:
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    self.progress.advance(1)
                    time.sleep(0.1)
            else:
                sys.exit("another push is going on there")
            self._read()
            yield

    def write(self) -> None:
        """Keep what pushes have done, in one step."""
        own, unfinished = sorted(self.own), sorted(self.unfinished)
        with open(self._state + ".new", "w") as file:
            json.dump({"files": self.files, "own": own, "unfinished": unfinished}, file)
        os.replace(self._state + ".new", self._state)

    def path(self, name: str) -> str:
        """Return the path of a name of the tree."""
        return os.path.join(self.root, name)

    def is_intact(self, digest: str) -> bool:
        """Return True if the tree is as a push of that manifest has left it."""
        return not self.unfinished and _digest(self.files) == digest and self.holds(self.files)

    def holds(self, manifest: Manifest, folder: str = "") -> bool:
        """Return True if all files of a manifest are in the tree, or in another folder."""
        root = folder or self.root
        return all(self._holds(os.path.join(root, name), manifest[name]) for name in manifest)

    def has(self, name: str) -> bool:
        """Return True if a name is there: in the tree itself, and not through a link."""
        folder = os.path.dirname(self.path(name))
        inside = (folder + "/").startswith(self.root + "/") and os.path.realpath(folder) == folder
        return inside and os.path.lexists(self.path(name))

    def _holds(self, path: str, fingerprint: str) -> bool:
        """Return True if a path has what its fingerprint says; the mode does not count."""
        try:
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                leads_to = os.fsencode(os.readlink(path))
                return fingerprint == "-> " + hashlib.sha256(leads_to).hexdigest()
            if not stat.S_ISREG(mode):
                return False
            content = hashlib.sha256()
            with open(path, "rb", buffering=0) as file:
                for chunk in iter(lambda: file.read(CHUNK), b""):
                    content.update(chunk)
                    self.progress.advance(len(chunk))
            return content.hexdigest() == fingerprint[:64]
        except BrokenPipeError:  # nobody listens any more
            raise
        except OSError:
            return False

    @property
    def _state(self) -> str:
        return os.path.join(self.folder, "pushed")


class _Change:
    """What a push whose archive was unpacked into a folder does to a tree.

    It replaces or adds the files `sent`, and removes those of the names `removed` that are there.
    A file at a name of `own` stays as it is: the user has the same one. `conflicts` are the names
    at which the user has another one. `in_the_way` are names of files where a folder has to be, or
    in a folder that becomes a file.
    """

    def __init__(self, tree: _Tree, folder: str) -> None:
        with open(os.path.join(folder, "head")) as file:
            head = json.load(file)
        self.tree, self.arrived = tree, os.path.join(folder, "files")
        self.sent: Manifest = head["files"]
        elsewhere = {*self.sent, *head["gone"]}
        last = {} if head["whole"] else tree.files
        self.kept = {name: last[name] for name in last if name not in elsewhere}
        self.wanted = {**self.kept, **self.sent}

        brought = tree.brought
        strange = self.sent.keys() - brought
        standing = {name for name in strange if _is_file(tree.path(name))}
        same = {name for name in standing if tree.holds({name: self.sent[name]})}
        self.conflicts = sorted(standing - same)
        self.own = (tree.own & set(self.kept)) | same
        self.removed = brought - set(self.wanted)
        self.in_the_way = set(self._in_the_way())

    def refused(self, digest: str, overwrite: bool) -> Request | None:
        """Return the answer if the change must not be made to get the manifest of that digest."""
        intact = self.tree.holds(self.sent, self.arrived) and self.tree.holds(self.kept)
        if not intact or _digest(self.wanted) != digest:
            return {"state": "differs"}
        if self.conflicts and not overwrite:
            names = self.conflicts[:_NAMED]
            return {"state": "conflict", "count": len(self.conflicts), "names": names}
        for name in sorted(self.in_the_way - self.removed):
            sys.exit(name + " is in the way, and no push has brought it")
        return None

    def make(self) -> None:
        """Change the tree: each file in one step, and what is gone at last."""
        tree = self.tree
        going = {name for name in self.removed if tree.has(name) and _is_file(tree.path(name))}
        tree.unfinished = tree.brought | (set(self.wanted) - self.own)
        tree.write()
        for name in sorted(going & self.in_the_way):
            os.unlink(tree.path(name))
        for name in sorted(self.sent):
            self._put(name)
        # What has moved is at its new place by now: a program that runs there has one or the other.
        for name in sorted(going - self.in_the_way):
            os.unlink(tree.path(name))
        for folder in sorted(_parents(self.removed), reverse=True):
            if tree.has(folder):
                with contextlib.suppress(OSError):  # it is a link, or not empty
                    os.rmdir(tree.path(folder))
        tree.files, tree.own, tree.unfinished = self.wanted, self.own, set()
        tree.write()

    def _put(self, name: str) -> None:
        path, arrived = self.tree.path(name), os.path.join(self.arrived, name)
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


def _apply(tree: _Tree, payload: str, digest: str, overwrite: bool) -> Request:
    if not os.path.exists(payload):
        return {"state": "missing"}
    arrived = os.path.join(tree.folder, "new")
    shutil.rmtree(arrived, ignore_errors=True)  # of a push that was killed
    try:
        with open(payload, "rb") as file:
            unpack(file, arrived, False, tree.progress)
        change = _Change(tree, arrived)
        refused = change.refused(digest, overwrite)
        if refused is None:
            change.make()
        return refused or {"state": "applied"}
    finally:
        shutil.rmtree(arrived, ignore_errors=True)


def _keep(path: str, arrived: str) -> None:
    """Leave a file of the user's, which may be open, but for its mode."""
    if not os.path.islink(path):
        with contextlib.suppress(PermissionError):  # it is another user's
            os.chmod(path, os.stat(arrived).st_mode)


def _digest(manifest: Manifest) -> str:
    """Return the SHA-256 of a manifest, as `worktree.py` reckons it."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _is_file(path: str) -> bool:
    """Return True if something is there that is not a folder."""
    return os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path))


def _parents(names: Iterable[str]) -> set[str]:
    """Return the folders that names are in."""
    return {name[:at] for name in names for at, letter in enumerate(name) if letter == "/"}

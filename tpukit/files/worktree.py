"""The files of a working tree that a push sends, and the manifest of their contents."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from tpukit.agent.archives import STATE_FOLDER
from tpukit.agent.contents import fingerprint, manifest_digest
from tpukit.clock import Clock
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line, shown_path

#: Seconds between two looks for changes, and between two tries of a push that fails.
_LOOK_SECONDS, AGAIN_SECONDS = 1.0, 10.0
IGNORE_FILE = ".tpukitignore"
#: Paths of keys, tokens and passwords, which are sent only on request.
_SECRET = re.compile(
    r".*/(\.ssh|\.aws|\.gnupg|\.config/gcloud)/.*"
    r"|.*/(\.netrc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)(_sk)?)"
    r"|.*/\.env(\.(?!example$|sample$|template$)[^/]*)?",
    re.DOTALL,
)
#: Files that only git reads; they keep a folder of results in a repository.
_GIT_OWN = re.compile(r"(^|/)\.git[^/]*$")
#: The URL of a git remote on another machine; the user in it may be a token (git-clone(1)).
_REMOTE = re.compile(
    r"(?:[a-z+]+://)?(?:[^@/]*@)?(?P<host>[^/:]+)(?::\d+(?=/))?[:/]/*(?P<path>.+?)(?:\.git)?/*"
)


@dataclass(frozen=True)
class Origin:
    """The folder that a push comes from; `pushed_trees.py` compares it with the last push's."""

    place: str  #: the machine and the folder: `laptop:/home/ada/project`
    repository: str  #: the remote and the folder in it, `github.com/ada/project/sub`, or ""
    committed: bool  #: True if a commit has all files


@dataclass(frozen=True)
class Tree:
    """The files of a folder to send to every worker, and the secrets that are left out."""

    root: Path
    names: Sequence[str]
    secrets: Sequence[str] = ()
    #: The time of change of each file in nanoseconds, and its size, before any file was read.
    stamps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tracked: Set[str] = frozenset()  #: the names that git tracks
    kept: tuple[str, ...] = ()  #: the paths that `without` has left out
    results: Sequence[str] = ()  #: the names that `without` has left out

    @cached_property
    def manifest(self) -> Mapping[str, str]:
        """The fingerprint of each file, by its name; `pushed_trees.py` reads it on workers."""
        return {name: _fingerprint(self.root / name) for name in self.names}

    @cached_property
    def commit(self) -> str:
        """The git commit, with `+changes` if files differ from it; "" outside a repository."""
        head = _git(self.root, "rev-parse", "--short=12", "--verify", "--quiet", "HEAD")
        status = _git(self.root, "--no-optional-locks", "status", "--porcelain", "--", ".")
        changed = head.stdout and (status.stdout or status.returncode)
        return head.stdout.decode().strip() + ("+changes" if changed else "")

    @cached_property
    def origin(self) -> Origin:
        """Where the tree comes from."""
        place = f"{_this_machine()}:{self.root}"
        committed = bool(self.commit) and not self.commit.endswith("+changes")
        return Origin(place, _repository_name(self.root), committed)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the manifest."""
        return manifest_digest(self.manifest)

    def without(self, path: str) -> Tree:
        """Return the tree without the results in a file or folder.

        A push then neither sends nor deletes them. Raises `BadInput` if git tracks a file there, or
        one is a secret, or a link leads out of the tree: results would replace what is no result.
        """
        if not (self.root / path).resolve().is_relative_to(self.root):
            raise BadInput(
                f"{one_line(path)} leads out of {shown_path(self.root)} through a link",
                fix=Fix(note="replace the link by a folder, or copy the results with tpukit cp"),
            )
        results = [
            name
            for name in (*self.names, *self.secrets)
            if PurePosixPath(name).is_relative_to(path)
        ]
        for name in results:
            if name in self.secrets or (name in self.tracked and not _GIT_OWN.search(name)):
                why = "it is a secret" if name in self.secrets else "git tracks it"
                raise BadInput(
                    f"{one_line(name)} is no result of a program",
                    reason=why,
                    fix=Fix(note="name a file or folder that only the program writes"),
                )
        names = [name for name in self.names if name not in set(results)]
        return replace(
            self, names=names, kept=(*self.kept, path), results=[*self.results, *results]
        )

    def keeps(self, name: str) -> bool:
        """Return True if a push must leave this file on the workers as it is there."""
        return any(PurePosixPath(name).is_relative_to(path) for path in self.kept)

    def changes(
        self, clock: Clock, *, with_secrets: bool, failing: Callable[[], bool]
    ) -> Iterator[Tree]:
        """Yield the tree again after each change of its files since it was read.

        While `failing` returns True, also yield it `AGAIN_SECONDS` after the last time. Raises
        `BadInput` if the folder is gone or empty.
        """
        tree, due = self, clock.monotonic() + AGAIN_SECONDS
        while True:
            clock.sleep(_LOOK_SECONDS)
            now = read_tree(source_folder(str(self.root)), with_secrets=with_secrets)
            if now.stamps != tree.stamps or (failing() and clock.monotonic() >= due):
                tree = now
                yield tree
                due = clock.monotonic() + AGAIN_SECONDS

    def size(self, names: Iterable[str]) -> int:
        """Return the total bytes of these files; files that are gone count as 0."""
        paths = (self.root / name for name in names)
        return sum(path.lstat().st_size for path in paths if _is_sent(path))


def source_folder(given: str) -> Path:
    """Return the folder to push as an absolute path without links.

    Raises `BadInput` if it is not a folder, or contains the home folder, as `/` does.
    """
    root = Path(os.path.expanduser(given)).resolve()
    if not root.is_dir():
        raise BadInput(f"{shown_path(root)} is not a folder")
    if Path(os.path.expanduser("~")).resolve().is_relative_to(root):
        fix = Fix(note="name a project's folder")
        raise BadInput(f"{shown_path(root)} is never pushed: your home folder is in it", fix=fix)
    return root


def read_tree(root: Path, *, with_secrets: bool = False) -> Tree:
    """Return the files of a folder that git tracks, and its new files that are not ignored.

    `.gitignore` hides only untracked files, `.tpukitignore` also tracked ones; both use the
    patterns of gitignore(5). A folder outside any repository is read as if it were one. Files named
    like keys, tokens or passwords are left out unless `with_secrets` is true.

    Raises `BadInput` if git is missing or there is nothing to send.
    """
    if shutil.which("git") is None:
        raise BadInput("push asks git which files count", fix=Fix(note="install git"))
    # On a worker this folder records the pushes; a copy of it here is meaningless.
    # Beside it, a download that was cut off leaves its part.
    tracked, new = _listed(root)
    listed = sorted(
        name
        for name in tracked | new
        if STATE_FOLDER not in name.split("/")
        and not name.rpartition("/")[2].startswith(f"{STATE_FOLDER}-")
    )
    present = [name for name in listed if _is_sent(root / name)]
    secret = {name for name in present if _SECRET.fullmatch(f"{root}/{name}")}
    secrets = [] if with_secrets else [name for name in present if name in secret]
    sent = [name for name in present if with_secrets or name not in secret]
    if not sent:
        note = "push, run and train send secrets with --with-secrets"
        fix = Fix(note=note) if secrets else None
        raise BadInput(f"there is nothing to push in {shown_path(root)}", fix=fix)
    return Tree(root, sent, secrets, {name: _stamp(root / name) for name in sent}, tracked)


def _listed(root: Path) -> tuple[set[str], set[str]]:
    """Return the names that git tracks, and new names, both without ignored ones.

    For a repository inside this one, git lists only the folder, with a slash at the end.
    """
    with _repository(root) as place:
        ours = (f"--exclude-per-directory={IGNORE_FILE}", "--ignored")
        tracked = _names(root, place, "--cached", "--recurse-submodules")
        new = _names(root, place, "--others", "--exclude-standard")
        ignored = _names(root, place, "--cached", *ours) | _names(root, place, "--others", *ours)
    tracked, new = tracked - ignored, new - ignored
    for folder in [name for name in new if name.endswith("/")]:
        for names, inner in zip((tracked, new), _listed(root / folder), strict=True):
            names.update(f"{folder}{name}" for name in inner)
    return tracked, new


@contextmanager
def _repository(root: Path) -> Iterator[Mapping[str, str]]:
    """Yield the variables with which git sees the folder as part of a repository."""
    if _git(root, "rev-parse", "--is-inside-work-tree").stdout.strip() == b"true":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="tpukit-") as empty:
        _git(root, "init", "--quiet", "--bare", empty)
        yield {"GIT_DIR": empty, "GIT_WORK_TREE": str(root.resolve())}


def _repository_name(root: Path) -> str:
    """Return the git remote `origin` and the folder in it, in the same words for each protocol."""
    url = os.fsdecode(_git(root, "remote", "get-url", "origin").stdout).strip()
    folder = os.fsdecode(_git(root, "rev-parse", "--show-prefix").stdout).rstrip("\n")
    remote, path = _REMOTE.fullmatch(url), url.removeprefix("file://")
    if path.startswith("/"):
        name = f"{_this_machine()}:{path}"
    elif remote and ":" in url:
        name = f"{remote['host'].lower()}/{remote['path']}"
    else:
        return ""
    return f"{name}/{folder}".rstrip("/")


def _this_machine() -> str:
    """Return this machine's name; its domain may change with the network."""
    return socket.gethostname().partition(".")[0]


def _names(root: Path, place: Mapping[str, str], *words: str) -> set[str]:
    """Return the names that git lists, relative to the folder."""
    done = _git(root, "ls-files", "-z", *words, place=place)
    if done.returncode:
        raise BadInput("git cannot list the files", reason=one_line(done.stderr[-400:]))
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _git(
    root: Path, *words: str, place: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[bytes]:
    # This process's own variables could name another repository to git.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # A repository can name a program as its file system monitor; do not run it.
    line = ["git", "-c", "core.fsmonitor=false", *words]
    return subprocess.run(
        line, cwd=root, env={**own, **place}, stdin=subprocess.DEVNULL, capture_output=True
    )


def _is_sent(path: Path) -> bool:
    """Return True if a path is an existing file or a link; submodules are neither.

    Raises `OSError` if it cannot be looked at: workers would lose a file that is still here.
    """
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISLNK(mode) or stat.S_ISREG(mode)


def _stamp(path: Path) -> tuple[int, int]:
    with suppress(OSError):  # it was removed since it was listed
        look = path.lstat()
        return look.st_mtime_ns, look.st_size
    return 0, 0


def _fingerprint(path: Path) -> str:
    try:
        return fingerprint(str(path))
    except OSError as error:
        raise BadInput(f"cannot read {shown_path(path)}", reason=error.strerror or "") from error

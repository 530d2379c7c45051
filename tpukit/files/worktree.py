"""The files of a working tree that a push sends, and the manifest of their contents."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from tpukit.agent.archives import STATE_FOLDER
from tpukit.agent.contents import fingerprint, manifest_digest
from tpukit.clock import Clock
from tpukit.errors import BadInput, Fix
from tpukit.text import one_line, shown_path

#: Seconds between two looks for changes.
_LOOK_SECONDS = 1.0
IGNORE_FILE = ".tpukitignore"
#: Paths of keys, tokens and passwords, which are sent only on request.
_SECRET = re.compile(
    r".*/(\.ssh|\.aws|\.gnupg|\.config/gcloud)/.*"
    r"|.*/(\.netrc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)(_sk)?)"
    r"|.*/\.env(\.(?!example$|sample$|template$)[^/]*)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Tree:
    """The files of a folder to send to every worker, and the secrets that are left out."""

    root: Path
    names: Sequence[str]
    secrets: Sequence[str] = ()
    #: The time of change of each file in nanoseconds, and its size, before any file was read.
    stamps: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    kept: str = ""  #: the path that `without` has left out

    @cached_property
    def manifest(self) -> Mapping[str, str]:
        """The fingerprint of each file, by its name; `pushed_trees.py` reads it on workers."""
        return {name: _fingerprint(self.root / name) for name in self.names}

    @cached_property
    def commit(self) -> str:
        """The git commit, with `+changes` if files differ from it; "" outside a repository."""
        own = _own_environment()
        head = _run(self.root, own, "rev-parse", "--short=12", "--verify", "--quiet", "HEAD")
        look = ("--no-optional-locks", "status", "--porcelain", "--", ".")
        changes = _run(self.root, own, *look).stdout
        return head.stdout.decode().strip() + ("+changes" if head.stdout and changes else "")

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the manifest."""
        return manifest_digest(self.manifest)

    def without(self, path: str) -> Tree:
        """Return the tree without a file or folder, which a push then neither sends nor deletes."""
        names = [name for name in self.names if not PurePosixPath(name).is_relative_to(path)]
        return replace(self, names=names, kept=path)

    def keeps(self, name: str) -> bool:
        """Return True if a push must leave this file on the workers as it is there."""
        return bool(self.kept) and PurePosixPath(name).is_relative_to(self.kept)

    def changes(self, clock: Clock, *, with_secrets: bool) -> Iterator[Tree]:
        """Yield the tree again after each change of its files since it was read."""
        tree = self
        while True:
            clock.sleep(_LOOK_SECONDS)
            now = read_tree(source_folder(str(self.root)), with_secrets=with_secrets)
            if now.stamps != tree.stamps:
                tree = now
                yield tree

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
    listed = sorted(
        name
        for name in _listed(root)
        if STATE_FOLDER not in name.split("/")
        and not name.rpartition("/")[2].startswith(f"{STATE_FOLDER}-")
    )
    present = [name for name in listed if _is_sent(root / name)]
    secret = {name for name in present if _SECRET.fullmatch(f"{root}/{name}")}
    secrets = [] if with_secrets else [name for name in present if name in secret]
    sent = [name for name in present if with_secrets or name not in secret]
    if not sent:
        fix = Fix(note="add --with-secrets") if secrets else None
        raise BadInput(f"there is nothing to push in {shown_path(root)}", fix=fix)
    return Tree(root, sent, secrets, {name: _stamp(root / name) for name in sent})


def _listed(root: Path) -> set[str]:
    """Return the names that git tracks, and new names, except ignored ones.

    For a repository inside this one, git lists only the folder, with a slash at the end.
    """
    with _repository(root) as place:
        ours = (f"--exclude-per-directory={IGNORE_FILE}", "--ignored")
        tracked = _git(root, place, "--cached", "--recurse-submodules")
        new = _git(root, place, "--others", "--exclude-standard")
        ignored = _git(root, place, "--cached", *ours) | _git(root, place, "--others", *ours)
    names = (tracked | new) - ignored
    folders = [name for name in names if name.endswith("/")]
    inner = ({f"{folder}{name}" for name in _listed(root / folder)} for folder in folders)
    return names.union(*inner)


@contextmanager
def _repository(root: Path) -> Iterator[Mapping[str, str]]:
    """Yield the environment in which git sees the folder as part of a repository."""
    own = _own_environment()
    if _run(root, own, "rev-parse", "--is-inside-work-tree").stdout.strip() == b"true":
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="tpukit-") as empty:
        _run(root, own, "init", "--quiet", "--bare", empty)
        yield {**own, "GIT_DIR": empty, "GIT_WORK_TREE": str(root.resolve())}


def _own_environment() -> dict[str, str]:
    """Return this process's variables without those that name another repository to git."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}


def _git(root: Path, environment: Mapping[str, str], *words: str) -> set[str]:
    """Return the names that git lists, relative to the folder."""
    done = _run(root, environment, "ls-files", "-z", *words)
    if done.returncode:
        raise BadInput("git cannot list the files", reason=one_line(done.stderr[-400:]))
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _run(
    root: Path, environment: Mapping[str, str], *words: str
) -> subprocess.CompletedProcess[bytes]:
    # A repository can name a program as its file system monitor; do not run it.
    line = ["git", "-c", "core.fsmonitor=false", *words]
    return subprocess.run(
        line, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )


def _is_sent(path: Path) -> bool:
    """Return True if a path is an existing file or a link; submodules are neither."""
    return path.is_symlink() or path.is_file()


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

"""The files of a working tree that are worth sending, and a manifest of what they hold."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from tpukit.errors import BadInput, Fix
from tpukit.text import one_line, shown_path

IGNORE_FILE = ".tpukitignore"
#: Where a tree on a worker keeps its manifest.
STATE_FOLDER = ".tpukit"
_LINE = re.compile(r"([0-9a-f]{64})  \./(.+)")
_LINK = re.compile(r"#l ([0-9a-f]{64})  \./(.+)")
#: Whole paths of what is sent only where it is asked for: keys, tokens and passwords.
_SECRET = re.compile(
    r".*/(\.ssh|\.aws|\.gnupg|\.config/gcloud)/.*"
    r"|.*/(\.netrc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)(_sk)?)"
    r"|.*/\.env(\.(?!example$|sample$|template$)[^/]*)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Manifest:
    """What every file holds: names to `SHA256`, `SHA256 x` for a program, `-> SHA256` for a link.

    Its text is what sha256sum checks; what that cannot say is in comments.
    """

    files: Mapping[str, str]

    @cached_property
    def encoded(self) -> bytes:
        """The text as bytes, with names as they are on disk."""
        text = "".join(_lines(name, self.files[name]) for name in sorted(self.files))
        return text.encode("utf-8", "surrogateescape")

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()

    @classmethod
    def parse(cls, text: bytes) -> Manifest | None:
        """Return the manifest that a worker keeps, or None where it is not one of ours."""
        files: dict[str, str] = {}
        programs: set[str] = set()
        for line in text.decode("utf-8", "surrogateescape").split("\n"):
            if found := _LINE.fullmatch(line):
                files[found[2]] = found[1]
            elif found := _LINK.fullmatch(line):
                files[found[2]] = f"-> {found[1]}"
            elif line.startswith("#x ./"):
                programs.add(line.removeprefix("#x ./"))
        files.update((name, f"{files[name]} x") for name in programs & set(files))
        parsed = cls(files)
        unsafe = any(".." in PurePosixPath(name).parts or name.startswith("/") for name in files)
        return None if unsafe or parsed.encoded != text else parsed


@dataclass(frozen=True)
class Tree:
    """The files below a folder that are to be the same on every worker, and secrets left out."""

    root: Path
    names: Sequence[str]
    secrets: Sequence[str] = ()

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest({name: _fingerprint(self.root / name) for name in self.names})

    def size(self, names: Iterable[str]) -> int:
        """Return the bytes of some of its files; what is gone by now has none."""
        paths = (self.root / name for name in names)
        return sum(path.lstat().st_size for path in paths if _is_sent(path))


def source_folder(given: str) -> Path:
    """Return the folder to push as an absolute path without links.

    Raises `BadInput` for what is no folder, and for one with the home folder, `/` among them.
    """
    root = Path(os.path.expanduser(given)).resolve()
    if not root.is_dir():
        raise BadInput(f"{shown_path(root)} is not a folder")
    if Path(os.path.expanduser("~")).resolve().is_relative_to(root):
        fix = Fix(note="name a project's folder: tpukit push NAME DIRECTORY")
        raise BadInput(f"{shown_path(root)} is never pushed: your home folder is in it", fix=fix)
    return root


def read_tree(root: Path, *, with_secrets: bool = False) -> Tree:
    """Return what git tracks below a folder and what is new there, but for what is ignored.

    `.gitignore` hides what git does not track, `.tpukitignore` also what it tracks; both have
    gitignore(5)'s patterns. A folder outside any repository is read as if it were one. What holds
    keys, tokens or passwords by its name is left out, unless it is asked for `with_secrets`.

    Raises `BadInput` where there is no git, nothing to send, or a name that cannot be sent.
    """
    if shutil.which("git") is None:
        raise BadInput("push asks git which files count", fix=Fix(note="install git"))
    present = [name for name in sorted(_listed(root)) if _is_sent(root / name)]
    secret = {name for name in present if _SECRET.fullmatch(f"{root}/{name}")}
    secrets = [] if with_secrets else [name for name in present if name in secret]
    sent = [name for name in present if with_secrets or name not in secret]
    if not sent:
        fix = Fix(note="add --with-secrets") if secrets else None
        raise BadInput(f"there is nothing to push in {shown_path(root)}", fix=fix)
    for name in sent:
        _check(name)
    return Tree(root, sent, secrets)


def _listed(root: Path) -> set[str]:
    """Return the names that git tracks and those that are new, but for what is to be ignored.

    Of another repository below git says the folder alone, which ends with a slash.
    """
    with _repository(root) as place:
        ours = (f"--exclude-per-directory={IGNORE_FILE}", "--ignored")
        tracked = _git(root, place, "--cached", "--recurse-submodules")
        new = _git(root, place, "--others", "--exclude-standard")
        ignored = _git(root, place, "--cached", *ours) | _git(root, place, "--others", *ours)
    found = (tracked | new) - ignored
    below = [each for each in found if each.endswith("/")]
    return found.union(*({f"{each}{name}" for name in _listed(root / each)} for each in below))


@contextmanager
def _repository(root: Path) -> Iterator[Mapping[str, str]]:
    """Yield the variables that make git see the folder as part of a repository."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    if _run(root, own, "rev-parse", "--is-inside-work-tree").stdout.strip() == b"true":
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="tpukit-") as empty:
        _run(root, own, "init", "--quiet", "--bare", empty)
        yield {**own, "GIT_DIR": empty, "GIT_WORK_TREE": str(root.resolve())}


def _git(root: Path, environment: Mapping[str, str], *words: str) -> set[str]:
    """Return the names that git lists, counted from the folder."""
    done = _run(root, environment, "ls-files", "-z", *words)
    if done.returncode:
        raise BadInput("git cannot list the files", reason=one_line(done.stderr[-400:]))
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _run(
    root: Path, environment: Mapping[str, str], *words: str
) -> subprocess.CompletedProcess[bytes]:
    # A repository's own file system monitor is a program that it names; none is needed here.
    line = ["git", "-c", "core.fsmonitor=false", *words]
    return subprocess.run(
        line, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )


def _is_sent(path: Path) -> bool:
    """Tell whether a listed name is a file or link that is there; submodules are neither."""
    return path.is_symlink() or path.is_file()


def _check(name: str) -> None:
    if name.split("/")[0] == STATE_FOLDER:
        raise BadInput(f"{one_line(name)} cannot be pushed: {STATE_FOLDER} is tpukit's own")
    # sha256sum would escape them in a manifest.
    if re.search(r"[\\\n\r]", name) or len(name.splitlines()) != 1:
        raise BadInput(f"{one_line(name)!r} cannot be pushed: its name has a line end or backslash")


def _fingerprint(path: Path) -> str:
    try:
        if path.is_symlink():
            return f"-> {hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()}"
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{found} x" if path.stat().st_mode & 0o100 else found
    except OSError as error:
        raise BadInput(f"cannot read {shown_path(path)}", reason=error.strerror or "") from error


def _lines(name: str, fingerprint: str) -> str:
    if fingerprint.startswith("-> "):
        return f"#l {fingerprint.removeprefix('-> ')}  ./{name}\n"
    program = f"#x ./{name}\n" if fingerprint.endswith(" x") else ""
    return f"{program}{fingerprint.removesuffix(' x')}  ./{name}\n"

"""Where tpukit keeps its files: the XDG base directories, or `TPUKIT_HOME` for all of them."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpukit.errors import BadInput, Fix, SecurityRefusal, TpukitError
from tpukit.text import one_line, shown_path


@dataclass(frozen=True)
class Paths:
    """The directories of configuration, state and cache; making a value touches no disk."""

    config: Path
    state: Path
    cache: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Paths:
        """Return the directories that `environ` names; raise `BadInput` where there is no home."""
        if root := environ.get("TPUKIT_HOME"):
            own = _absolute(root, "TPUKIT_HOME")
            return cls(own / "config", own / "state", own / "cache")
        return cls(
            _base(environ, "XDG_CONFIG_HOME", ".config") / "tpukit",
            _base(environ, "XDG_STATE_HOME", ".local/state") / "tpukit",
            _base(environ, "XDG_CACHE_HOME", ".cache") / "tpukit",
        )

    @property
    def config_file(self) -> Path:
        """The user's own settings."""
        return self.config / "config.toml"

    @property
    def profiles(self) -> Path:
        """The user's own profiles of `tpukit provision`, a file each."""
        return self.config / "profiles"

    @property
    def recipes(self) -> Path:
        """The user's own recipes, a file each."""
        return self.config / "recipes"

    @property
    def emulator(self) -> Path:
        """Everything of the emulator: its state, its workers, its logs."""
        return self.state / "emulator"

    @property
    def machines(self) -> Path:
        """The root file systems of the emulator's machines, which all emulators share."""
        return self.cache / "machines"

    @property
    def key_directory(self) -> Path:
        return self.state / "keys"

    @property
    def logs(self) -> Path:
        """What installers said, a file a slice."""
        return self.state / "logs"

    @property
    def hints(self) -> Path:
        """Where slices answered lately."""
        return self.state / "hints"

    @property
    def name_hints(self) -> Path:
        """Names of slices seen lately, for shells that complete them."""
        return self.state / "names.json"

    @property
    def pinned_keys(self) -> Path:
        """Host keys that were taken at first sight."""
        return self.state / "pinned_keys"

    @property
    def last_run(self) -> Path:
        """On which workers the last command failed."""
        return self.state / "last_run.json"

    @property
    def watches(self) -> Path:
        """What watches are to do and what has become of them."""
        return self.state / "watches"

    @property
    def trusted(self) -> Path:
        """Which project files may say who pays and who may come in."""
        return self.state / "trusted.json"

    @property
    def tokens(self) -> Path:
        """Access tokens, kept until they end."""
        return self.state / "tokens"

    @property
    def own_addresses(self) -> Path:
        """Which address of this machine each firewall rule admits."""
        return self.state / "own_addresses.json"

    @property
    def ssh(self) -> Path:
        """What the user's OpenSSH configuration includes, and the pins that OpenSSH is given."""
        return self.state / "ssh"

    @property
    def smoke_tests(self) -> Path:
        """What smoke tests of slices have shown, a file a name."""
        return self.state / "smoke"

    @property
    def journal(self) -> Path:
        return self.state / "journal.jsonl"


def home_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory that HOME names; raise `BadInput` unless it can be read."""
    value = environ.get("HOME")
    if not value:
        raise BadInput("there is no home directory", reason="HOME is not set", fix=_ELSEWHERE)
    home = _absolute(value, "HOME")
    try:
        os.scandir(home).close()
    except OSError as error:
        raise BadInput(
            f"the home directory {one_line(value)} cannot be read",
            reason=f"HOME; {error.strerror}",
            fix=_ELSEWHERE,
        ) from error
    return home


def private_directory(path: Path) -> Path:
    """Create the directory for its owner alone (0700) and return it; tighten one that is open.

    Raises `SecurityRefusal` when it belongs to somebody else, `BadInput` when it cannot be made.
    """
    try:
        for missing in reversed([part for part in (path, *path.parents) if not part.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise SecurityRefusal(f"{shown_path(path)} belongs to another user", fix=_ELSEWHERE)
        if not stat.S_ISDIR(status.st_mode):
            raise BadInput(f"{shown_path(path)} is not a directory", fix=_ELSEWHERE)
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        raise BadInput(
            f"cannot make the directory {shown_path(path)}",
            reason=error.strerror or "",
            fix=_ELSEWHERE,
        ) from error
    return path


def read_own(path: Path) -> str:
    """Return the text of a file that is its owner's alone (0600), and ours.

    Raises `SecurityRefusal` where somebody else could have written or read it, `OSError` where it
    cannot be read, or is a symbolic link.
    """
    # A pipe that somebody has put there would never be opened.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise SecurityRefusal(f"{shown_path(path)} belongs to another user", fix=_ELSEWHERE)
        if status.st_mode & 0o077:
            fix = Fix.command("chmod", "600", str(path), note="once you have looked into it")
            raise SecurityRefusal(
                f"{shown_path(path)} is open to other users",
                reason=f"mode {stat.S_IMODE(status.st_mode):04o}",
                fix=fix,
            )
        return file.read()


@contextmanager
def exclusively(lock: Path, *, wait: bool = True) -> Iterator[None]:
    """Run the block while no other process has this lock file.

    Raises `BlockingIOError` if another one has it and `wait` is false.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, mode: int = 0o600, *, durable: bool = False) -> None:
    """Write a file whole or not at all: a reader sees the old text or the new one.

    A `durable` one is on the disk itself when this returns.
    """
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):  # Ctrl-C came when the file had its name
            os.unlink(temporary)
        raise


def recall_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that `keep_json` has written; empty where it cannot be read.

    One that somebody else could have written counts as none.
    """
    try:
        document = json.loads(read_own(path))
    except (SecurityRefusal, OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def keep_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write what everything works without, where that can be done: a full disk ends no command."""
    with suppress(OSError, TpukitError):
        private_directory(path.parent)
        replace_file(path, json.dumps(document))


_ELSEWHERE = Fix(note="set TPUKIT_HOME to the full path of a directory of yours")


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    # The XDG Base Directory Specification has relative values ignored.
    value = environ.get(variable, "")
    return Path(value) if value.startswith("/") else home_directory(environ) / below_home


def _absolute(value: str, variable: str) -> Path:
    if "\0" in value or not value.startswith("/"):
        raise BadInput(
            f"{variable} is not an absolute path", reason=one_line(value), fix=_ELSEWHERE
        )
    return Path(value)

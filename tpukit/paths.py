"""The paths of tpukit's files, in the XDG base directories or in `TPUKIT_HOME`."""

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
    """The directories for configuration, state and cache. It creates none of them."""

    config: Path
    state: Path
    cache: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Paths:
        """Return the directories for an environment; raise `BadInput` if it has no home."""
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

    def profile_file(self, profile: str) -> Path:
        """The user's own settings in a profile."""
        return self.config / f"config-{profile}.toml"

    @property
    def setups(self) -> Path:
        """The user's own setups for `tpukit provision`, one file for each."""
        return self.config / "setups"

    @property
    def recipes(self) -> Path:
        """The user's own recipes, one file for each."""
        return self.config / "recipes"

    @property
    def emulator(self) -> Path:
        """The emulator's state, workers and logs."""
        return self.state / "emulator"

    @property
    def machines(self) -> Path:
        """The root file systems of emulated machines, shared by all emulators."""
        return self.cache / "machines"

    @property
    def key_directory(self) -> Path:
        return self.state / "keys"

    @property
    def logs(self) -> Path:
        """The output of installers, one file for each slice."""
        return self.state / "logs"

    @property
    def hints(self) -> Path:
        """The addresses and host keys of the workers of slices that answered lately."""
        return self.state / "hints"

    @property
    def name_hints(self) -> Path:
        """Names of recent slices, for completion in shells."""
        return self.state / "names.json"

    @property
    def stage_times(self) -> Path:
        """The times of the stages of earlier main jobs."""
        return self.state / "stage_times.json"

    @property
    def capacity(self) -> Path:
        """What earlier requests for capacity came to, a file for each endpoint and project."""
        return self.state / "capacity"

    @property
    def pinned_keys(self) -> Path:
        """Host keys that were trusted on first use."""
        return self.state / "pinned_keys"

    @property
    def watches(self) -> Path:
        """The records of `tpukit watch`."""
        return self.state / "watches"

    @property
    def agent_lock(self) -> Path:
        """Held while an agent's slice is made."""
        return self.state / "agent.lock"

    @property
    def trusted(self) -> Path:
        """The project files that the user trusts."""
        return self.state / "trusted.json"

    @property
    def tokens(self) -> Path:
        """Access tokens, kept for later commands."""
        return self.state / "tokens"

    @property
    def own_addresses(self) -> Path:
        """The address of this machine that each firewall rule admits."""
        return self.state / "own_addresses.json"

    @property
    def ssh(self) -> Path:
        """Files for OpenSSH: the included configuration and the pinned host keys."""
        return self.state / "ssh"

    @property
    def journal(self) -> Path:
        return self.state / "journal.jsonl"


def home_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory in HOME; raise `BadInput` if it is not set or unreadable."""
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
    """Create a directory that only its owner can open (0700), or restrict an existing one.

    Raises `SecurityRefusal` if it belongs to another user, `BadInput` if it cannot be created.
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
    """Return the text of a file that we own and that only we can read or write (0600).

    Raises `SecurityRefusal` if it has another owner or wider permissions, and `OSError` if it is
    unreadable or a symbolic link.
    """
    # Without O_NONBLOCK, opening a pipe would never return.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise SecurityRefusal(f"{shown_path(path)} belongs to another user", fix=_ELSEWHERE)
        if status.st_mode & 0o077:
            fix = Fix.command("chmod", "600", str(path), note="after you have read the file")
            raise SecurityRefusal(
                f"{shown_path(path)} is open to other users",
                reason=f"mode {stat.S_IMODE(status.st_mode):04o}",
                fix=fix,
            )
        return file.read()


@contextmanager
def exclusively(lock: Path, *, wait: bool = True) -> Iterator[int]:
    """Run the block while no other process holds this lock file; yield its descriptor.

    A child process that gets the descriptor holds the lock, too, until it ends.

    Raises `BlockingIOError` if another process holds it and `wait` is False.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield descriptor
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, mode: int = 0o600, *, durable: bool = False) -> None:
    """Replace a file's text in one step, so that a reader sees the old text or the new one.

    If `durable`, the text is on the disk when this returns.
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
        with suppress(FileNotFoundError):  # Ctrl-C came after os.replace
            os.unlink(temporary)
        raise


def recall_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that `keep_json` has written.

    Returns an empty one if the file is missing, unreadable, or writable by other users.
    """
    try:
        document = json.loads(read_own(path))
    except (SecurityRefusal, OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def keep_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object that is only a hint: errors, such as a full disk, are ignored."""
    with suppress(OSError, TpukitError):
        private_directory(path.parent)
        replace_file(path, json.dumps(document))


_ELSEWHERE = Fix(note="set TPUKIT_HOME to the full path of a directory of yours")


def _base(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    # The XDG Base Directory Specification says to ignore relative paths.
    value = environ.get(variable, "")
    return Path(value) if value.startswith("/") else home_directory(environ) / below_home


def _absolute(value: str, variable: str) -> Path:
    if "\0" in value or not value.startswith("/"):
        raise BadInput(
            f"{variable} is not an absolute path", reason=one_line(value), fix=_ELSEWHERE
        )
    return Path(value)

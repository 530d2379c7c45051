"""The emulator's directory: its processes, its address and its secrets.

lock            held while the emulator or its guardian lives; names the guardian's process
emulator.json   the emulator's address; written when the server listens
token           the bearer token of this run; gcloud reads it as an access token file
identity        marks the processes of this directory's workers
state.db        the resources, in SQLite; a program's own `Emulator` has none
workers/        each worker's files
emulator.log    standard output and error of the emulator started in the background
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tpukit.paths import replace_file

#: The kinds of workers.
ENGINES = ("auto", "portable", "namespaces", "machines", "paper")
#: An emulator writes this to its `ready` descriptor when it answers.
READY = b"1"
#: The largest log in bytes to continue; a larger one is moved aside.
LARGEST_LOG = 1 << 20

_IDENTITY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunningEmulator:
    """A running emulator, as described in `emulator.json`."""

    pid: int
    guardian: int
    url: str
    token: str
    version: str
    engine: str
    started: float  #: seconds since the epoch
    reason: str = ""  #: why it uses this engine
    limits: tuple[str, ...] = ()  #: the features of TPU VMs that its workers lack
    foreign_ssh: bool = False  #: True if this machine's own SSH server may answer for a worker


class EmulatorHome:
    """One emulator's directory, which only its owner can read."""

    def __init__(self, directory: Path) -> None:
        self.path = directory.absolute()
        self.lock = self.path / "lock"
        self.document = self.path / "emulator.json"
        self.token_file = self.path / "token"
        self.log = self.path / "emulator.log"
        self.identity_file = self.path / "identity"
        self.workers = self.path / "workers"

    def create(self) -> None:
        """Make the directory, and deny other accounts access."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def new_token(self) -> str:
        """Write and return a new token: a client may have sent the old one to another program."""
        value = secrets.token_hex(16)
        replace_file(self.token_file, value + "\n")
        return value

    def identity(self) -> str:
        """Return the random name that marks this directory's processes; make it if necessary.

        A name that a crash cut short is replaced.
        """
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            name = self.identity_file.read_text().strip()
            if _IDENTITY.fullmatch(name):
                return name
        value = secrets.token_hex(16)
        replace_file(self.identity_file, value + "\n")
        return value

    def publish(self, running: RunningEmulator) -> None:
        """Write `emulator.json` in one step, so that a reader sees all of it or nothing."""
        replace_file(self.document, json.dumps(asdict(running), indent=2) + "\n")

    def published(self) -> RunningEmulator | None:
        """Return the emulator of `emulator.json`, which may be dead, or None."""
        try:
            document = json.loads(self.document.read_text())
            names = document.keys() & {field.name for field in fields(RunningEmulator)}
            known = {name: document[name] for name in names}
            return RunningEmulator(**{**known, "limits": tuple(document.get("limits", ()))})
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def sweep(self) -> None:
        """Remove files that a crash left half written; the caller must hold the lock."""
        for folder in (self.path, self.path / "tls"):
            for left in folder.glob(".*.*"):
                left.unlink(missing_ok=True)

    def hold(self) -> None:
        """Write this process into the lock file; it must hold the lock."""
        import psutil

        self.lock.write_text(f"{os.getpid()} {psutil.Process().create_time()!r}\n")

    def holder(self) -> dict[int, float]:
        """Return the last process that took the lock, with its time of start; {} if unknown."""
        with contextlib.suppress(OSError, ValueError):
            pid, born = self.lock.read_text().split()
            return {int(pid): float(born)}
        return {}

    def open_log(self) -> int:
        """Open the log for appending; move a large one to `emulator.log.1` first."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LARGEST_LOG:
                self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def is_locked(self) -> bool:
        """Return True if an emulator or a guardian lives in this directory."""
        try:
            with self.lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


@contextlib.contextmanager
def exclusively(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a file's lock; without `wait`, raise `BlockingIOError` if it is taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)

"""The emulator's directory: who runs in it, where it answers, and its secrets.

lock            held as long as the emulator or its guardian lives; says who that is
emulator.json   where it answers; written after the server listens
token           the bearer token of this run; gcloud reads it as an access token file
identity        marks the processes of this directory's workers
state.db        the resources, in SQLite; not that of a program's own `Emulator`
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

#: What workers can be made of.
ENGINES = ("auto", "portable", "namespaces", "machines", "paper")
#: What an emulator writes to its `ready` descriptor once clients are answered.
READY = b"1"
#: Bytes of a log with which an emulator still starts to write into it.
LARGEST_LOG = 1 << 20

_IDENTITY = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunningEmulator:
    """An emulator that runs, as `emulator.json` describes it."""

    pid: int
    guardian: int
    url: str
    token: str
    version: str
    engine: str
    started: float  #: seconds since the epoch
    reason: str = ""  #: why this engine
    limits: tuple[str, ...] = ()  #: what its workers lack beside TPU VMs
    foreign_ssh: bool = False  #: whether port 22 of a worker's address may be this machine's own


class EmulatorHome:
    """One emulator's directory, for its owner alone."""

    def __init__(self, directory: Path) -> None:
        self.path = directory.absolute()
        self.lock = self.path / "lock"
        self.document = self.path / "emulator.json"
        self.token_file = self.path / "token"
        self.log = self.path / "emulator.log"
        self.identity_file = self.path / "identity"
        self.workers = self.path / "workers"

    def create(self) -> None:
        """Make the directory, and close it to everybody else."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def new_token(self) -> str:
        """Return a new bearer token: who has an old one may ask whoever took the port since."""
        value = secrets.token_hex(16)
        replace_file(self.token_file, value + "\n")
        return value

    def identity(self) -> str:
        """Return the random name that marks this emulator's processes, made once a directory.

        What a crash has cut short is no name and is made anew.
        """
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            found = self.identity_file.read_text().strip()
            if _IDENTITY.fullmatch(found):
                return found
        value = secrets.token_hex(16)
        replace_file(self.identity_file, value + "\n")
        return value

    def publish(self, running: RunningEmulator) -> None:
        """Write where the emulator answers; a reader sees all of it or nothing."""
        replace_file(self.document, json.dumps(asdict(running), indent=2) + "\n")

    def published(self) -> RunningEmulator | None:
        """Return what was published last, which need not live any more."""
        try:
            document = json.loads(self.document.read_text())
            names = document.keys() & {each.name for each in fields(RunningEmulator)}
            known = {name: document[name] for name in names}
            return RunningEmulator(**{**known, "limits": tuple(document.get("limits", ()))})
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def sweep(self) -> None:
        """Remove what a crash left half written; only who has the lock may."""
        for folder in (self.path, self.path / "tls"):
            for left in folder.glob(".*.*"):
                left.unlink(missing_ok=True)

    def hold(self) -> None:
        """Write into the lock, which this process has, who it is."""
        import psutil

        self.lock.write_text(f"{os.getpid()} {psutil.Process().create_time()!r}\n")

    def holder(self) -> dict[int, float]:
        """Return the process that has the lock, or had it last, with its time of start."""
        with contextlib.suppress(OSError, ValueError):
            pid, born = self.lock.read_text().split()
            return {int(pid): float(born)}
        return {}

    def open_log(self) -> int:
        """Open the log to write after its end; a large one begins anew, and is kept beside it."""
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LARGEST_LOG:
                self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def is_locked(self) -> bool:
        """Return whether an emulator or a guardian lives in this directory."""
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
    """Hold a file's lock; raise `BlockingIOError` where another has it and `wait` is false."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)

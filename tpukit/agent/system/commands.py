"""Commands on this worker; those that need root run through sudo without a password."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys


class StepRefused(Exception):
    """A step cannot be applied; the message is the cause, and `fix` the remedy."""

    def __init__(self, cause: str, fix: str) -> None:
        super().__init__(cause)
        self.fix = fix


def as_root(*words: str) -> tuple[str, ...]:
    """Return a command with the rights of root."""
    return words if os.geteuid() == 0 else ("sudo", "-n", "--", *words)


def for_path(path: str, *words: str) -> tuple[str, ...]:
    """Return a command that runs as root unless the path is in the home folder."""
    home = os.path.expanduser("~")
    return words if path.startswith(f"{home}/") else as_root(*words)


def succeeds(*words: str, given: bytes = b"", quiet: bool = False) -> bool:
    """Run a command with `given` as its input; return True if it ended with 0."""
    silent = subprocess.DEVNULL if quiet else None
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(
            words, input=given, stdout=subprocess.DEVNULL, stderr=silent, check=False
        )
        return done.returncode == 0
    return False


def run(*words: str, given: bytes = b"") -> None:
    """Run a command that has to succeed; end this program if it does not."""
    if not succeeds(*words, given=given):
        sys.exit(f"this failed: {' '.join(words)}")


def output(*words: str, seconds: float | None = None) -> str:
    """Return the output of a command; "" if it fails, is missing, or exceeds `seconds`."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=seconds,
        )
        return done.stdout.decode(errors="replace").strip()
    return ""

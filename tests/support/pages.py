"""The pages of the documentation, read as programs.

A ```console block is run: a line that starts with `$ ` is a command, one with `> ` goes on with it,
and the lines below are what a terminal shows. `…` stands for anything, on a line of its own for any
lines. Blank lines, the width of gaps and lines that report a slow stage do not count. A command
ends with status 0 unless the next one is `echo $?`. All blocks of a page
run in order, in one shell. Other blocks are only read.
"""

from __future__ import annotations

import os
import pty
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

import pytest

from support import fix_recorder, warm_gcloud, warm_tpukit
from support.local_cloud import measured
from tpukit.emulator.workers.engines.engine_choice import lacking
from tpukit.emulator.workers.inherited_environment import inherited_environment

ROOT = Path(__file__).resolve().parent.parent.parent
#: Seconds that one page may take.
SECONDS = 500.0
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TAKES_LONG = re.compile(r", for \d+:\d\d so far$")
_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\].*?\x07|[()][A-Z0-9])")


@dataclass(frozen=True)
class Step:
    """One command of a page, and what the page shows below it."""

    command: str
    shown: tuple[str, ...]

    @property
    def asks_status(self) -> bool:
        return self.command == "echo $?"


@dataclass(frozen=True)
class Outcome:
    status: int
    output: str

    def shows(self, expected: tuple[str, ...]) -> bool:
        """Tell whether this is what a page shows; a page that shows nothing claims nothing."""
        lines = [_plain(line) for line in expected if _plain(line)]
        pattern = "".join(
            r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\n"
            for line in lines
        )
        return not lines or re.fullmatch(pattern, self.output) is not None


def pages() -> list[Path]:
    """Return the README, CONTRIBUTING and every page below docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, text) of every fenced block."""
    return _FENCE.findall(text)


def steps(text: str) -> list[Step]:
    """Return the commands of a page's console blocks, in order."""
    return [step for language, body in blocks(text) if language == "console" for step in _of(body)]


def run(
    commands: list[str], directory: Path, environment: Mapping[str, str], columns: int = 120
) -> list[Outcome]:
    """Run commands in one bash on a terminal; stop where bash does."""
    marker = secrets.token_hex(8)
    script = directory / "page.sh"
    report = f"status=$?; printf '\\n{marker} %s\\n' $status; (exit $status)\n"
    script.write_text("".join(f"{command}\n{report}" for command in commands))
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        ["bash", str(script)],
        cwd=directory,
        env={**environment, "COLUMNS": str(columns)},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as bash:
        os.close(theirs)
        limit = threading.Timer(SECONDS, os.killpg, (bash.pid, signal.SIGKILL))
        limit.start()
        text = b"".join(_chunks(ours)).decode("utf-8", "replace")
        limit.cancel()
    parts = re.split(rf"{marker} (\d+)\n", _screen(text))
    return [
        Outcome(int(status), shown) for shown, status in zip(parts[:-1:2], parts[1::2], strict=True)
    ]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of somebody who has tpukit and nothing else, with warm caches."""
    tools = home / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    found = {
        **inherited_environment(os.environ, Path.home()),
        **measured(),
        "PATH": f"{tools}:{os.environ['PATH']}",
        **fix_recorder.environment(),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "USER": "ada",
        "LINES": "50",
        "TERM": "dumb",  # nothing that is painted over: a page shows what stays
        "TPUKIT_HOME": str(home / "tpukit"),
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        **warm_gcloud.environment(),
    }
    python = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for name, program in (("tpukit", warm_tpukit.script(found)), ("python", python)):
        (tools / name).write_text(program)
        (tools / name).chmod(0o755)
    return found


def needs_gcloud(what: str) -> None:
    """Skip a test, with the reason, where gcloud is missing or workers cannot have its port 22."""
    if shutil.which("gcloud") is None:
        pytest.skip(f"gcloud is not installed: {what} is NOT checked by this run")
    with socket.socket() as probe:
        try:
            probe.bind(("127.77.0.1", 22))
        except OSError as error:
            pytest.skip(f"no port 22 for workers ({error}): {what} is NOT checked by this run")


def needs_namespaces(what: str) -> None:
    """Skip a test, with the reason, where workers cannot have a system of their own."""
    if lacks := lacking(sys.platform, os.geteuid(), shutil.which):
        pytest.skip(f"the namespaces engine needs {lacks}: {what} is NOT checked by this run")


def stop_emulator(environment: Mapping[str, str]) -> None:
    """Stop the emulator that somebody's commands may have started."""
    words = [sys.executable, "-m", "tpukit", "emulator", "stop"]
    subprocess.run(words, env=environment, capture_output=True, check=True)


def _of(body: str) -> Iterator[Step]:
    for text in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        first, *rest = text.splitlines()
        count = next((i for i, line in enumerate(rest) if line[:2] not in (">", "> ")), len(rest))
        command = "\n".join([first, *(line[2:] for line in rest[:count])])
        yield Step(command, tuple(rest[count:]))


def _chunks(descriptor: int) -> Iterator[bytes]:
    try:
        while chunk := os.read(descriptor, 1 << 16):
            yield chunk
    except OSError:  # Linux says EIO when the last writer has closed the terminal
        pass
    finally:
        os.close(descriptor)


def _screen(text: str) -> str:
    """Return what a terminal shows, without its colours, as plain lines."""
    bare = _ESCAPE.sub("", text).replace("\r\n", "\n")
    lines = (_plain(line) for line in bare.split("\n"))
    return "".join(f"{line}\n" for line in lines if line and not _TAKES_LONG.search(line))


def _plain(line: str) -> str:
    return " ".join(line.split())

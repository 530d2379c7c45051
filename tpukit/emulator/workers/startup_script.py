"""A worker's `startup-script`: a command in its metadata that runs at each boot.

Like Compute Engine's guest agent, the emulator writes it to a file, runs it with bash as root, and
sends its output to the journal of `google-startup-scripts.service`: google_metadata_script_runner
of GoogleCloudPlatform/guest-agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from tpukit.emulator.workers.engines.engine import EmulatedWorker, Engine, Login, WorkerProgram

KEY = "startup-script"
#: The journal of the unit, in the worker's folder; the stand-in for journalctl prints it.
JOURNAL = Path("etc", "startup-script.log")
_FILE = "startup-script"
_CHUNK = 64 * 1024
#: The largest journal in bytes to append to; a boot empties a larger one.
_LARGEST_JOURNAL = 1 << 20

_log = logging.getLogger(__name__)


async def run_startup_script(worker: EmulatedWorker, engine: Engine, script: str) -> None:
    """Run the script to its end on a started worker; its output goes to the journal."""
    file = worker.folder / "tmp" / _FILE
    file.unlink(missing_ok=True)
    # O_EXCL: never write through a link that the worker's programs left in its place.
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as written:
        written.write(script.encode())
    program = _program(worker, engine)
    path = worker.folder / JOURNAL
    large = path.exists() and path.stat().st_size > _LARGEST_JOURNAL
    how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if large else os.O_APPEND)
    with os.fdopen(os.open(path, how, 0o600), "wb", buffering=0) as journal:
        journal.write(f"Found {KEY} in metadata.\n".encode())
        if engine.name == "portable" and os.geteuid() != 0:
            journal.write(f"{KEY}: not root here: the account that runs the emulator\n".encode())
        process = await asyncio.create_subprocess_exec(
            *program.words,
            env=dict(program.environment),
            cwd=program.directory,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
        assert process.stdout
        async for line in _lines(process.stdout):
            journal.write(f"{KEY}: ".encode() + line + b"\n")
        status = await process.wait()
        journal.write(f"{KEY} exit status {status}\n".encode())
    if status:
        _log.warning("%s: %s ended with %s", worker.record.hostname, KEY, status)


def _program(worker: EmulatedWorker, engine: Engine) -> WorkerProgram:
    """Return the program that runs the file, in root's environment without SSH variables."""
    command = f'exec /bin/bash -c "$TMPDIR/{_FILE}"'
    program = engine.program(worker, Login("root", command, ("", 0, "", 0)))
    variables = program.environment.items()
    environment = {name: value for name, value in variables if not name.startswith("SSH_")}
    return replace(program, environment=environment)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines without their ends; a line longer than a chunk comes in pieces."""
    rest = b""
    while data := await stream.read(_CHUNK):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > _CHUNK:
            yield rest
            rest = b""
    if rest:
        yield rest

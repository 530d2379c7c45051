"""A worker's `startup-script`: what its metadata lets it do at each boot.

As Compute Engine's guest agent does it: a file that bash runs as root, its output in the journal of
`google-startup-scripts.service` (google_metadata_script_runner of GoogleCloudPlatform/guest-agent).
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
#: Where a worker keeps the journal of the unit; its stand-in for journalctl shows it.
JOURNAL = Path("etc", "startup-script.log")
_FILE = "startup-script"
_CHUNK = 64 * 1024
#: Bytes of the journal with which a boot still adds to it.
_LARGEST_JOURNAL = 1 << 20

_log = logging.getLogger(__name__)


async def run_startup_script(worker: EmulatedWorker, engine: Engine, script: str) -> None:
    """Run the script to its end on a worker that was started; its output goes to the journal."""
    file = worker.folder / "tmp" / _FILE
    file.unlink(missing_ok=True)
    # What a worker's programs left in its place, such as a link, is not written through.
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
    """Return what runs the file, in a root's environment that comes from no SSH connection."""
    command = f'exec /bin/bash -c "$TMPDIR/{_FILE}"'
    program = engine.program(worker, Login("root", command, ("", 0, "", 0)))
    kept = {key: each for key, each in program.environment.items() if not key.startswith("SSH_")}
    return replace(program, environment=kept)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines without their ends; one that is longer than a chunk comes in pieces."""
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

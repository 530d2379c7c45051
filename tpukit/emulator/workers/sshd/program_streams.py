"""Pipes and terminals of a worker's program, read and written without blocking the loop.

Output is read only on demand. A program therefore waits if its client does not read, as with sshd.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tpukit.emulator.workers.engines.engine import WorkerProgram

_CHUNK = 64 * 1024
_TIOCGPTN, _TIOCSPTLCK = 0x80045430, 0x40045431  #: include/uapi/asm-generic/ioctls.h of Linux

Size = tuple[int, int, int, int]  #: columns, rows, pixels wide, pixels high


class Descriptor:
    """This side of a pipe or terminal."""

    def __init__(self, number: int) -> None:
        os.set_blocking(number, False)
        self.number = number
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    async def read(self) -> bytes:
        """Return the next bytes, or b"" at the end, after a hang-up and after `close`."""
        while not self._closed:
            try:
                return os.read(self.number, _CHUNK)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await self._ready(loop.add_reader, loop.remove_reader)
            except OSError as error:
                if error.errno != errno.EIO:  # Linux reports a terminal's hang-up so
                    raise
                break
        return b""

    async def write(self, data: bytes) -> None:
        """Write everything; raise `BrokenPipeError` if the reader is gone."""
        view = memoryview(data)
        while view:
            if self._closed:
                raise BrokenPipeError
            try:
                view = view[os.write(self.number, view) :]
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await self._ready(loop.add_writer, loop.remove_writer)

    def close(self) -> None:
        """Close the descriptor, and end all waits for it."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.number)
        loop.remove_writer(self.number)
        os.close(self.number)
        for waiting in self._waiting:
            _wake(waiting)

    async def _ready(self, watch: Callable[..., None], unwatch: Callable[[int], object]) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        watch(self.number, _wake, waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            if not self._closed:
                unwatch(self.number)


@dataclass(frozen=True)
class RunningProgram:
    """A started program and this side of its standard streams.

    On a terminal `stdin` and `stdout` are the same descriptor and there is no `stderr`.
    """

    process: asyncio.subprocess.Process
    stdin: Descriptor
    stdout: Descriptor
    stderr: Descriptor | None
    inside: bool = False  #: True if the program is a child of `process`, inside the worker

    def send(self, name: str) -> None:
        """Send a signal, by an SSH name such as `TERM`, to the program's process group."""
        number = getattr(signal, f"SIG{name}", None)
        if number is not None and self.process.returncode is None:
            for leader in self._leaders():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(leader, number)

    def _leaders(self) -> list[int]:
        if not self.inside:
            return [self.process.pid]
        with contextlib.suppress(psutil.NoSuchProcess):
            return [child.pid for child in psutil.Process(self.process.pid).children()]
        return []

    def resize(self, size: Size) -> None:
        """Set the size of a terminal; the kernel sends the program SIGWINCH."""
        if self.stderr is None:
            with contextlib.suppress(OSError):
                _set_size(self.stdout.number, size)

    def hang_up(self) -> None:
        """Close this side: a terminal's session gets HUP, and writers to a pipe get PIPE."""
        for descriptor in (self.stdin, self.stdout, self.stderr):
            if descriptor:
                descriptor.close()


async def start_on_pipes(program: WorkerProgram) -> RunningProgram:
    """Start a program with three pipes."""
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = (os.pipe() for _ in range(3))
    try:
        process = await _start(program, stdin, stdout, stderr)
    except OSError:
        _close(to_stdin, from_stdout, from_stderr)
        raise
    finally:
        _close(stdin, stdout, stderr)
    streams = Descriptor(to_stdin), Descriptor(from_stdout), Descriptor(from_stderr)
    return RunningProgram(process, *streams, inside=bool(program.enter))


async def start_on_terminal(program: WorkerProgram, size: Size) -> RunningProgram:
    """Start a program on a new terminal of the given size."""
    ours, theirs, name = open_terminal(program.terminals)
    try:
        _set_size(ours, size)
        process = await _start(program.on_terminal(name), theirs, theirs, theirs)
    except OSError:
        _close(ours)
        raise
    finally:
        _close(theirs)
    terminal = Descriptor(ours)
    return RunningProgram(process, terminal, terminal, None, inside=bool(program.enter))


async def _start(
    program: WorkerProgram, stdin: int, stdout: int, stderr: int
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *program.words,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=program.directory,
        env=program.environment,
        start_new_session=True,
    )


def open_terminal(terminals: Path | None) -> tuple[int, int, str]:
    """Return both sides of a new terminal, and its name for programs.

    `terminals` is the worker's devpts file system, or None for this machine's.
    """
    if terminals is None:
        ours, theirs = os.openpty()
        return ours, theirs, os.ttyname(theirs)
    ours = os.open(terminals / "ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(ours, _TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("I", fcntl.ioctl(ours, _TIOCGPTN, bytes(4)))
    theirs = os.open(terminals / str(number), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    return ours, theirs, f"/dev/pts/{number}"


def _set_size(terminal: int, size: Size) -> None:
    columns, rows, width, height = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

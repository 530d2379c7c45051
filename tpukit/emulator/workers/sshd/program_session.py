"""One SSH session channel: a program's streams, signals and end, like sshd's."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping

import asyncssh

from tpukit.emulator.workers.engines.engine import SftpFolders, WorkerProgram
from tpukit.emulator.workers.sshd.program_streams import (
    Descriptor,
    RunningProgram,
    start_on_pipes,
    start_on_terminal,
)
from tpukit.emulator.workers.sshd.sftp_files import WorkerFiles
from tpukit.errors import TpukitError

_CHUNK = 64 * 1024
_SFTP_VERSION = 3  #: OpenSSH's version
#: The signals of RFC 4254 section 6.10; other names carry a domain, as in OpenSSH.
_SIGNALS = frozenset({"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT"})
_SIGNALS |= {"SEGV", "TERM", "USR1", "USR2"}
_FAILURES = (OSError, asyncssh.Error, asyncssh.BreakReceived)

#: Makes the program for a command (None: a shell), a terminal type and the client's language.
ProgramFor = Callable[[str | None, str | None, Mapping[str, str]], WorkerProgram]


class WorkerSession(asyncssh.SSHServerProcess[bytes]):
    """One session channel, which runs a program or serves files."""

    def __init__(self, program_for: ProgramFor, files: Callable[[], SftpFolders]) -> None:
        super().__init__(
            self._serve, lambda channel: WorkerFiles(channel, files()), _SFTP_VERSION, False
        )
        self._program_for = program_for
        self._running: RunningProgram | None = None

    def subsystem_requested(self, subsystem: str) -> bool:
        return subsystem == "sftp"

    # Signals and sizes go to the program at once, ahead of input that it has not read yet.

    def signal_received(self, signal: str) -> None:
        if self._running:
            self._running.send(signal)

    def break_received(self, msec: int) -> bool:
        return False

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._running:
            self._running.resize((width, height, pixwidth, pixheight))

    async def _serve(self, _: asyncssh.SSHServerProcess[bytes]) -> None:
        # Without a buffer, `drain` returns only when the client has taken everything.
        self.channel.set_write_buffer_limits(0)
        try:
            program = self._program_for(self.command, self.term_type, _language(self.env))
            self._running = await (
                start_on_pipes(program)
                if self.term_type is None
                else start_on_terminal(program, self.term_size)
            )
        except (OSError, TpukitError) as error:
            self.stderr.write(f"cannot start the session: {error}\n".encode())
            self.exit(1)
            return
        await self._attend(self._running)

    async def _attend(self, running: RunningProgram) -> None:
        """Carry the streams until the program ends or the client is gone."""
        feeding = asyncio.create_task(self._feed(running))
        ending = asyncio.create_task(self._end(running))
        losing = asyncio.create_task(self.channel.wait_closed())
        try:
            await asyncio.wait({ending, losing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (feeding, ending, losing):
                task.cancel()
            running.hang_up()
        if ending.done() and not ending.cancelled():
            self._report(ending.result())

    async def _end(self, running: RunningProgram) -> int:
        """Return the exit status when the program has ended and the client has all its output."""
        streams = [_carry(running.stdout, self.stdout)]
        if running.stderr:
            streams.append(_carry(running.stderr, self.stderr))
        await asyncio.gather(*streams)
        return await running.process.wait()

    async def _feed(self, running: RunningProgram) -> None:
        with contextlib.suppress(*_FAILURES):
            while data := await self.stdin.read(_CHUNK):
                # If the program closed its input, drop the rest, so that the client can go on.
                with contextlib.suppress(OSError):
                    await running.stdin.write(data)
        if running.stderr:  # the end of input on a terminal is a character, not a closed terminal
            running.stdin.close()

    def _report(self, status: int) -> None:
        with contextlib.suppress(*_FAILURES):
            if status >= 0:
                self.exit(status)
            else:
                self.exit_with_signal(_signal_name(-status))


async def _carry(source: Descriptor, target: asyncssh.SSHWriter[bytes]) -> None:
    """Send the program's output until it closes the stream or the client is gone."""
    with contextlib.suppress(*_FAILURES):
        while data := await source.read():
            target.write(data)
            await target.drain()
    source.close()


def _language(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name == "LANG" or name.startswith("LC_")
    }


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        name = str(number)
    return name if name in _SIGNALS else f"{name}@openssh.com"

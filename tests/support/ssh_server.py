"""A real SSH server on loopback for the tests: commands are real processes of this account."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncssh

from support.measured_python import measured_path
from tpukit.ssh.keys import KeyPair
from tpukit.ssh.target import Target

#: The name of the tasks that start a process.
_STARTING = "starting"


class Server:
    """One SSH server in a thread of its own. `offered` lists the keys that clients offered."""

    def __init__(self, home: Path, host_key: asyncssh.SSHKey | None = None, port: int = 0) -> None:
        self.home = home
        self.host_key = host_key or asyncssh.generate_private_key("ssh-ed25519")
        self.accepted: set[str] = set()
        self.offered: list[str] = []
        self.commands: list[str] = []
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.ciphers: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.received = 0  #: bytes of standard input, of all commands
        self.tunnels = False  #: whether connections to this machine's ports are let through
        self.path = f"{measured_path()}/usr/local/bin:/usr/bin:/bin"
        self.variables: dict[str, str] = {}
        #: Called as soon as a command has started.
        self.on_command: Callable[[], object] = lambda: None
        #: Given the number of a command from 1: whether its answer is cut off half-way.
        self.loses: Callable[[int], bool] = lambda number: False
        #: The number of a command whose status is told before its output, as RFC 4254 allows.
        self.tells_early = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._acceptor = self._await(self._listen(port))
        self.port: int = self._acceptor.get_port()

    @property
    def public(self) -> str:
        return " ".join(self.host_key.export_public_key().decode().split()[:2])

    def target(self, *host_keys: str, user: str = "tester") -> Target:
        keys = host_keys or (self.public,)
        return Target("demo worker 0", 0, "127.0.0.1", self.port, user, keys)

    def accept(self, key: KeyPair) -> Server:
        self.accepted.add(" ".join(key.public.split()[:2]))
        return self

    def own(self, path: Path) -> Path:
        """Let the worker's user own what a test has made: it is who runs the test."""
        return path

    def wait_until(self, found: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for something that a process on the worker brings about."""
        give_up = time.monotonic() + seconds
        while not found():
            assert time.monotonic() < give_up, "it did not come about"
            time.sleep(0.01)

    def cut(self) -> None:
        """Break every connection, as a router that forgot them would."""
        connections, self.connections = self.connections, []
        for connection in connections:
            self._loop.call_soon_threadsafe(connection.abort)

    def close(self) -> None:
        self.cut()
        self._await(_end(self._acceptor))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _listen(self, port: int) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            port,
            server_factory=lambda: _Session(self),
            server_host_keys=[self.host_key],
            process_factory=self._serve,
            encoding=None,
            line_editor=False,
        )

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        command = process.command or "exec sh -i"
        self.commands.append(command)
        number = len(self.commands)
        starting = asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            start_new_session=True,
            env={"HOME": str(self.home), "PATH": self.path, **self.variables},
        )
        child = await asyncio.create_task(starting, name=_STARTING)
        feeding = asyncio.ensure_future(self._feed(process.stdin, child.stdin))
        try:
            await self._answer(process, child, number)
        finally:
            feeding.cancel()
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            # Output that nobody reads any more would hold up the wait for ever.
            child._transport.close()  # type: ignore[attr-defined]
            await child.wait()

    async def _answer(
        self,
        process: asyncssh.SSHServerProcess[bytes],
        child: asyncio.subprocess.Process,
        number: int,
    ) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        self.on_command()
        if self.loses(number):
            output = await child.stdout.read()
            process.stdout.write(output[: len(output) // 2])
            await asyncio.sleep(0)
            process.channel.get_connection().abort()
            return
        if number == self.tells_early:
            process.channel._send_request(b"exit-status", asyncssh.packet.UInt32(0))
        await asyncio.gather(
            _copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr)
        )
        status = await child.wait()
        if status < 0:
            process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:
            process.exit(status)

    async def _feed(self, source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter) -> None:
        with suppress(asyncssh.Error, OSError):
            while not source.at_eof():
                try:
                    data = await source.read(1 << 16)
                    self.received += len(data)
                    sink.write(data)
                    await sink.drain()
                except asyncssh.TerminalSizeChanged as change:
                    self.sizes.append((change.width, change.height))
        sink.close()


class _Session(asyncssh.SSHServer):
    def __init__(self, server: Server) -> None:
        self._server = server

    def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
        self._server.connections.append(connection)
        self._connection = connection

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        if not self._server.tunnels:  # as OpenSSH refuses it
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "no tunnels")
        return True

    def begin_auth(self, username: str) -> bool:
        self._server.ciphers.append(self._connection.get_extra_info("send_cipher"))
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        line = " ".join(key.export_public_key().decode().split()[:2])
        self._server.offered.append(line)
        return line in self._server.accepted


async def _copy(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    with suppress(asyncssh.Error, OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()


async def _end(acceptor: asyncssh.SSHAcceptor) -> None:
    """Stop listening, and end every command that still runs.

    A start of a process with pipes that is cancelled may wait for ever in asyncio
    (`BaseSubprocessTransport._wait`).
    """
    acceptor.close()
    while starting := [task for task in asyncio.all_tasks() if task.get_name() == _STARTING]:
        await asyncio.gather(*starting, return_exceptions=True)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main(home: str, accepted: str) -> None:
    """Serve as a process of its own: prints its port and public key, ends with standard input."""
    server = Server(Path(home))
    server.accepted.add(accepted)
    print(server.port, server.public, flush=True)  # noqa: T201
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A worker's SSH server: its listener, its connections, and whom it lets in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Mapping
from typing import Any

import asyncssh

from tpukit.emulator.engine import EmulatedWorker, Engine, Login, Program
from tpukit.emulator.gate import Gate
from tpukit.emulator.sessions import WorkerSession
from tpukit.emulator.workers import WorkerOracle

_SSH_PORT = 22  #: what firewall rules speak of, wherever the emulated server listens
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LOGIN_SECONDS = 60

_log = logging.getLogger(__name__)


class SshServer:
    """Serves SSH for one worker, on the loop that runs it."""

    def __init__(
        self, worker: EmulatedWorker, engine: Engine, oracle: WorkerOracle, metadata_address: str
    ) -> None:
        self.worker = worker
        self.engine = engine
        self.oracle = oracle
        self.metadata_address = metadata_address
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._gate = Gate(lambda source: oracle.admits(worker.facts.node, source, _SSH_PORT))
        self._tasks: set[asyncio.Task[None]] = set()
        self._options = asyncssh.SSHServerConnectionOptions(
            server_factory=lambda: _Connection(self),
            server_host_keys=[asyncssh.import_private_key(worker.record.host_private_key)],
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            login_timeout=_LOGIN_SECONDS,
        )

    def start(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket from now on."""
        listener.setblocking(False)
        listener.listen(128)
        self._run(self._accept(listener))

    async def stop(self) -> None:
        """Close the listener and cut every connection."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, (source, *_) = await loop.sock_accept(listener)
                except OSError as error:  # out of descriptors: connections will end
                    _log.warning("worker %s: %s", self.worker.record.hostname, error)
                    await asyncio.sleep(1)
                else:
                    self._run(self._serve(connection, source))

    async def _serve(self, connection: socket.socket, source: str) -> None:
        with connection:
            if not await self._gate.admit(connection, source):
                return
            # A connection that fails or is refused is its client's affair.
            with contextlib.suppress(OSError, asyncssh.Error):
                served = await asyncssh.run_server(connection, options=self._options)
                await served.wait_closed()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Connection(asyncssh.SSHServer):
    """One client: public keys of the node's metadata, sessions, and tunnels within the slice."""

    def __init__(self, server: SshServer) -> None:
        self._server = server
        self._worker = server.worker
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection:
            self._server.connections.discard(self._connection)

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Ask the service again for every key, as keys in metadata come and go."""
        node = self._worker.facts.node
        known = await asyncio.to_thread(self._server.oracle.authorized_keys, node)
        offered = key.export_public_key().decode().split()[:2]
        return any(user == username and line.split()[:2] == offered for user, line in known)

    def session_requested(self) -> WorkerSession:
        engine, worker = self._server.engine, self._worker
        return WorkerSession(self._program, lambda: engine.home(worker, self._user))

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        return dest_host in _LOOPBACK or dest_host in self._worker.facts.addresses

    @property
    def _user(self) -> str:
        assert self._connection is not None
        return str(self._connection.get_extra_info("username"))

    def _program(
        self, command: str | None, terminal: str | None, language: Mapping[str, str]
    ) -> Program:
        assert self._connection is not None
        client, client_port = self._connection.get_extra_info("peername")[:2]
        address, port = self._connection.get_extra_info("sockname")[:2]
        login = Login(self._user, command, (client, client_port, address, port), terminal, language)
        return self._server.engine.program(self._worker, login, self._server.metadata_address)

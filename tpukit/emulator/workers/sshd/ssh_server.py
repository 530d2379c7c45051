"""A worker's SSH server: its listener, its connections, authentication, tunnels."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cached_property
from typing import Any

import asyncssh
from asyncssh.forward import SSHForwarder

from tpukit.emulator.workers.addresses import listening
from tpukit.emulator.workers.engines.engine import (
    BootingEngine,
    EmulatedWorker,
    Engine,
    Login,
    WorkerProgram,
)
from tpukit.emulator.workers.sshd.fault_effects import FaultEffects
from tpukit.emulator.workers.sshd.link import LimitedLink, PacketFilter
from tpukit.emulator.workers.sshd.program_session import WorkerSession
from tpukit.emulator.workers.worker_host import WorkerOracle
from tpukit.errors import TpukitError

_SSH_PORT = 22  #: the port that firewall rules name, whatever port the emulated server has
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_LOGIN_SECONDS = 60

Address = tuple[str, int]

_log = logging.getLogger(__name__)


class SshServer:
    """Serves SSH for one worker on the running loop; every login awaits `start_worker`."""

    def __init__(
        self,
        worker: EmulatedWorker,
        engine: Engine,
        oracle: WorkerOracle,
        start_worker: Callable[[], Awaitable[None]],
    ) -> None:
        self.worker = worker
        self.engine = engine
        self.oracle = oracle
        self.start_worker = start_worker
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.sockets: set[socket.socket] = set()
        self.listener: socket.socket | None = None
        self.fault_effects = FaultEffects(self, oracle.worker_faults)
        self._packet_filter = PacketFilter(
            lambda source: oracle.admits(worker.facts.node, source, _SSH_PORT)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._from_workers: asyncio.Task[None] | None = None

    def start(self, listener: socket.socket) -> None:
        """Accept connections on a bound socket."""
        listener.setblocking(False)
        listener.listen(128)
        self.listener = listener
        self._accepting = self._run(self._accept(listener))

    def accept_from_workers(self, listener: socket.socket) -> None:
        """Accept connections on a socket of the worker's own network too."""
        if self._from_workers:
            self._from_workers.cancel()
        listener.setblocking(False)
        self._from_workers = self._run(self._accept(listener))

    def open(self) -> None:
        """Listen again on the worker's address and port."""
        self.start(listening(self.worker.record.address, self.worker.record.port))

    def shut(self) -> None:
        """Stop listening, so that clients are refused."""
        if self.listener and self._accepting:
            self._accepting.cancel()
            self.listener.close()
            self.listener = None

    async def stop(self) -> None:
        """Close the listener and cut every connection."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Made at the first connection: most workers of a large slice never have one.

    @cached_property
    def _host_key(self) -> asyncssh.SSHKey:
        return asyncssh.import_private_key(self.worker.record.host_private_key)

    @cached_property
    def _options(self) -> asyncssh.SSHServerConnectionOptions:
        return asyncssh.SSHServerConnectionOptions(
            server_host_keys=[self._host_key],
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

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    connection, (source, *_) = await loop.sock_accept(listener)
                except OSError as error:  # no free descriptors: wait until connections end
                    _log.warning("worker %s: %s", self.worker.record.hostname, error)
                    await asyncio.sleep(1)
                else:
                    self._run(self._serve(connection, source))

    async def _serve(self, connection: socket.socket, source: str) -> None:
        self.sockets.add(connection)
        try:
            with connection:
                if await self._packet_filter.admit(connection, source):
                    await self.fault_effects.wait_while_frozen()
                    await self._forward_or_serve(connection)
        finally:
            self.sockets.discard(connection)

    async def _forward_or_serve(self, connection: socket.socket) -> None:
        engine = self.engine
        # With a swapped host key, this server answers in place of the worker's own.
        if isinstance(engine, BootingEngine) and not self.fault_effects.in_force(
            "swapped-host-key"
        ):
            await self._forward(connection, engine)
        else:
            await self._serve_ssh(connection)

    async def _forward(self, connection: socket.socket, engine: BootingEngine) -> None:
        """Carry a connection to the worker's own SSH server, and give it the current keys."""
        await self.start_worker()
        keys = await asyncio.to_thread(self.oracle.authorized_keys, self.worker.facts.node)
        try:
            own = await asyncio.to_thread(engine.open_ssh, self.worker, keys)
        except (OSError, TpukitError) as error:  # the client's connection ends
            _log.warning("worker %s: %s", self.worker.record.hostname, error)
            return
        near, link = self.fault_effects.through_link(connection)
        if link:
            self._run(link.run())
        await LimitedLink(near, own, rate=0, most=0).run()

    async def _serve_ssh(self, connection: socket.socket) -> None:
        # The client notices by itself that its connection failed.
        with contextlib.suppress(OSError, asyncssh.Error):
            ends = connection.getpeername()[:2], connection.getsockname()[:2]
            near, link = self.fault_effects.through_link(connection)
            if link:
                self._run(link.run())
            served = await asyncssh.run_server(
                near,
                options=self._options,
                server_factory=lambda: _Connection(self, ends),
                server_host_keys=[self.fault_effects.host_key(self._host_key)],
            )
            await served.wait_closed()

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Connection(asyncssh.SSHServer):
    """One client's connection: keys of the metadata, sessions, and tunnels in the network."""

    def __init__(self, server: SshServer, ends: tuple[Address, Address]) -> None:
        self._server = server
        self._ends = ends
        self._worker = server.worker
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection:
            self._server.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        if self._connection and (banner := self._server.fault_effects.banner()):
            self._connection.send_auth_banner(banner)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Return True if the metadata has the key now, and start the worker."""
        if self._server.fault_effects.take("late-key"):
            return False
        node = self._worker.facts.node
        known = await asyncio.to_thread(self._server.oracle.authorized_keys, node)
        offered = key.export_public_key().decode().split()[:2]
        admitted = any(user == username and line.split()[:2] == offered for user, line in known)
        if admitted:
            await self._server.start_worker()
        return admitted

    def session_requested(self) -> WorkerSession:
        engine, worker = self._server.engine, self._worker
        return WorkerSession(self._program, lambda: engine.files(worker, self._user))

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Coroutine[Any, Any, asyncssh.SSHTCPSession[bytes]]:
        return self._tunnel(dest_host, dest_port)

    async def _tunnel(self, host: str, port: int) -> Any:
        engine, oracle, worker = self._server.engine, self._server.oracle, self._worker
        # Allow only the worker's own network: the rest of this machine's network is not in it.
        near = await asyncio.to_thread(oracle.neighbours, worker.facts.node)
        if host not in (*_LOOPBACK, *near):
            why = "an emulated worker reaches only itself and the workers of its network"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, why)
        try:
            far = await asyncio.to_thread(engine.connect, worker, host, port)
            far.setblocking(False)
            loop = asyncio.get_running_loop()
            _, forwarder = await loop.create_connection(SSHForwarder, sock=far)
        except OSError as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from None
        return SSHForwarder(forwarder)

    @property
    def _user(self) -> str:
        assert self._connection is not None
        return str(self._connection.get_extra_info("username"))

    def _program(
        self, command: str | None, terminal: str | None, language: Mapping[str, str]
    ) -> WorkerProgram:
        (client, client_port), (address, port) = self._ends
        command = self._server.fault_effects.command(command)
        login = Login(self._user, command, (client, client_port, address, port), terminal, language)
        return self._server.engine.program(self._worker, login)

"""The network between a client and a worker: firewall, dropped packets, limited rate, resets."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Callable

#: include/uapi/asm-generic/socket.h of Linux; Python's `socket` has no names for them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
#: A classic BPF program of one instruction, "accept no byte": Documentation/networking/filter.rst.
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)
_CHUNK = 64 * 1024
#: Seconds between the SYN packets of Linux (net.ipv4.tcp_syn_retries = 6): 127 s in all.
_RETRANSMISSIONS = (1, 2, 4, 8, 16, 32, 64)
_CLOSE_WAIT = 8  #: tcp_state of a connection whose client left: include/net/tcp_states.h of Linux
_CAN_DROP = sys.platform == "linux"


def drop_packets(end: socket.socket) -> None:
    """Let Linux drop every packet for a socket: its peer gets no answer, not even a reset."""
    if _CAN_DROP:
        program = ctypes.create_string_buffer(_DROP)
        value = struct.pack("HL", 1, ctypes.addressof(program))
        end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)


def deliver_packets(end: socket.socket) -> None:
    """Let packets through again; those that were dropped come again, as TCP repeats them."""
    if _CAN_DROP:
        with contextlib.suppress(OSError):  # no filter was attached
            end.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def reset_on_close(end: socket.socket) -> None:
    """Let the closing of a socket send RST."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class LimitedLink:
    """Carries bytes between two sockets at `rate` bytes a second (0: at once), `most` in all.

    After `most` bytes (0: never) the connection is reset.
    """

    def __init__(self, client: socket.socket, server: socket.socket, rate: int, most: int) -> None:
        self._client = client
        self._server = server
        self._rate = rate
        self._most = most
        self._left = most

    async def run(self) -> None:
        """Carry until one side ends or the limit is reached; then close both sockets."""
        for end in (self._client, self._server):
            end.setblocking(False)
        there = asyncio.create_task(self._carry(self._client, self._server))
        back = asyncio.create_task(self._carry(self._server, self._client))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            # What is on its way still arrives, unless the limit was reached.
            if not self._is_cut:
                await asyncio.wait({there, back}, timeout=1)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            if self._is_cut:
                reset_on_close(self._client)
            self._client.close()
            self._server.close()

    @property
    def _is_cut(self) -> bool:
        return self._most > 0 and self._left <= 0

    async def _carry(self, source: socket.socket, target: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(source, self._chunk()):
                await loop.sock_sendall(target, data)
                self._left -= len(data)
                if self._is_cut:
                    return
                if self._rate:
                    await asyncio.sleep(len(data) / self._rate)

    def _chunk(self) -> int:
        """Return how many bytes may be taken at once: a tenth of a second's, none past the cut."""
        size = min(_CHUNK, max(1, self._rate // 10)) if self._rate else _CHUNK
        return min(size, max(1, self._left)) if self._most else size


class PacketFilter:
    """The firewall in front of a worker, as far as a process without privilege can be one.

    A firewall drops the first packet and the client's kernel repeats it. Here the connection exists
    already, so it is held without an answer and checked again at the kernel's own intervals: the
    client waits until it gives up, or gets through once a rule admits it. At most `capacity`
    connections are held.
    """

    def __init__(self, admits: Callable[[str], bool], capacity: int = 64) -> None:
        self._admits = admits
        self._free = capacity

    async def admit(self, connection: socket.socket, source: str) -> bool:
        """Return whether the connection is admitted; `admits` is called in a thread of its own."""
        if await asyncio.to_thread(self._admits, source):
            return True
        if not self._free:
            return False
        self._free -= 1
        try:
            return await self._hold(connection, source)
        finally:
            self._free += 1

    async def _hold(self, connection: socket.socket, source: str) -> bool:
        for pause in _RETRANSMISSIONS:
            await asyncio.sleep(pause)
            if _abandoned(connection):
                return False
            if await asyncio.to_thread(self._admits, source):
                return True
        return False


def _abandoned(connection: socket.socket) -> bool:
    """Return whether the client left; only Linux knows before the connection is read."""
    information = getattr(socket, "TCP_INFO", None)
    if information is None:
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, information, 1)[0] == _CLOSE_WAIT

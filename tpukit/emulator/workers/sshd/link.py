"""The emulated network between client and worker: firewall, dropped packets, rate, resets."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Callable
from functools import cache

#: include/uapi/asm-generic/socket.h of Linux; Python's `socket` has no names for them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
#: A classic BPF program of one instruction, "accept no byte": Documentation/networking/filter.rst.
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)
_CHUNK = 64 * 1024
#: Seconds between Linux's SYN packets (net.ipv4.tcp_syn_retries = 6), 127 s in total.
_RETRANSMISSIONS = (1, 2, 4, 8, 16, 32, 64)
_CLOSE_WAIT = 8  #: tcp_state when the client has left: include/net/tcp_states.h of Linux


@cache
def can_drop_packets() -> bool:
    """Return True on Linux, if the kernel takes filters from us: some take them from root alone."""
    with contextlib.suppress(OSError), socket.socket() as end:
        _attach(end)
        return True
    return False


def drop_packets(end: socket.socket) -> None:
    """Drop every packet for a socket, if we can: its peer gets no answer, not even a reset."""
    if can_drop_packets():
        _attach(end)


def _attach(end: socket.socket) -> None:
    if sys.platform != "linux":
        raise OSError("only Linux has these filters")
    program = ctypes.create_string_buffer(_DROP)
    value = struct.pack("HL", 1, ctypes.addressof(program))
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)


def deliver_packets(end: socket.socket) -> None:
    """Deliver packets again; TCP then repeats the dropped ones."""
    if can_drop_packets():
        with contextlib.suppress(OSError):  # no filter was attached
            end.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def reset_on_close(end: socket.socket) -> None:
    """Make the close of a socket send RST."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class LimitedLink:
    """Carries bytes between two sockets at `rate` bytes a second (0: without a limit).

    After `most` bytes in total (0: never) it resets the connection.
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
            # Unless the limit was reached, bytes on their way still arrive.
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
        """Return the number of bytes to read at once: 0.1 s of the rate, and none past the cut."""
        size = min(_CHUNK, max(1, self._rate // 10)) if self._rate else _CHUNK
        return min(size, max(1, self._left)) if self._most else size


class PacketFilter:
    """A firewall in front of a worker that needs no privileges.

    A real firewall drops the first packet, and the client's kernel repeats it. This filter holds
    the connection without an answer, and checks the rules again at the kernel's intervals, until a
    rule admits it or the client gives up. It holds at most `capacity` connections.
    """

    def __init__(self, admits: Callable[[str], bool], capacity: int = 64) -> None:
        self._admits = admits
        self._free = capacity

    async def admit(self, connection: socket.socket, source: str) -> bool:
        """Return True if a rule admits the connection, now or later; ask `admits` in a thread."""
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
    """Return True if the client has left; only Linux knows this without reading."""
    information = getattr(socket, "TCP_INFO", None)
    if information is None:
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, information, 1)[0] == _CLOSE_WAIT

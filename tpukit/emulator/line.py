"""The line between a client and a worker, spoiled: packets dropped, bytes held up, cut."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import sys
from typing import Protocol

#: include/uapi/asm-generic/socket.h of Linux; Python's `socket` has no names for them.
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
#: A classic BPF program of one instruction, "accept no byte": Documentation/networking/filter.rst.
_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)
_CHUNK = 64 * 1024
_CAN_MUTE = sys.platform == "linux"


class Muteable(Protocol):
    """A socket, or asyncio's view of one."""

    def setsockopt(self, level: int, option: int, value: bytes | int, /) -> None: ...


def mute(end: Muteable) -> bool:
    """Let the kernel drop every packet for a socket: its peer hears nothing, not even a refusal.

    Returns whether that was done: only Linux can.
    """
    if not _CAN_MUTE:
        return False
    program = ctypes.create_string_buffer(_DROP)
    value = struct.pack("HL", 1, ctypes.addressof(program))
    end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)
    return True


def unmute(end: Muteable) -> None:
    """Let packets through again; those that were dropped come again, as TCP repeats them."""
    if _CAN_MUTE:
        with contextlib.suppress(OSError):  # no filter was attached
            end.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


def reset_on_close(end: Muteable) -> None:
    """Let the closing of a socket send RST."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Relay:
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
        """Carry until one side ends or the line is cut; then close both sockets."""
        for end in (self._client, self._server):
            end.setblocking(False)
        there = asyncio.create_task(self._carry(self._client, self._server))
        back = asyncio.create_task(self._carry(self._server, self._client))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            # What is on its way still arrives, unless the line was cut.
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

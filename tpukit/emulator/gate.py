"""The firewall in front of a worker, as far as a process without privilege can be one.

A firewall drops the first packet and the client's kernel repeats it. Here the connection exists
already, so it is left without a word and looked at again at the kernel's own intervals: the client
waits until it gives up, or gets through once a rule lets it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

#: Seconds between the SYN packets of Linux (net.ipv4.tcp_syn_retries = 6): 127 s in all.
_RETRANSMISSIONS = (1, 2, 4, 8, 16, 32, 64)
_CLOSE_WAIT = 8  #: tcp_state of a connection whose client left: include/net/tcp_states.h of Linux


class Gate:
    """Admits connections, holding at most `capacity` of those that are not admitted."""

    def __init__(self, admits: Callable[[str], bool], capacity: int = 64) -> None:
        self._admits = admits
        self._free = capacity

    async def admit(self, connection: socket.socket, source: str) -> bool:
        """Return whether the connection may speak; `admits` is asked in a thread of its own."""
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
    """Return whether the client left; elsewhere than on Linux nobody can tell before it is read."""
    information = getattr(socket, "TCP_INFO", None)
    if information is None:
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, information, 1)[0] == _CLOSE_WAIT

"""The account of the process at the other end of a connection within this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

#: Fields of proc_net_tcp: two addresses, in hexadecimal and machine byte order, and the account.
_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _ACCOUNT = 1, 2, 7

Address = tuple[str, int]


def is_of_this_account(peer: Address, own: Address) -> bool:
    """Return True if a loopback connection from `peer` to `own` belongs to this account or root.

    Return False for loopback connections on systems other than Linux, which do not show the
    account. Return True for all other connections: they come from a worker's own network.
    """
    if not ipaddress.ip_address(peer[0]).is_loopback:
        return True
    if sys.platform != "linux":
        return False
    wanted = [_hexadecimal(peer), _hexadecimal(own)]
    rows = (line.split() for line in _TABLE.read_text().splitlines()[1:])
    accounts = (int(row[_ACCOUNT]) for row in rows if [row[_LOCAL], row[_REMOTE]] == wanted)
    return next(accounts, None) in (0, os.geteuid())


def _hexadecimal(address: Address) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"

"""Whose process is at the other end of a connection within this machine."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

#: proc_net_tcp of Linux: addresses in hexadecimal, in this machine's byte order, and the account.
_TABLE = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _ACCOUNT = 1, 2, 7

Address = tuple[str, int]


def is_of_this_account(peer: Address, own: Address) -> bool:
    """Tell whether a loopback connection from `peer` to `own` is of this account, or of root.

    Where that cannot be told (elsewhere than on Linux), it is not. One that comes from no loopback
    address is from a network of its own, where nobody else is.
    """
    if not ipaddress.ip_address(peer[0]).is_loopback:
        return True
    if sys.platform != "linux":
        return False
    wanted = [_hexadecimal(peer), _hexadecimal(own)]
    rows = (line.split() for line in _TABLE.read_text().splitlines()[1:])
    found = (int(row[_ACCOUNT]) for row in rows if [row[_LOCAL], row[_REMOTE]] == wanted)
    return next(found, None) in (0, os.geteuid())


def _hexadecimal(address: Address) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"

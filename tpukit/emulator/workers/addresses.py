"""Addresses of emulated workers: local to this machine, and never shared by two emulators."""

from __future__ import annotations

import contextlib
import errno
import random
import socket

from tpukit.errors import TpukitError

#: The service port of `networkEndpoints`. A UDP socket on it reserves an address while the emulator
#: lives. Unlike a TCP socket, it leaves nothing behind when it is closed.
_RESERVATION_PORT = 8470
_PORTS = (22, 2222, 0)
#: No worker has this address, so a server that answers there listens on all addresses.
_UNUSED = "127.77.0.1"
_TRIES = 200
_COUNT = 254 * 254
#: The address of all workers on a machine without other addresses.
SHARED = "127.0.0.1"


class AddressBook:
    """The addresses that this emulator has reserved, in 127.77.0.0/16 if possible.

    If the machine has only 127.0.0.1 (macOS without aliases), every worker gets that address and
    its own port.
    """

    def __init__(self, randomness: random.Random) -> None:
        self._randomness = randomness
        self._reservations: dict[str, tuple[str, socket.socket]] = {}  #: address: holder, socket

    def take(self, holder: str, count: int) -> list[str]:
        """Reserve `count` addresses until `release(holder)`, consecutive ones if they are free."""
        if not _bindable(_UNUSED):
            return [SHARED] * count
        first = self._randomness.randrange(_COUNT - count)
        return [self._take_one(holder, number) for number in range(first, first + count)]

    def keep(self, holder: str, address: str) -> None:
        """Reserve an earlier address of a worker; raise `OSError` if it is taken."""
        owner, _ = self._reservations.get(address, (holder, None))
        if owner != holder:
            raise OSError(errno.EADDRINUSE, f"{owner} has it")
        if address not in self._reservations and address != SHARED:
            reservation = _bound(socket.SOCK_DGRAM, address, _RESERVATION_PORT)
            self._reservations[address] = holder, reservation

    def release(self, holder: str) -> list[str]:
        """Release the holder's addresses, and return them."""
        held = [a for a, (owner, _) in self._reservations.items() if owner == holder]
        for address in held:
            self._reservations.pop(address)[1].close()
        return held

    def close(self) -> None:
        """Release every address."""
        for _, reservation in self._reservations.values():
            reservation.close()
        self._reservations.clear()

    def _take_one(self, holder: str, number: int) -> str:
        for _ in range(_TRIES):
            address = _address(number)
            if address not in self._reservations:
                with contextlib.suppress(OSError):
                    self.keep(holder, address)
                    return address
            number = self._randomness.randrange(_COUNT)
        raise TpukitError("no free address is left for a worker", why="127.77.0.0/16 is in use")


def free_port(address: str) -> int:
    """Return a port for an SSH server: 22 if this account may bind it, else a higher one."""
    for port in _PORTS:
        with contextlib.suppress(OSError), listening(address, port) as bound:
            return int(bound.getsockname()[1])
    raise TpukitError(f"no port of {address} is free")


def foreign_ssh(port: int = 22) -> bool:
    """Return True if this machine's own SSH server answers on the workers' addresses."""
    try:
        with socket.create_connection((_UNUSED, port), 1.0):
            return True
    except OSError:
        return False


def listening(address: str, port: int) -> socket.socket:
    """Return a TCP socket bound to the address, even if closed connections still occupy it."""
    return _bound(socket.SOCK_STREAM, address, port)


def _address(number: int) -> str:
    third, fourth = divmod(number, 254)
    return f"127.77.{third + 1}.{fourth + 1}"


def _bindable(address: str) -> bool:
    try:
        _bound(socket.SOCK_DGRAM, address, 0).close()
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return False
    return True


def _bound(kind: socket.SocketKind, address: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, kind)
    try:
        if kind is socket.SOCK_STREAM:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound

"""Network namespaces that belong to this process, invisible from the machine's network.

A network lives as long as its descriptor is open or a process runs in it. Then its interfaces,
addresses and ports disappear too.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tpukit.errors import TpukitError
from tpukit.text import one_line

_CLONE_NEWNET = 0x40000000  #: include/uapi/linux/sched.h
_SECONDS = 30.0

_Answer = TypeVar("_Answer")


class NetworkNamespace:
    """One network namespace."""

    def __init__(self) -> None:
        self.descriptor = _in_thread(_unshared)

    @property
    def path(self) -> str:
        """The path of the network for child processes that inherit the descriptor."""
        return f"/proc/self/fd/{self.descriptor}"

    def inside(self, act: Callable[[], _Answer]) -> _Answer:
        """Call `act` in a thread of this network; sockets that it makes stay in the network."""
        return _in_thread(lambda: self._act(act))

    def configure(self, lines: Sequence[str], others: Sequence[NetworkNamespace] = ()) -> None:
        """Run commands of ip(8) in this network; they may contain the paths of `others`."""
        descriptors = [other.descriptor for other in others]
        self.inside(lambda: _ip("\n".join(lines), descriptors))

    def listening(self, address: str, port: int) -> socket.socket:
        """Return a listening TCP socket of this network."""
        return self.inside(lambda: socket.create_server((address, port)))

    def close(self) -> None:
        os.close(self.descriptor)

    def _act(self, act: Callable[[], _Answer]) -> _Answer:
        _check(_libc().setns(self.descriptor, _CLONE_NEWNET))
        return act()


class Bridge:
    """An isolated network with a bridge (ip-link(8)) that connects the networks of workers."""

    def __init__(self) -> None:
        self._network = NetworkNamespace()
        self._count = 0
        self._counting = threading.Lock()
        self._network.configure(["link add bridge type bridge", "link set bridge up"])

    def attach(self, network: NetworkNamespace, addresses: Sequence[str], outside: str) -> None:
        """Give a network the address `outside` on the bridge, and private `addresses`.

        `outside` is in 127.0.0.0/8, so that a worker has the same address for its neighbours and
        for this machine. Linux routes such addresses between interfaces if route_localnet is set
        (Documentation/networking/ip-sysctl.rst of Linux).
        """
        with self._counting:
            self._count += 1
            port = f"worker{self._count}"
        self._network.configure(
            [
                f"link add {port} type veth peer name eth0 netns {network.path}",
                f"link set {port} master bridge up",
            ],
            [network],
        )
        network.inside(_route_localnet)
        network.configure(
            [
                "link set lo up",
                # With 127.0.0.1/8 on lo, no packet would reach the bridge.
                "addr del 127.0.0.1/8 dev lo",
                "addr add 127.0.0.1/24 scope host dev lo",
                *(f"addr add {address}/32 scope host dev lo" for address in addresses),
                f"addr add {outside}/16 scope global dev eth0",
                "link set eth0 up",
            ]
        )

    def close(self) -> None:
        self._network.close()


def _unshared() -> int:
    _check(_libc().unshare(_CLONE_NEWNET))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _route_localnet() -> None:
    Path("/proc/sys/net/ipv4/conf/all/route_localnet").write_text("1")


def _ip(lines: str, descriptors: Sequence[int]) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"],
        input=lines + "\n",
        pass_fds=descriptors,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise TpukitError("a worker's network cannot be made", why=one_line(done.stderr))


def _in_thread(act: Callable[[], _Answer]) -> _Answer:
    """Call `act` in a new thread, because a change of network lasts until the thread ends."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(act).result()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

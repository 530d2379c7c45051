"""A framework on N workers by `tpukit provision`, and by `pip install` on each.

Cold and again: seconds, and the bytes that came from the package index, counted in a proxy that all
of it goes through. The workers share this machine's processors; in the cloud each has its own.
With a shared cache the workers, which all begin at once, still ask the index for almost everything
each; its time tells what a cache that is shared while it fills is worth.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress

from measure import emulator, tpukit

from tpukit.provision.recipes import Recipe

TYPES = {1: "v3-8", 4: "v3-32", 16: "v3-128"}
#: Seconds that the second run may take on four workers.
MOST_AGAIN = 2.0
#: `tpukit provision` without any cache and with one for all workers, and pip on each.
CLIENTS = ("tpukit", "shared", "pip")
_LINE = "{:<8}{:>8}{:>9}{:>8}{:>9}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", default="jax")
    parser.add_argument("--workers", default="1,4,16", help="of 1, 4 and 16")
    parser.add_argument("--clients", default=",".join(CLIENTS), help=f"of {', '.join(CLIENTS)}")


def run(options: argparse.Namespace) -> int:
    slow = False
    # Row by row, all of one number together: a measurement that is cut short is not for nothing.
    print(_LINE.format("CLIENT", "WORKERS", "COLD s", "MB", "AGAIN s"), flush=True)
    for count in (int(word) for word in options.workers.split(",")):
        for client in options.clients.split(","):
            cold, megabytes, again = _measured(client, count, options.recipe)
            figures = f"{cold:.1f}", f"{megabytes:.0f}", f"{again:.1f}"
            print(_LINE.format(client, count, *figures), flush=True)
            slow |= client != "pip" and count == 4 and again > MOST_AGAIN
    if slow:
        print(f"a second run on 4 workers took more than {MOST_AGAIN} s")
    return int(slow)


def _measured(client: str, count: int, recipe: str) -> tuple[float, float, float]:
    """Return the seconds of a first run, its megabytes, and the seconds of a second one."""
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}  # no wheels that lie here
    own |= {} if client == "shared" else {"UV_NO_CACHE": "1", "PIP_NO_CACHE_DIR": "1"}
    with tempfile.TemporaryDirectory(prefix="tpukit-bench-") as caches, _counting() as proxy:
        own |= {"XDG_CACHE_HOME": caches, "HTTPS_PROXY": proxy.url, "NO_PROXY": ""}
        with _environment(own), emulator() as environment:
            tpukit(environment, "create", TYPES[count], "bench")
            tpukit(environment, "firewall", "apply", "bench")
            words = _pip_words(recipe) if client == "pip" else ["provision", "bench", recipe]
            cold = _seconds(environment, words)
            megabytes = proxy.received / 1e6
            return cold, megabytes, _seconds(environment, words)


def _pip_words(recipe: str) -> list[str]:
    """Return the command that installs the recipe's own pins with pip on every worker."""
    named = Recipe.named(recipe)
    release = named.release_for("{}.{}".format(*sys.version_info)) or named.releases[0]
    pins = shlex.join(package.requirement for package in release.stand_in_packages)
    line = f"[ -d by-pip ] || python3 -m venv by-pip; by-pip/bin/pip install --quiet {pins}"
    return ["run", "bench", "--", line]


def _seconds(environment: Mapping[str, str], words: list[str]) -> float:
    started = time.monotonic()
    tpukit(environment, *words)
    return time.monotonic() - started


@contextmanager
def _environment(own: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the emulator, whose workers take them over."""
    before = dict(os.environ)
    os.environ.update(own)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Proxy:
    """Passes on what is asked for by CONNECT, and counts what comes back."""

    def __init__(self, listener: socket.socket) -> None:
        self.received = 0
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._listener = listener
        self._lock = threading.Lock()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with suppress(OSError, ValueError), closing(client):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                piece = client.recv(1)
                if not piece:
                    return
                head += piece
            host, _, port = head.split()[1].decode().rpartition(":")
            with closing(socket.create_connection((host, int(port)), 60)) as there:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                threading.Thread(target=_pass, args=(client, there), daemon=True).start()
                while data := there.recv(1 << 16):
                    with self._lock:
                        self.received += len(data)
                    client.sendall(data)


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def _counting() -> Iterator[_Proxy]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        proxy = _Proxy(listener)
        threading.Thread(target=proxy.serve, daemon=True).start()
        yield proxy

"""Passes an upload from one worker of a slice to the others.

A worker connects to the serving worker and sends a line with the secret and an offset. It gets the
bytes from that offset on, including those that the serving worker still receives.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import socketserver
import sys
import threading
import time
from typing import Iterator

from tpukit.agent.contents import CHUNK
from tpukit.agent.main import Home, Request, say
from tpukit.agent.uploads import keep

#: Seconds without a byte before the serving worker gives up.
SILENCE = 60.0
CONNECT = 5.0


def serve_upload(home: Home, request: Request) -> None:
    """Serve a staged file, complete or not, until standard input ends; answer the `port`."""
    size, secret, path = request["size"], request["token"].encode(), request["path"]
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    # The open file stays valid when it is renamed.
    served = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)

    class Handler(socketserver.StreamRequestHandler):
        timeout = SILENCE

        def handle(self) -> None:
            given, _, offset = self.rfile.readline(200).partition(b" ")
            if not hmac.compare_digest(given, secret):
                return
            self.connection.settimeout(None)  # os.sendfile needs a blocking socket
            position, quiet_since = int(offset), time.monotonic()
            while position < size and time.monotonic() - quiet_since < SILENCE:
                most = min(size - position, CHUNK)
                sent = os.sendfile(self.connection.fileno(), served, position, most)
                if sent:
                    position += sent
                    quiet_since = time.monotonic()
                else:
                    time.sleep(0.05)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server((request["address"], 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        say({"port": server.server_address[1]})
        sys.stdin.buffer.read()


def fetch_upload(home: Home, request: Request) -> None:
    """Write the bytes from another worker to the staged file; answer as `keep` does."""
    keep(home, request, _fetched(request))


def _fetched(request: Request) -> Iterator[bytes]:
    """Yield the bytes from the worker at `address`, until they end or an error occurs.

    It gives up after `silence` seconds without a byte.
    """
    place = (request["address"], request["port"])
    with contextlib.suppress(OSError), socket.create_connection(place, CONNECT) as peer:
        peer.settimeout(request["silence"])
        peer.sendall(f"{request['token']} {request['offset']}\n".encode())
        yield from iter(lambda: peer.recv(CHUNK), b"")

"""Serve a file that may still grow to the other workers of a slice, or fetch it from there.

    python3 -I -c PROGRAM serve 3<FILE
    python3 -I -c PROGRAM fetch 1<>FILE

One line of JSON on standard input says what; `serve` ends with standard input. Who connects to it
sends a line, the secret and an offset, and gets the bytes from there on. Needs Python 3.6 alone.
"""

import hashlib
import hmac
import json
import os
import socket
import socketserver
import sys
import threading
import time

CHUNK = 1 << 20
#: Seconds without a byte after which either side gives up.
SILENCE = 60.0
CONNECT = 5.0
SERVED = 3
#: The status where FILE is whole: it was hashed while it arrived.
VERIFIED = 3


def serve(address, token, size):
    class Handler(socketserver.StreamRequestHandler):
        timeout = SILENCE

        def handle(self):
            secret, _, offset = self.rfile.readline(200).partition(b" ")
            if not hmac.compare_digest(secret, token.encode()):
                return
            self.connection.settimeout(None)  # with a time-out it does not block in sendfile
            position, quiet_since = int(offset), time.monotonic()
            while position < size and time.monotonic() - quiet_since < SILENCE:
                most = min(size - position, CHUNK)
                sent = os.sendfile(self.connection.fileno(), SERVED, position, most)
                if sent:
                    position += sent
                    quiet_since = time.monotonic()
                else:
                    time.sleep(0.05)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"\ntpukit-relay {server.server_address[1]}", flush=True)
        sys.stdin.read()


def fetch(address, token, port, offset, digest):
    found = hashlib.sha256()
    for place in range(0, offset, CHUNK):
        found.update(os.pread(1, min(CHUNK, offset - place), place))
    with socket.create_connection((address, port), CONNECT) as peer:
        peer.settimeout(SILENCE)
        peer.sendall(f"{token} {offset}\n".encode())
        for chunk in iter(lambda: peer.recv(CHUNK), b""):
            found.update(chunk)
            sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
    sys.exit(VERIFIED if found.hexdigest() == digest else 0)


{"serve": serve, "fetch": fetch}[sys.argv[1]](**json.loads(sys.stdin.readline()))

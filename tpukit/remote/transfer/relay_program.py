"""Serve a file that may still grow to the other workers of a slice, or fetch it from there.

    python3 -I -c PROGRAM serve|fetch

One line of JSON on standard input says what; `serve` ends with standard input. Who connects to it
sends a line, the secret and an offset, and gets the bytes from there on; what arrives is compared
with its SHA-256. Needs nothing but Python 3.6.
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


def main():
    request = json.loads(sys.stdin.readline())
    folder = os.path.join(os.path.expanduser("~"), request["folder"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    whole = os.path.join(folder, request["digest"])
    {"serve": serve, "fetch": fetch}[sys.argv[1]](request, whole, whole + ".part")


def serve(request, whole, part):
    open(part, "ab").close() if not os.path.exists(whole) else None
    source = os.open(whole if os.path.exists(whole) else part, os.O_RDONLY)
    # The open file stays the same one when it is renamed.

    class Handler(socketserver.StreamRequestHandler):
        timeout = SILENCE

        def handle(self):
            secret, _, offset = self.rfile.readline(200).partition(b" ")
            if hmac.compare_digest(secret, request["token"].encode()):
                self.connection.settimeout(None)  # with a time-out it does not block in sendfile
                self.send_from(int(offset))

        def send_from(self, offset):
            quiet_since = time.monotonic()
            while offset < request["size"]:
                ready = min(os.fstat(source).st_size, request["size"]) - offset
                if ready > 0:
                    sent = os.sendfile(self.connection.fileno(), source, offset, min(ready, CHUNK))
                    offset += sent
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > SILENCE:
                    return
                else:
                    time.sleep(0.05)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request, client_address):
            pass

    with Server((request["address"], 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"\ntpukit-relay {server.server_address[1]}", flush=True)
        while sys.stdin.buffer.read(1):
            pass


def fetch(request, whole, part):
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        found = hashlib.sha256()
        for chunk in iter(lambda: file.read(CHUNK), b""):
            found.update(chunk)
        try:
            receive(request, file, found)
        except OSError as error:
            print(error, file=sys.stderr)
        size = file.seek(0, 1)
    if size < request["size"]:
        print(f"\ntpukit-transfer partial {size}")
    elif found.hexdigest() == request["digest"]:
        os.replace(part, whole)
        print("\ntpukit-transfer complete")
    else:
        os.unlink(part)
        print("\ntpukit-transfer corrupt")


def receive(request, file, found):
    place, buffer = (request["address"], request["port"]), memoryview(bytearray(CHUNK))
    with socket.create_connection(place, CONNECT) as peer:
        peer.settimeout(SILENCE)
        peer.sendall("{} {}\n".format(request["token"], file.tell()).encode())
        for count in iter(lambda: peer.recv_into(buffer), 0):
            found.update(buffer[:count])
            file.write(buffer[:count])


main()

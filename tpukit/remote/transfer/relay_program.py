"""Serve a file that may still grow to the other workers of a slice, or fetch it from there.

    python3 -I -c PROGRAM serve|fetch

One line of JSON on standard input says what; `serve` ends with standard input. Needs nothing but
Python 3.6. The path of the one thing that is served is secret, and what arrives is compared with
its SHA-256.
"""

import hashlib
import hmac
import http.client
import http.server
import json
import os
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

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = SILENCE

        def do_GET(self):
            if not hmac.compare_digest(self.path.encode(), ("/" + request["token"]).encode()):
                self.send_error(404)
                return
            offset = int(self.headers.get("X-Offset", "0"))
            self.send_response(200)
            self.send_header("Content-Length", str(request["size"] - offset))
            self.end_headers()
            self.wfile.flush()
            self.connection.settimeout(None)  # a socket with a time-out does not block in sendfile
            self.send_from(offset)

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

        def log_message(self, *arguments):
            pass

    class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
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
        except (OSError, http.client.HTTPException) as error:
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
    connection = http.client.HTTPConnection(request["address"], request["port"], timeout=CONNECT)
    connection.connect()
    connection.sock.settimeout(SILENCE)
    connection.request("GET", "/" + request["token"], headers={"X-Offset": str(file.tell())})
    answer = connection.getresponse()
    if answer.status != 200:
        raise OSError(f"status {answer.status}")
    buffer = memoryview(bytearray(CHUNK))
    while True:
        count = answer.readinto(buffer)
        if not count:
            return
        found.update(buffer[:count])
        file.write(buffer[:count])


main()

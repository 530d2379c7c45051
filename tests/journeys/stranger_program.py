"""What another user of this machine tries against an emulator; prints what was had, as JSON.

Arguments: the emulator's directory, and as JSON its processes and (address, port) pairs.
"""

import json
import os
import signal
import socket
import ssl
import sys

directory, given = sys.argv[1], json.loads(sys.argv[2])
METADATA = "GET /computeMetadata/v1/instance/service-accounts/default/token"
REQUESTS = (
    "GET /_emulator/v1/status",
    "GET /v2/projects/tpukit-local/locations/-/nodes",
    "POST /_emulator/v1/grpc",
    "POST /_emulator/v1/impersonation",
    "POST /token",
    f"{METADATA}",
    "PUT /computeMetadata/v1/instance/guest-attributes/a/b",
    "GET /compute/v1/projects/tpukit-local",
)
had = []


def read(path):
    try:
        with open(path, "rb") as file:
            had.append(["read", path, file.read(40).decode("latin-1")])
    except OSError:
        pass


def ask(address, port, line, secure):
    body = "refresh_token=guess"
    head = f"Metadata-Flavor: Google\r\nAuthorization: Bearer guess\r\nContent-Length: {len(body)}"
    try:
        with socket.create_connection((address, port), timeout=1) as plain:
            end = plain
            if secure:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                end = context.wrap_socket(plain, server_hostname="tpu.googleapis.com")
            end.sendall(f"{line} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n{body}".encode())
            answer = end.recv(65536).decode("latin-1")
    except OSError:
        return
    status = answer.split(" ")[1:2]
    if answer.startswith("HTTP/") and status not in (["401"], ["400"], ["403"], ["404"]):
        had.append(["answer", f"{address}:{port} {line}", answer[:200]])


for root, _, files in os.walk(directory):
    had.append(["listed", root, ""])
    for name in files:
        read(os.path.join(root, name))
for name in ("token", "credentials.json", "state.db", "emulator.json", "lock", "identity"):
    read(os.path.join(directory, name))
for name in ("tls/server.key", "tls/bundle.pem", "workers", "emulator.log"):
    read(os.path.join(directory, name))
for pid in given["processes"]:
    read(f"/proc/{pid}/environ")
    read(f"/proc/{pid}/mem")
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        had.append(["command", str(pid), file.read().decode("latin-1")])
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
            had.append(["signalled", str(pid), str(number)])
        except PermissionError:
            pass
for address, port in given["listeners"]:
    for line in REQUESTS:
        ask(address, port, line, secure=False)
        ask(address, port, line, secure=True)
sys.stdout.write(json.dumps(had))

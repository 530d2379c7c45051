"""Servers that speak HTTP as nobody should, for clients that have to come away unharmed."""

from __future__ import annotations

import gzip
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Writes one answer, whole or not, to whoever has asked.
Answer = Callable[[socket.socket], None]


def raw(content: bytes) -> Answer:
    return lambda connection: connection.sendall(content)


def whole(status: int, body: bytes, *headers: str) -> Answer:
    """Return an answer of the right form, whatever is in it."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return raw("\r\n".join(lines).encode("latin-1") + body)


def dripping(before: bytes, piece: bytes, pause: float = 0.02) -> Answer:
    """Return an answer that goes on for ever, a little at a time."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(before)
        while True:
            connection.sendall(piece)
            threading.Event().wait(pause)

    return answer


def endless(before: bytes, piece: bytes) -> Answer:
    """Return an answer that goes on for ever, as fast as it is read."""
    return dripping(before, piece, 0.0)


def silent(connection: socket.socket) -> None:
    """Say nothing, and stay."""
    connection.recv(1)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BOMB = gzip.compress(b" " * 2**20) * 200  # members that follow one another are one text
#: Answers that never end, or are too much, by what is wrong with them.
BOUNDLESS: dict[str, Answer] = {
    "silence": silent,
    "a byte of a header now and then": dripping(OK + b"X: ", b"x"),
    "headers now and then": dripping(OK, b"X: x\r\n"),
    "a byte of the body now and then": dripping(OK + b"Content-Length: 9999999\r\n\r\n", b" "),
    "chunks now and then": dripping(CHUNKED, b"1\r\n \r\n"),
    "provisional answers for ever": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body without an end": endless(OK + b"\r\n", b" " * 65536),
    "chunks without an end": endless(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "a chunk of a negative size": endless(CHUNKED + b"-1\r\n", b" " * 65536),
    "a body of 200 MB": endless(OK + b"Content-Length: 209715200\r\n\r\n", b" " * 65536),
    "200 MB in 200 kB": whole(200, BOMB, "Content-Encoding: gzip"),
    "a million lists": whole(200, b"[" + b"[]," * 5_000_000 + b"[]]"),
    "a nest": whole(200, b"[" * 500_000),
    "a status line without an end": endless(b"HTTP/1.1 200 ", b"x" * 65536),
    "long headers": endless(OK, b"X: " + b"x" * 60000 + b"\r\n"),
}


_STATUSES = (
    200,
    200,
    200,
    200,
    204,
    206,
    301,
    400,
    401,
    403,
    404,
    409,
    412,
    418,
    429,
    500,
    503,
    799,
)
_TEXTS = (
    "",
    "x",
    "\x1b[2J\x1b]0;x\x07",
    "a\nerror: b",
    "\u202e\U000e0001",
    "\ud800",
    "é" * 3000,
    "../..",
    "projects/p/locations/z/nodes/n",
    "projects/p/locations/z/nodes/demo",
    "READY",
    "-1",
    "x" * 100_000,
)
_KEYS = (
    "name",
    "nodes",
    "items",
    "error",
    "code",
    "message",
    "status",
    "details",
    "@type",
    "done",
    "metadata",
    "state",
    "health",
    "labels",
    "networkEndpoints",
    "ipAddress",
    "accessConfig",
    "nextPageToken",
    "unreachable",
    "schedulingConfig",
    "networkConfig",
    "dataDisks",
    "allowed",
    "sourceRanges",
    "errors",
    "reason",
    "retryDelay",
    "links",
    "url",
    "createTime",
    "response",
    "guestAttributes",
    "tags",
)


def some_answer(seed: int) -> Answer:
    """Return an answer that no API gives, always the same for a seed."""
    chosen = random.Random(seed)
    body = _some_body(chosen)
    headers = [
        line
        for line in (
            f"Retry-After: {chosen.choice(['1', '-1', 'nan', '9' * 30, 'x'])}",
            f"Content-Type: {chosen.choice(['text/html', 'application/json; charset=latin-9'])}",
            f"Content-Encoding: {chosen.choice(['gzip', 'br', 'identity', 'x' * 100])}",
            "Location: http://127.0.0.1:9/",
            f"X: {'x' * 50_000}",
        )
        if chosen.random() < 0.15
    ]
    if chosen.random() < 0.05:
        return raw(chosen.randbytes(200) + b"\r\n\r\n")
    if chosen.random() < 0.05:  # the connection ends before the answer does
        return raw(OK + b"Content-Length: 99999\r\n\r\n" + body)
    return whole(chosen.choice(_STATUSES), body, *headers)


def _some_body(chosen: random.Random) -> bytes:
    kind = chosen.randrange(10)
    if kind == 0:
        return b"<html>log in to the airport's network</html>"
    if kind == 1:
        return chosen.randbytes(chosen.randrange(300))
    if kind == 2:
        return b'{"a":' * 100_000
    value = _nearly_right(chosen) if kind < 7 else _some_value(chosen, 4)
    text = json.dumps(value).encode()
    return text[: len(text) // 2] if kind == 3 else text


def _nearly_right(chosen: random.Random) -> Any:
    """Return a slice, a list, an operation or a rule, of which one field is wrong."""
    node = {
        "name": "projects/p/locations/us-central1-a/nodes/demo",
        "acceleratorType": "v3-8",
        "state": chosen.choice(["READY", "CREATING", "DELETING", "PREEMPTED", "OF_TOMORROW"]),
        "networkConfig": {"network": "n", "enableExternalIps": True},
        "networkEndpoints": [{"ipAddress": "10.0.0.1", "accessConfig": {"externalIp": "1.2.3.4"}}],
        "labels": {"tpukit-managed": "1", "tpukit-owner": "ada", "tpukit-nonce": "nonce"},
    }
    rule = {"name": "r", "network": "n", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}
    operation = {"name": "o", "status": chosen.choice(["RUNNING", "DONE", "OF_TOMORROW"])}
    right = chosen.choice(
        [node, {"nodes": [node]}, {"items": [rule]}, operation, {"name": "o", "done": True}]
    )
    inner = right.get("nodes", right.get("items", [right]))[0]
    inner[chosen.choice([*inner, *_KEYS])] = _some_value(chosen, 2)
    return right


def _some_value(chosen: random.Random, depth: int) -> Any:
    kind = chosen.randrange(9 if depth else 5)
    if kind < 2:
        return chosen.choice(_TEXTS)
    if kind == 2:
        return chosen.choice([None, True, False, float("nan"), -1, 10**400])
    if kind < 5:
        return chosen.randrange(20)
    if kind == 5:
        return [_some_value(chosen, depth - 1) for _ in range(chosen.randrange(4))]
    return {
        chosen.choice(_KEYS): _some_value(chosen, depth - 1) for _ in range(chosen.randrange(1, 6))
    }


class HostileServer:
    """Answers every request so, and ends the connection."""

    def __init__(self, answer: Answer, seen: list[bytes]) -> None:
        self._answer = answer
        self._seen = seen
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._reply, args=(connection,), daemon=True).start()

    def _reply(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            seen = b""
            while b"\r\n\r\n" not in seen:
                seen += connection.recv(65536)
            self._seen.append(seen)
            self._answer(connection)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(1.0)
            while connection.recv(65536):  # what was sent is read, so that no reset takes it back
                pass


@contextmanager
def hostile(answer: Answer, seen: list[bytes] | None = None) -> Iterator[HostileServer]:
    """Run such a server; `seen` gets the head of each request."""
    server = HostileServer(answer, [] if seen is None else seen)
    try:
        yield server
    finally:
        server.close()

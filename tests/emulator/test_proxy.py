"""The HTTP proxy of a worker's own network."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tpukit.emulator.workers.engines.namespaces.http_proxy import start_proxy, target


def test_a_request_to_a_proxy_becomes_one_to_the_server():
    head = b"GET http://example.org:81/a?b=c HTTP/1.1\r\nHost: example.org:81\r\n"
    head += b"Proxy-Connection: keep-alive\r\nProxy-Authorization: secret\r\nAccept: */*\r\n\r\n"
    server, greeting = target(head)
    assert server == ("example.org", 81)
    assert greeting == (
        b"GET /a?b=c HTTP/1.1\r\nHost: example.org:81\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("authority", "server"),
    [("example.org:443", ("example.org", 443)), ("[2001:db8::1]:8443", ("2001:db8::1", 8443))],
)
def test_a_tunnel_begins_with_no_word_to_the_server(authority, server):
    assert target(f"CONNECT {authority} HTTP/1.1\r\n\r\n".encode()) == (server, b"")


@pytest.mark.parametrize("line", ["GET / HTTP/1.1", "GET ftp://a/ HTTP/1.1", "nonsense", ""])
def test_what_is_not_meant_for_a_proxy_is_refused(line):
    with pytest.raises(ValueError, match=r"unpack|ftp|/"):
        target(f"{line}\r\n\r\n".encode())


def test_a_server_that_cannot_be_reached_is_a_bad_gateway():
    with socket.socket() as silent:  # it keeps its port, and does not listen there
        silent.bind(("127.0.0.1", 0))
        asked = f"CONNECT 127.0.0.1:{silent.getsockname()[1]} HTTP/1.1\r\n\r\n".encode()
        assert asyncio.run(ask(asked)).startswith(b"HTTP/1.1 502 ")


def test_a_proxy_of_the_machine_gets_everything_as_it_is():
    """The password that the machine's own proxy wants is in the worker's own settings."""
    asked = b"CONNECT example.org:443 HTTP/1.1\r\nProxy-Authorization: Basic eA==\r\n\r\n"

    async def both() -> bytes:
        received: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        answer = await ask(asked, server.sockets[0].getsockname()[:2])
        server.close()
        assert answer == b"HTTP/1.1 200 OK\r\n\r\n"
        return received[0]

    assert asyncio.run(both()) == asked


async def ask(request: bytes, upstream: tuple[str, int] | None = None) -> bytes:
    """Return all that a proxy answers to a request."""
    listener = socket.create_server(("127.0.0.1", 0))
    proxy = await start_proxy(listener, upstream)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(request)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    proxy.close()
    return answer

"""Requests over the standard library alone: what is kept, followed, compressed, and sent where."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from support.hostile_server import hostile, raw, whole
from support.local_cloud import Cloud, FakeClock, Reply, json_reply, scripted

from tpukit.errors import NotAuthenticated, TpukitError
from tpukit.google.access_tokens import AccessTokens
from tpukit.google.http_client import HttpClient
from tpukit.google.no_answer import NoAnswer, arrived, cause
from tpukit.google.retrying_session import Session

SECRET = {"Authorization": "Bearer secret"}


def get(client: HttpClient, url: str, path: str = "/x") -> bytes:
    return client.request("GET", url + path, SECRET, None, 5.0).body


def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(b"long " * 1000)
    with hostile(whole(200, body, "Content-Encoding: gzip")) as server:
        assert get(HttpClient(), server.url) == b"long " * 1000


def test_a_redirection_is_not_followed_and_carries_no_token() -> None:
    with scripted(json_reply(200, {})) as other:
        answer = Reply(302, b"{}", {"Location": f"{other.url}/y"})
        with scripted(answer) as server:
            assert HttpClient().request("GET", f"{server.url}/x", SECRET, None, 5.0).status == 302
        assert other.seen == []


def test_an_answer_that_redirects_is_an_error(cloud: Cloud) -> None:
    with scripted(Reply(302, b"{}", {"Location": "/y"})) as server, pytest.raises(TpukitError):
        cloud.session.rest("read it", "GET", f"{server.url}/x")


@contextmanager
def counting(
    answers: int, closed: threading.Semaphore | None = None
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers so often on each connection; what each connection asked for.

    `closed` is released when one is closed.
    """
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            asked.append(b"")
            for _ in range(answers):
                asked[-1] += connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def accept() -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                serve(listener.accept()[0])
                if closed:
                    closed.release()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def test_a_connection_is_kept_for_the_next_request() -> None:
    client = HttpClient()
    with counting(2) as (url, asked):
        get(client, url, "/first")
        get(client, url, "/second")
        assert len(asked) == 1
        assert asked[0].count(b"GET ") == 2


def test_a_connection_that_the_server_has_closed_is_not_used_again() -> None:
    client, closed = HttpClient(), threading.Semaphore(0)
    with counting(1, closed) as (url, asked):
        for path in ("/first", "/second", "/third"):
            assert get(client, url, path) == b"{}"
            assert closed.acquire(timeout=60)
        assert len(asked) == 3


def test_an_https_address_is_asked_for_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bytes] = []

    def refuse(connection: socket.socket) -> None:
        raw(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")(connection)

    with hostile(refuse, seen) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url.replace("://", "://ada:p%40ss@"))
        monkeypatch.delenv("no_proxy", raising=False)
        with pytest.raises(NoAnswer, match="407") as caught:
            get(HttpClient(), "https://tpu.example.com")
    assert not caught.value.sent
    assert "ss@" not in str(caught.value)
    assert seen[0].startswith(b"CONNECT tpu.example.com:443 ")
    assert b"Proxy-Authorization: Basic YWRhOnBAc3M=" in seen[0]
    assert b"secret" not in seen[0]


def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = f"127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("https_proxy", f"http://{proxy}")
    monkeypatch.delenv("no_proxy", raising=False)
    session = Session(AccessTokens(None, clock), clock)
    with pytest.raises(TpukitError) as caught:
        session.rest("list slices", "GET", "https://tpu.example.com/x")
    told = f"tpu.example.com through the proxy {proxy}: nothing listens there"
    assert told in caught.value.what
    assert "https_proxy" in caught.value.fix.note


def test_a_token_file_that_is_being_renewed_is_waited_for(cloud: Cloud, clock: FakeClock) -> None:
    refused = json_reply(401, {"error": {"status": "UNAUTHENTICATED", "message": "expired"}})
    cloud.tokens.headers()
    told: list[str] = []

    def say(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            cloud.token_file.write_text("another")

    session = Session(cloud.tokens, clock, on_retry=say)
    with scripted(refused, refused, refused, json_reply(200, {"name": "x"})) as server:
        answer = session.rest("create it", "POST", f"{server.url}/x", body={}, repeat=False)
    assert answer == {"name": "x"}
    assert "refuses the token of" in told[0]
    with scripted(refused) as server, pytest.raises(NotAuthenticated):
        Session(cloud.tokens, clock).rest("read it", "GET", f"{server.url}/x")
    assert sum(clock.slept) < 12


def test_a_token_that_was_refused_is_renewed_once(cloud: Cloud) -> None:
    refused = json_reply(401, {"error": {"status": "UNAUTHENTICATED", "message": "expired"}})
    cloud.tokens.headers()  # read, and then replaced by somebody
    cloud.token_file.write_text("another")
    with scripted(refused, json_reply(200, {"name": "x"})) as server:
        assert cloud.session.rest("read it", "GET", f"{server.url}/x") == {"name": "x"}
    with scripted(refused) as server, pytest.raises(NotAuthenticated):
        cloud.session.rest("read it", "GET", f"{server.url}/x")


def test_what_a_library_wraps_again_and_again_is_told_by_its_innermost_error() -> None:
    """As requests does with urllib3's errors, which are of a socket's."""
    outer, middle = OSError("outer"), OSError("middle")
    outer.__context__, middle.__cause__ = middle, ConnectionRefusedError()
    assert cause(outer) == "nothing listens there"
    assert not arrived(outer)

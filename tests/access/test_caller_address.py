"""The address that a firewall rule has to admit."""

from __future__ import annotations

import ipaddress

import pytest
from support.local_cloud import Reply, scripted

from tpukit.access.caller_address import public_address, route_address, source_address
from tpukit.errors import TpukitError


def unasked() -> str:
    raise AssertionError("nobody is asked for our public address")


def answer(text: str, status: int = 200) -> Reply:
    return Reply(status, text.encode(), {"Content-Type": "text/plain"})


@pytest.mark.parametrize(
    "text", ["8.8.4.4\n", "8.8.4.4", "fl=1\nh=1.1.1.1\nip=8.8.4.4\nts=1.5\ntls=TLSv1.3\n"]
)
def test_a_source_tells_our_public_address_and_is_named(text: str) -> None:
    with scripted(answer(text)) as server:
        assert public_address([server.url]) == ("8.8.4.4", server.url.removeprefix("http://"))


@pytest.mark.parametrize(
    "reply",
    [
        answer("not an address"),
        answer(""),
        answer("999.1.1.1"),
        answer("192.168.1.7"),
        answer("100.64.0.9"),
        answer("2001:4860:4860::8888"),
        answer("8.8.4.4", 503),
        Reply(302, b"", {"Location": "http://127.0.0.1/"}),
        Reply(200, b"8.8.4.4", cut=True),
    ],
)
def test_after_an_answer_that_is_no_public_address_the_next_is_asked(reply: Reply) -> None:
    with scripted(reply) as bad, scripted(answer("8.8.8.8")) as good:
        assert public_address([bad.url, good.url])[0] == "8.8.8.8"
        assert (len(bad.seen), len(good.seen)) == (1, 1)
    with scripted(reply) as bad, pytest.raises(TpukitError, match="your public address") as caught:
        public_address([bad.url])
    assert "--source-range" in str(caught.value.fix)


def test_no_proxy_answers_for_us(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(answer("8.8.4.4")) as proxy, scripted(answer("8.8.8.8")) as source:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert public_address([source.url])[0] == "8.8.8.8"
        assert proxy.seen == []


@pytest.mark.parametrize(
    ("local", "asked"),
    [("192.168.1.7", True), ("100.64.0.9", True), ("8.8.4.4", False)],
)
def test_behind_a_translation_the_public_address_is_found_out(local: str, asked: bool) -> None:
    """100.64.0.0/10, of carriers and Tailscale, is neither private nor global."""
    found = source_address("216.239.32.10", lambda: "8.8.8.8", lambda destination: local)
    assert found == ("8.8.8.8" if asked else local)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.77.3.4"])
def test_a_worker_on_this_machine_sees_a_loopback_address(address: str) -> None:
    assert ipaddress.ip_address(source_address(address, unasked)).is_loopback


def test_a_worker_on_a_private_network_sees_our_end_of_the_route() -> None:
    try:
        expected = route_address("10.128.0.2")
    except TpukitError:  # a machine without any route has no end of one either
        with pytest.raises(TpukitError, match="no route"):
            source_address("10.128.0.2", unasked)
        return
    assert source_address("10.128.0.2", unasked) == expected


@pytest.mark.parametrize("address", ["", "worker-0", "127.0.0.1\x1b[2J", "1.2.3"])
def test_an_address_of_the_cloud_s_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(TpukitError, match="is not an address"):
        source_address(address, unasked)

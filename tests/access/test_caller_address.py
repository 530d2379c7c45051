"""The address that a firewall rule has to admit."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dns.message
import dns.rrset
import pytest

from tpukit.access.caller_address import public_address, route_address, source_address
from tpukit.errors import TpukitError


@contextmanager
def name_server(*answers: str) -> Iterator[int]:
    """Answer the TXT question with these texts on a port of this machine, or not at all."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=_answer, args=(listener, answers), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", listener.getsockname())
        thread.join(5)


def _answer(listener: socket.socket, answers: tuple[str, ...]) -> None:
    while True:
        data, source = listener.recvfrom(4096)
        if not data:
            return
        question = dns.message.from_wire(data)
        reply = dns.message.make_response(question)
        for text in answers:
            name = question.question[0].name
            reply.answer.append(dns.rrset.from_text(name, 60, "IN", "TXT", f'"{text}"'))
        listener.sendto(reply.to_wire(), source)


@pytest.mark.parametrize("address", ["203.0.113.7", "2001:db8::7"])
def test_the_name_server_tells_our_public_address(address: str) -> None:
    with name_server(address) as port:
        assert public_address("127.0.0.1", port) == address


@pytest.mark.parametrize("text", ["not an address", "203.0.113.7/32", "", "999.1.1.1"])
def test_an_answer_that_is_no_address_is_an_error_that_says_what_to_give(text: str) -> None:
    with name_server(text) as port, pytest.raises(TpukitError) as caught:
        public_address("127.0.0.1", port)
    assert "--source-range" in str(caught.value.fix)


def test_an_empty_answer_is_an_error_too() -> None:
    with name_server() as port, pytest.raises(TpukitError, match="public address"):
        public_address("127.0.0.1", port)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.77.3.4"])
def test_a_worker_on_this_machine_sees_a_loopback_address(address: str) -> None:
    assert ipaddress.ip_address(source_address(address)).is_loopback


def test_a_worker_on_a_private_network_sees_our_end_of_the_route() -> None:
    try:
        expected = route_address("10.128.0.2")
    except TpukitError:  # a machine without any route has no end of one either
        with pytest.raises(TpukitError, match="no route"):
            source_address("10.128.0.2")
        return
    assert source_address("10.128.0.2") == expected


@pytest.mark.parametrize("address", ["", "worker-0", "127.0.0.1\x1b[2J", "1.2.3"])
def test_an_address_of_the_cloud_s_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(TpukitError, match="is not an address"):
        source_address(address)

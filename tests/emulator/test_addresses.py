"""Addresses and ports of emulated workers."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from tpukit.emulator.workers.addresses import AddressBook, foreign_ssh, free_port, listening


@pytest.fixture
def book() -> Iterator[AddressBook]:
    connection = AddressBook(random.Random())
    yield connection
    connection.close()


def test_a_node_gets_neighbouring_addresses_of_the_workers_own_network(book):
    addresses = book.take("n1", 3)
    assert all(address.startswith("127.77.") for address in addresses)
    assert len(set(addresses)) == 3


def test_an_address_is_not_given_again_while_its_node_exists():
    """The same seed makes every book choose the same addresses where they are free."""
    seed = random.getrandbits(64)
    books = [AddressBook(random.Random(seed)) for _ in range(3)]
    first = books[0].take("n1", 2)
    second = books[1].take("n2", 2)
    books[0].release("n1")
    third = books[2].take("n3", 2)
    for book in books:
        book.close()
    assert not set(first) & set(second)
    assert third == first


def test_an_address_that_others_hold_cannot_be_kept(book):
    (address,) = book.take("n1", 1)
    other = AddressBook(random.Random())
    with pytest.raises(OSError, match="in use"):
        other.keep("n1", address)


def test_an_address_of_another_node_cannot_be_kept(book):
    (address,) = book.take("n1", 1)
    book.keep("n1", address)
    with pytest.raises(OSError, match="n1"):
        book.keep("n2", address)


def test_a_server_of_the_machine_that_listens_everywhere_is_noticed():
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        assert foreign_ssh(port=port)
    assert not foreign_ssh(port=port)


def test_a_taken_port_22_gives_way_to_a_higher_one(book):
    (address,) = book.take("n1", 1)
    first = free_port(address)
    with listening(address, first) as taken:
        taken.listen()
        second = free_port(address)
    assert first < second


def test_a_port_can_be_listened_on_again_at_once(book):
    """Connections that were closed linger on it."""
    (address,) = book.take("n1", 1)
    with listening(address, 0) as first:
        first.listen()
        port = first.getsockname()[1]
        client = socket.create_connection((address, port))
        first.accept()[0].close()
        client.close()
    with listening(address, port) as again:
        again.listen()

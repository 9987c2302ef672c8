"""HOST:PORT: read, written, and held."""

from __future__ import annotations

import socket

import pytest

from roskva.address import address_of, bound_socket, host_and_port, is_loopback
from roskva.errors import AddressInUse, InvalidSetting

HERE = "127.0.0.1:0"


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:8470", ("127.0.0.1", 8470)), ("[::1]:0", ("::1", 0)), ("localhost:80", ("localhost", 80))],
)
def test_an_address_is_written_as_it_is_read(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts
    assert address_of(*parts) == address


def test_an_address_in_use_is_told_from_one_that_nobody_could_listen_on() -> None:
    with bound_socket(HERE) as held:
        host, port = held.getsockname()
        assert (host, port > 0) == ("127.0.0.1", True)
        held.listen()
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
            bound_socket(address_of(host, port))
    with pytest.raises(InvalidSetting, match=r"192\.0\.2\.1:80"):  # an address for documentation: not this machine's
        bound_socket("192.0.2.1:80")
    with bound_socket(address_of(host, port)):  # given back: nobody holds it
        pass


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x", "a..b:80"])
def test_what_is_no_address_is_refused_with_its_name(address: str) -> None:
    with pytest.raises(InvalidSetting, match=address):
        bound_socket(address)


def test_an_address_that_a_predecessors_connections_linger_on_can_be_held() -> None:
    with bound_socket(HERE) as held:
        held.listen()
        address = address_of(*held.getsockname())
        with socket.create_connection(host_and_port(address)) as client:
            accepted, _ = held.accept()
            accepted.close()  # this side first: it lingers here
            assert client.recv(1) == b""
    with bound_socket(address):
        pass


def test_loopback() -> None:
    assert [host for host in ("127.0.0.1", "127.255.0.3", "::1", "localhost", "LOCALHOST") if not is_loopback(host)] == []
    assert [host for host in ("0.0.0.0", "::", "", "10.0.0.1", "example", "128.0.0.1") if is_loopback(host)] == []

"""One port for several gateways of one service, and for nobody else (gateway/sharing.py)."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.address import address_of, bound_socket
from roskva.errors import AddressInUse
from roskva.gateway.sharing import SharedPort


@pytest.fixture
def held(tmp_path: Path) -> Iterator[SharedPort]:
    """As `roskva up` holds its port, with nobody listening."""
    port = SharedPort("127.0.0.1:0", tmp_path / "data")
    port.hold()
    yield port
    port.close()


def address(port: SharedPort) -> str:
    return address_of("127.0.0.1", port.port)


def test_those_of_one_service_share_it_and_the_kernel_spreads_what_comes(held: SharedPort, tmp_path: Path) -> None:
    members = [SharedPort(address(held), tmp_path / "data") for _ in range(3)]
    for member in members:
        member.socket.setblocking(False)
        member.socket.listen(256)
    callers = [socket.create_connection(("127.0.0.1", held.port)) for _ in range(200)]
    accepted = [len(accept_all(member.socket)) for member in members]
    assert sum(accepted) == 200
    assert min(accepted) > 20, accepted  # some 67 each; so few by chance, once in 10^12 runs
    for caller in callers:
        caller.close()
    for member in members:
        member.close()


def accept_all(listener: socket.socket) -> list[socket.socket]:
    accepted = []
    while True:
        try:
            accepted.append(listener.accept()[0])
        except BlockingIOError:
            for one in accepted:
                one.close()
            return accepted


def test_another_service_of_the_same_user_is_refused(held: SharedPort, tmp_path: Path) -> None:
    with pytest.raises(AddressInUse):
        SharedPort(address(held), tmp_path / "another")


def test_one_that_shares_nothing_is_refused_also_while_nobody_listens(held: SharedPort) -> None:
    with pytest.raises(AddressInUse):
        bound_socket(address(held))


def test_a_port_of_another_program_is_not_joined_even_if_that_would_share_it(tmp_path: Path) -> None:
    with bound_socket("127.0.0.1:0", beside_others=True) as other:
        other.listen()
        with pytest.raises(AddressInUse):
            SharedPort(address_of(*other.getsockname()), tmp_path / "data")


def test_the_lock_of_who_is_gone_counts_no_more(tmp_path: Path) -> None:
    first = SharedPort("127.0.0.1:0", tmp_path / "data")
    place = address(first)
    first.close()
    with bound_socket(place, beside_others=True) as other:  # meanwhile somebody else took it
        other.listen()
        with pytest.raises(AddressInUse):
            SharedPort(place, tmp_path / "data")
    SharedPort(place, tmp_path / "data").close()


def test_nothing_is_left_of_ports_of_earlier_starts(held: SharedPort, tmp_path: Path) -> None:
    for _ in range(3):
        SharedPort("127.0.0.1:0", tmp_path / "data").close()
    another = SharedPort("127.0.0.1:0", tmp_path / "data")
    assert sorted(path.name for path in (tmp_path / "data" / "run").glob("port-*")) == sorted([f"port-{held.port}", f"port-{another.port}"])
    another.close()


def test_who_holds_the_port_makes_its_lock_anew_if_that_was_deleted(held: SharedPort, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "data")
    held.renew()
    SharedPort(address(held), tmp_path / "data").close()

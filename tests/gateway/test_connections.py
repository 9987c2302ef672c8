"""Connections by their numbers (gateway/connections.py)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from roskva.gateway.connections import Connections, Numbered
from tests.gateway.test_routing import End


def test_connections_are_found_by_numbers_that_are_never_given_again() -> None:
    connections = Connections()
    one, other = End(), End()
    connections.opened(one)
    connections.opened(other)
    assert one.number != other.number
    assert connections.get(one.number) is one
    assert connections.closed(one)
    assert not connections.closed(one)
    third = End()
    connections.opened(third)
    assert third.number not in (one.number, other.number)
    assert list(connections.values()) == [other, third]
    assert len(connections) == 2


def test_those_of_a_line_are_found_in_it_as_long_as_it_lasts() -> None:
    connections = Connections()
    alone = End()
    connections.opened(alone)
    clients: dict[int, Any] = {}
    first, second = connections.line_began(clients), connections.line_began({})
    names = (0, 7, 10**15 - 1)
    for name in names:
        end = clients[name] = End()
        end.number = first + name
        connections.opened(end)
    assert len(connections) == 4
    assert [connections.get(first + name) for name in names] == [clients[name] for name in names]
    assert connections.get(second + 7) is None
    assert set(connections.values()) == {alone, *clients.values()}
    connections.closed(cast(Any, clients.pop(7)))
    assert first + 7 not in connections
    assert len(connections) == 3
    connections.line_ended(first)
    assert first not in connections


def test_what_is_numbered_comes_and_goes() -> None:
    numbered: Numbered[str] = Numbered()
    numbers = [*range(200), 10**15 - 1]
    for number in numbers:
        numbered[number] = f"{number}"
    numbered[7] = "another"
    assert len(numbered) == len(numbers)
    assert list(numbered.values()) == ["another" if number == 7 else f"{number}" for number in numbers]
    assert numbered.get(200) is numbered.get(10**15 - 2) is numbered.get(10**9) is None
    for number in numbers[1:]:
        del numbered[number]
        with pytest.raises(KeyError):
            del numbered[number]
    assert list(numbered.values()) == ["0"]
    assert len(numbered._pages) == len(numbered) == 1  # nothing is kept for those that are gone

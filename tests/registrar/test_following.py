"""The index of the fast path (registrar/following.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roskva.config import ApplicationSettings
from roskva.model import ClientId, ObjectKey
from roskva.registrar.following import Followers, Index
from roskva.registrar.sessions import Session

SETTINGS = ApplicationSettings()


class Deaf:
    session: object | None = None

    def send(self, data: bytes) -> None: ...
    def close(self, code: str) -> None: ...


def session_of(number: int) -> Session:
    return Session(ClientId(f"c{number}"), 0, "demo", f"d{number}", replace(SETTINGS), "", 1, Deaf())


def key_of(number: int) -> ObjectKey:
    return ObjectKey(b"demo\0\0\0\0\0x%d" % number)


@pytest.mark.parametrize("count", [1, 8, 32, 33, 200])
def test_followers_come_and_go(count: int) -> None:
    followers = Followers(key_of(0))
    for place in range(count):
        assert followers.set(place, place)
        assert not followers.set(place, (7 << 32) + place)
    assert dict(followers.items()) == {place: (7 << 32) + place for place in range(count)}
    for place in range(1, count):
        followers.remove(place)
        followers.remove(place)
    assert [place for place, _ in followers.items()] == [0]
    assert len(followers) == 1


def test_a_place_is_given_to_another_session_and_nothing_of_the_one_before_with_it() -> None:
    index = Index()
    first, second, third = (session_of(number) for number in range(3))
    for number in range(100):  # more than fit into a tuple
        index.set(first, key_of(number), 1)
    index.set(second, key_of(0), 2)
    left = first.place
    index.leave(first)
    index.leave(first)
    assert len(index) == 1
    assert list(index.of(key_of(0))) == [(second, 2)]
    index.set(third, key_of(5), 3)
    assert third.place == left
    assert list(index.of(key_of(5))) == [(third, 3)]
    assert list(index.of(key_of(6))) == []
    index.leave(second)
    index.leave(third)
    assert len(index) == 0


def test_one_that_was_removed_may_come_again() -> None:
    index = Index()
    session = session_of(1)
    index.set(session, key_of(1), 1)
    index.remove(session, key_of(1))
    index.remove(session, key_of(2))
    assert (len(index), index.count(key_of(1))) == (0, 0)
    index.set(session, key_of(1), 2)
    assert list(index.of(key_of(1))) == [(session, 2)]
    index.leave(session)
    assert len(index) == 0

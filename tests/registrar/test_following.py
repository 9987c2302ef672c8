"""The index of the fast path (registrar/following.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roskva.config import ApplicationSettings
from roskva.model import ClientId, ObjectKey
from roskva.protocol.messages import Summary
from roskva.registrar.following import Index
from roskva.registrar.row import ClientRow
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
    index = Index()
    sessions = [session_of(number) for number in range(count)]
    for place, session in enumerate(sessions):
        index.set(session, key_of(0), place)
        index.set(session, key_of(0), (place << 32) + 7)  # bytes of which look like another's place
        assert session.followed == (key_of(0),)
    assert list(index.of(key_of(0))) == [(session, (place << 32) + 7) for place, session in enumerate(sessions)]
    assert index.count(key_of(0)) == count
    assert [index.registration(session, key_of(0)) for session in sessions] == [(place << 32) + 7 for place in range(count)]
    assert index.registration(sessions[0], key_of(1)) is None
    for session in sessions[1:]:
        index.remove(session, key_of(0))
        index.remove(session, key_of(0))
        assert index.registration(session, key_of(0)) is None
    assert list(index.of(key_of(0))) == [(sessions[0], 7)]
    assert index.count(key_of(0)) == 1
    index.leave(sessions[0])
    assert index.registration(sessions[0], key_of(0)) is None
    assert len(index) == index.count(key_of(0)) == 0


def test_a_key_is_one_object_for_all_that_follow_it() -> None:
    index = Index()
    sessions = [session_of(number) for number in range(3)]
    for session in sessions:
        for number in range(5):
            index.set(session, key_of(number), 1)
    for number in range(5):
        assert len({id(session.followed[number]) for session in sessions}) == 1


def test_place_and_summary_of_a_session_are_apart() -> None:
    session = session_of(1)
    assert (session.place, session.summary) == (None, None)
    session.place = 0
    row = ClientRow(ClientId("c1"))
    assert not session.take(row, 0.0)  # the first summary is no other one
    assert session.place == 0
    assert session.summary == Summary(count=0, digest="0" * 32)
    row.digest.add(b"x")
    assert session.take(row, 0.0)
    assert session.summary == row.digest.summary()
    assert not session.take(row, 0.0)
    session.place = 999_999
    assert (session.place, session.summary) == (999_999, row.digest.summary())
    session.place = None
    assert (session.place, session.summary) == (None, row.digest.summary())


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

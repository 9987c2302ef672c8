"""Who of those online is registered for what: the index of the fast path, in memory, in a compact form.

A million clients with five registrations each are five million entries here. So a session has a number, its place, and the followers of
an object are these numbers and the seqnos of their registrations, twelve bytes each in one string; what a session follows are the objects'
keys, the very ones of the index where they are at hand. Neither is anything that a garbage collector walks through. Only the followers of
an object that has many are a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

from roskva.model import ObjectKey
from roskva.registrar.sessions import NOTHING, Session

_FEW: Final = 32  # followers in one string: to change it takes a copy
_FEW_FOLLOWED: Final = 64  # objects of one session in a tuple, for the same reason
_ENTRY: Final = Struct("<IQ")  # a session's place, and the seqno of its registration
_PLACE: Final = Struct("<I")

Followers: TypeAlias = bytes | dict[int, int]  # the places of the sessions that are registered for one object, each with a seqno


class Index:
    def __init__(self) -> None:
        self._followers: dict[ObjectKey, Followers] = {}
        self._sessions: list[Session | None] = []  # by their places
        self._free: list[int] = []  # places that nobody has

    def __len__(self) -> int:
        """Objects that somebody online is registered for."""
        return len(self._followers)

    def __contains__(self, key: object) -> bool:
        return key in self._followers

    def count(self, key: ObjectKey) -> int:
        followers = self._followers.get(key)
        if followers is None:
            return 0
        return len(followers) if isinstance(followers, dict) else len(followers) // _ENTRY.size

    def of(self, key: ObjectKey) -> Iterator[tuple[Session, int]]:
        """Who follows this object, by which registration. Not to be changed meanwhile."""
        followers = self._followers.get(key)
        if followers is not None:
            sessions = self._sessions
            for place, seqno in followers.items() if isinstance(followers, dict) else _ENTRY.iter_unpack(followers):
                session = sessions[place]
                assert session is not None
                yield session, seqno

    def registration(self, session: Session, key: ObjectKey) -> int | None:
        """The seqno of the registration by which this session follows this object now."""
        place, followers = session.place, self._followers.get(key)
        if place is None or followers is None:
            return None
        if isinstance(followers, dict):
            return followers.get(place)
        at = _at(followers, place)
        return None if at is None else int(_ENTRY.unpack_from(followers, at)[1])

    def set(self, session: Session, key: ObjectKey, seqno: int) -> None:
        place = session.place
        if place is None:
            place = session.place = self._take_place(session)
        followers = self._followers.get(key)
        if followers is None:
            self._followers[key] = _ENTRY.pack(place, seqno)
        elif isinstance(followers, dict):
            known = place in followers
            followers[place] = seqno
            if known:
                return
        elif (known_at := _at(followers, place)) is not None:
            self._followers[key] = followers[:known_at] + followers[known_at + _ENTRY.size :] + _ENTRY.pack(place, seqno)
            return
        else:
            key = self._as_others_have_it(key, followers)
            together = followers + _ENTRY.pack(place, seqno)
            few = len(together) <= _FEW * _ENTRY.size
            self._followers[key] = together if few else dict(_ENTRY.iter_unpack(together))
        if isinstance(session.followed, list):
            session.followed.append(key)
        else:
            session.followed = (*session.followed, key)
            if len(session.followed) > _FEW_FOLLOWED:
                session.followed = list(session.followed)

    def _as_others_have_it(self, key: ObjectKey, followers: bytes) -> ObjectKey:
        """The same key, as one object for all that follow it, if that is found quickly: at the first of them."""
        other = self._sessions[_PLACE.unpack_from(followers)[0]]
        if other is None or isinstance(other.followed, list):
            return key
        return next((known for known in other.followed if known == key), key)

    def _take_place(self, session: Session) -> int:
        if not self._free:
            self._sessions.append(session)
            return len(self._sessions) - 1
        place = self._free.pop()
        self._sessions[place] = session
        return place

    def remove(self, session: Session, key: ObjectKey) -> None:
        """The session's own list keeps it until that is made anew."""
        if session.place is not None:
            self._remove(session.place, key)

    def _remove(self, place: int, key: ObjectKey) -> None:
        followers = self._followers.get(key)
        if isinstance(followers, dict):
            followers.pop(place, None)
        elif followers is not None and (known_at := _at(followers, place)) is not None:
            followers = self._followers[key] = followers[:known_at] + followers[known_at + _ENTRY.size :]
        if followers is not None and not followers:
            del self._followers[key]

    def leave(self, session: Session) -> None:
        place = session.place
        if place is None:
            return
        for key in session.followed:
            self._remove(place, key)
        self._sessions[place] = None
        self._free.append(place)
        session.place = None
        session.followed = NOTHING


def _at(followers: bytes, place: int) -> int | None:
    """Where the entry of this place begins."""
    wanted = _PLACE.pack(place)
    found = followers.find(wanted)
    while found >= 0 and found % _ENTRY.size:  # these bytes may be part of a seqno
        found = followers.find(wanted, found + 1)
    return found if found >= 0 else None

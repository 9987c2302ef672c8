"""Who of those online is registered for what: the index of the fast path, in memory, in a compact form.

A million clients with five registrations each are five million entries here. So a session has a number, its place, and the followers of
an object are these numbers and the seqnos of their registrations, twelve bytes each in one string; what a session follows are references to
these. Neither is anything that a garbage collector walks through. Only the followers of an object that has many are a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from roskva.model import ObjectKey
from roskva.registrar.sessions import NOTHING, Session

_FEW: Final = 32  # followers in one string: to change it takes a copy
_FEW_FOLLOWED: Final = 64  # objects of one session in a tuple, for the same reason
_ENTRY: Final = Struct("<IQ")  # a session's place, and the seqno of its registration


class Followers:
    """The places of the sessions that are registered for one object, each with its registration's seqno."""

    __slots__ = ("_who", "key")

    def __init__(self, key: ObjectKey) -> None:
        self.key = key
        self._who: bytes | dict[int, int] = b""

    def __len__(self) -> int:
        return len(self._who) if isinstance(self._who, dict) else len(self._who) // _ENTRY.size

    def items(self) -> Iterable[tuple[int, int]]:
        return self._who.items() if isinstance(self._who, dict) else _ENTRY.iter_unpack(self._who)

    def set(self, place: int, seqno: int) -> bool:
        """Whether it is new here."""
        before = len(self)
        if isinstance(self._who, dict):
            self._who[place] = seqno
        else:
            self._who = self._without(self._who, place) + _ENTRY.pack(place, seqno)
            if len(self) > _FEW:
                self._who = dict(self.items())
        return len(self) > before

    def remove(self, place: int) -> None:
        if isinstance(self._who, dict):
            self._who.pop(place, None)
        else:
            self._who = self._without(self._who, place)

    @staticmethod
    def _without(who: bytes, place: int) -> bytes:
        for index, (one, _) in enumerate(_ENTRY.iter_unpack(who)):
            if one == place:
                return who[: index * _ENTRY.size] + who[(index + 1) * _ENTRY.size :]
        return who


class Index:
    def __init__(self) -> None:
        self._followers: dict[ObjectKey, Followers] = {}
        self._sessions: list[Session | None] = []  # by their places
        self._free: list[int] = []  # places that nobody has

    def __len__(self) -> int:
        """Objects that somebody online is registered for."""
        return len(self._followers)

    def count(self, key: ObjectKey) -> int:
        followers = self._followers.get(key)
        return 0 if followers is None else len(followers)

    def of(self, key: ObjectKey) -> Iterator[tuple[Session, int]]:
        """Who follows this object, by which registration. Not to be changed meanwhile."""
        followers = self._followers.get(key)
        if followers is not None:
            sessions = self._sessions
            for place, seqno in followers.items():
                session = sessions[place]
                assert session is not None
                yield session, seqno

    def set(self, session: Session, key: ObjectKey, seqno: int) -> None:
        if session.place is None:
            session.place = self._take_place(session)
        followers = self._followers.get(key)
        if followers is None:
            followers = self._followers[key] = Followers(key)
        if not followers.set(session.place, seqno):
            return
        if isinstance(session.followed, list):
            session.followed.append(followers)
        else:
            session.followed = (*session.followed, followers)
            if len(session.followed) > _FEW_FOLLOWED:
                session.followed = list(session.followed)

    def _take_place(self, session: Session) -> int:
        if not self._free:
            self._sessions.append(session)
            return len(self._sessions) - 1
        place = self._free.pop()
        self._sessions[place] = session
        return place

    def remove(self, session: Session, key: ObjectKey) -> None:
        """The session's own list keeps it until that is made anew."""
        followers = self._followers.get(key)
        if followers is not None and session.place is not None:
            self._remove(session.place, followers)

    def _remove(self, place: int, followers: Followers) -> None:
        followers.remove(place)
        if not len(followers) and self._followers.get(followers.key) is followers:
            del self._followers[followers.key]

    def leave(self, session: Session) -> None:
        if session.place is None:
            return
        for followers in session.followed:
            self._remove(session.place, followers)
        self._sessions[session.place] = None
        self._free.append(session.place)
        session.place = None
        session.followed = NOTHING

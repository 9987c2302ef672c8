"""The fast path: an accepted update goes at once to the clients that are online, by an index in memory of what they are registered for.

It brings milliseconds; the pipeline brings the guarantee. Nothing here is kept, awaited or repeated for its own sake: what is not sent, or
is lost, or not acknowledged, the pipeline tells as if this path were not there. It comes for every update, finds most of them
acknowledged, and then neither writes nor sends. So everything may be left out: an update of an object with very many followers, one for
whom there is no room, a hint that another gateway could not pass on.

A registration counts here as soon as it is written, and is named by its seqno: what was acknowledged for one covers nothing of the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from roskva.model import ClientId, ObjectKey, Registration, Update
from roskva.probes import reached
from roskva.protocol.messages import Notify
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import MAYBE_STORED, NOTHING, Counters, Session
from roskva.registrar.unacknowledged import Unacknowledged

_FEW: Final = 8  # followers of an object that are kept in a tuple, which takes a third of a dictionary
_TOLD_PER_TURN: Final = 500  # followers of one object that one turn of the event loop tells
_CROWDS_MAX: Final = 16  # objects with more than that which are being told; those beyond wait for the pipeline
_SPARE: Final = 64  # entries of a session's list that no longer count
_COVERED_MAX: Final = 1_000  # acknowledgements of one client that wait for the pipeline


class Followers:
    """The sessions that are registered for one object, each with its registration's seqno."""

    __slots__ = ("_who", "key")

    def __init__(self, key: ObjectKey) -> None:
        self.key = key
        self._who: tuple[tuple[Session, int], ...] | dict[Session, int] = ()

    def __len__(self) -> int:
        return len(self._who)

    def items(self) -> Iterable[tuple[Session, int]]:
        return self._who.items() if isinstance(self._who, dict) else self._who

    def set(self, session: Session, seqno: int) -> bool:
        """Whether it is new here."""
        before = len(self._who)
        if isinstance(self._who, dict):
            self._who[session] = seqno
        else:
            self._who = (*(one for one in self._who if one[0] is not session), (session, seqno))
        if len(self._who) > _FEW:
            self._who = dict(self._who)
        return len(self._who) > before

    def remove(self, session: Session) -> None:
        if isinstance(self._who, dict):
            self._who.pop(session, None)
        else:
            self._who = tuple(one for one in self._who if one[0] is not session)


class FastPath:
    def __init__(
        self,
        enabled: bool,
        sessions: Mapping[ClientId, Session],
        unacknowledged: Unacknowledged,
        counters: Counters,
        clock: Callable[[], float],
        speak: Callable[..., None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._enabled = enabled
        self._sessions = sessions
        self._unacknowledged = unacknowledged
        self._counters = counters
        self._clock = clock
        self._speak = speak
        self._spawn = spawn
        self._index: dict[ObjectKey, Followers] = {}
        self._crowds: dict[ObjectKey, Update] = {}  # the newest of objects that are being told in turns

    def __len__(self) -> int:
        """Objects that somebody online is registered for."""
        return len(self._index)

    # Who follows what.

    def follow(self, session: Session, row: ClientRow) -> None:
        """After a look at an online client's row. Every operation on a registration raises the row's seqno."""
        stand = (row.seqno, row.epoch)
        if session.followed_at == stand or not self._is_to_be_told(session):
            return
        self.leave(session)
        session.followed = []
        for key in row.registered():
            standing = row.standing(key)
            if standing is not None:
                self._add(session, key, standing.seqno)
        session.followed_at = stand

    def operated(self, session: Session, row: ClientRow, events: Sequence[Registration]) -> None:
        """After a write of these operations: only they are looked at, since a client may have a hundred thousand others."""
        if not self._is_to_be_told(session):
            return
        if session.followed_at is None or len(session.followed) + len(events) > 2 * row.digest.count + _SPARE:
            self.follow(session, row)
            return
        for event in events:
            if event.registered and not row.outdated(event.object):
                self._add(session, event.object, event.seqno)
            elif (followers := self._index.get(event.object)) is not None:
                self._remove(session, followers)  # the session's list keeps it until it is made anew
        session.followed_at = (row.seqno, row.epoch)

    def _is_to_be_told(self, session: Session) -> bool:
        """Not one that ended while its row was read or written: nobody would ever take it out again (seed 102)."""
        return self._enabled and self._sessions.get(session.client) is session

    def _add(self, session: Session, key: ObjectKey, seqno: int) -> None:
        followers = self._index.get(key)
        if followers is None:
            followers = self._index[key] = Followers(key)
        if followers.set(session, seqno):
            session.followed.append(followers)

    def _remove(self, session: Session, followers: Followers) -> None:
        followers.remove(session)
        if not len(followers) and self._index.get(followers.key) is followers:
            del self._index[followers.key]

    def leave(self, session: Session) -> None:
        """The session ended, or is looked at anew."""
        for followers in session.followed:
            self._remove(session, followers)
        session.followed = NOTHING
        session.followed_at = None

    # Telling.

    def updated(self, updates: Sequence[Update]) -> None:
        """These updates were accepted just now, here or at another gateway, and are durable in the feed."""
        if not self._index:
            return
        now_s = self._clock()
        outbox: dict[Session, list[Notify]] = {}
        for update in updates:
            followers = self._index.get(update.object)
            if followers is None:
                continue
            if len(followers) > _TOLD_PER_TURN:
                self._tell_crowd(update)
                continue
            for session, seqno in followers.items():
                self._tell(session, seqno, update, now_s, outbox)
        self._send(outbox)

    def _tell(self, session: Session, seqno: int, update: Update, now_s: float, outbox: dict[Session, list[Notify]]) -> None:
        if update.source and session.device == update.source:
            return
        key = update.object
        covered = session.covered.get(key) if session.covered else None
        if covered is not None and covered[0] == seqno and covered[1] >= update.version:
            return
        unacknowledged = self._unacknowledged
        if session.intervals and unacknowledged.pacing.leaves_out(session, key, seqno, update.version, now_s):
            return
        if not unacknowledged.has_room(session, now_s) or not unacknowledged.may_hear(session, key):
            return
        known = session.outstanding.get((key, False))
        if known is not None and known.seqno > seqno:
            return
        entry = unacknowledged.entry(session, key, seqno, update.version, now_s)
        if entry is known:
            if entry.version is None or entry.version >= update.version:
                return
            entry.version = update.version
            entry.stored = min(entry.stored, MAYBE_STORED)
        entry.hinted = True
        outbox.setdefault(session, []).append(unacknowledged.sent(session, entry, now_s))

    def _send(self, outbox: dict[Session, list[Notify]]) -> None:
        for session, notifications in outbox.items():
            self._counters.sent_at_once += len(notifications)
            self._speak(session, notify=notifications)

    def _tell_crowd(self, update: Update) -> None:
        """So many that others would wait: some in each turn of the loop, and of an object that changes meanwhile the newest version."""
        key = update.object
        before = self._crowds.get(key)
        if before is None and len(self._crowds) < _CROWDS_MAX:
            self._crowds[key] = update
            self._spawn(self._tell_in_turns(key))
        elif before is not None and before.version < update.version:
            self._crowds[key] = update

    async def _tell_in_turns(self, key: ObjectKey) -> None:
        told = -1
        try:
            while self._crowds[key].version > told:
                told = self._crowds[key].version
                followers = self._index.get(key)
                everyone = list(followers.items()) if followers is not None else []
                for start in range(0, len(everyone), _TOLD_PER_TURN):
                    outbox: dict[Session, list[Notify]] = {}
                    now_s = self._clock()
                    for session, seqno in everyone[start : start + _TOLD_PER_TURN]:
                        if session.followed_at is not None:
                            self._tell(session, seqno, self._crowds[key], now_s, outbox)
                    self._send(outbox)
                    await asyncio.sleep(0)
        finally:
            del self._crowds[key]

    # What the pipeline need not tell any more.

    def acknowledged(self, session: Session, key: ObjectKey, seqno: int, version: int) -> None:
        """Before the pipeline came with it. To forget that costs a repetition, which the client answers by itself."""
        if session.covered is None or len(session.covered) >= _COVERED_MAX:
            session.covered = {}
        session.covered[key] = (seqno, version)

    def covers(self, session: Session, key: ObjectKey, seqno: int, version: int) -> bool:
        """Whether the client has acknowledged this version, or a later one, for this very registration."""
        if not session.covered:
            return False
        covered = session.covered.get(key)
        if covered is None or covered[0] != seqno or covered[1] < version:
            return False
        if covered[1] == version:
            del session.covered[key]  # nothing older comes after it
        reached("fast path: what the pipeline tells was acknowledged")
        return True

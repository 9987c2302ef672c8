"""The fast path: an accepted update goes at once to the clients that are online, by an index in memory of what they are registered for.

It brings milliseconds; the pipeline brings the guarantee. Nothing here is kept, awaited or repeated for its own sake: what is not sent, or
is lost, or not acknowledged, the pipeline tells as if this path were not there. It comes for every update, finds most of them
acknowledged, and then neither writes nor sends. So everything may be left out: an update of an object with very many followers, one for
whom there is no room, a hint that another gateway could not pass on.

A registration counts here as soon as it is written, and is named by its seqno: what was acknowledged for one covers nothing of the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roskva.model import ClientId, ObjectKey, Registration, Stamps, Update
from roskva.probes import reached
from roskva.registrar.counters import Counters
from roskva.registrar.following import Index
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import MAYBE_STORED, Outstanding, Session, shared
from roskva.registrar.trails import CLIENTS_MAX, NOBODY, Trails
from roskva.registrar.unacknowledged import Unacknowledged

_SPARE: Final = 64  # entries of a session's list that no longer count
_COVERED_MAX: Final = 1_000  # acknowledgements of one client that wait for the pipeline

_Outbox = dict[Session, list[Outstanding]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of what is told at a time. Worlds of the simulator have tiny ones, too: else nothing of them would ever be at its limit."""

    crowd: int = 500  # followers of one object: more are told in turns
    told_per_turn: int = 100  # of a crowd, in one turn of the event loop
    looked_at_per_turn: int = 10_000  # followers of several objects: with fewer, each of them costs more (docs/performance.md)
    gathered_max: int = 20_000  # notifications that wait for more of their clients
    pause_s: float = 0.0  # between two turns of crowds, at least
    crowds_max: int = 16  # objects with a crowd which are being told; those beyond wait for the pipeline


class _Crowd:
    """The followers of one object that are too many for one turn of the event loop."""

    __slots__ = ("at", "everyone", "newest", "stamps", "told")

    def __init__(self, newest: Update) -> None:
        self.newest = newest
        self.told = -1  # the version that was the newest when this round of them began
        self.everyone: list[Session] = []  # of this round
        self.at = 0
        self.stamps: Stamps | None = None  # of the newest that is sampled


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
        trails: Trails,
    ) -> None:
        self._enabled = enabled
        self._sessions = sessions
        self._unacknowledged = unacknowledged
        self._counters = counters
        self._clock = clock
        self._speak = speak
        self._spawn = spawn
        self._trails = trails
        self.bounds = Bounds()
        self._index = Index()
        self._outbox: _Outbox = {}  # what is sent when all that came together was looked at
        self._gathered = 0  # notifications in it
        self._followed: dict[Session, list[Outstanding]] = {}  # those in it whose times are noted
        self._crowds: dict[ObjectKey, _Crowd] = {}  # which are being told in turns
        self._tells_crowds = False  # a task does
        self.notified = 0  # notifications sent, but for those of crowds
        self.messages = 0  # which they took: fewer, where one client was told several together

    def __len__(self) -> int:
        """Objects that somebody online is registered for."""
        return len(self._index)

    # Who follows what.

    def followed(self, updates: Sequence[Update], stamps: Sequence[Stamps]) -> tuple[Sequence[Update], Sequence[Stamps]]:
        """Those of objects that anybody online here follows."""
        index = self._index
        return [one for one in updates if one.object in index], [one for one in stamps if one.object in index]

    def follow(self, session: Session, row: ClientRow) -> None:
        """After a look at an online client's row. Every operation on a registration raises the row's seqno."""
        stand = _stand(row)
        if session.followed_at == stand or not self._is_to_be_told(session):
            return
        self._index.leave(session)
        for key, seqno in row.standings():
            self._index.set(session, key, seqno)
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
                self._index.set(session, event.object, event.seqno)
            else:
                self._index.remove(session, event.object)
        session.followed_at = _stand(row)

    def _is_to_be_told(self, session: Session) -> bool:
        """Not one that ended while its row was read or written: nobody would ever take it out again (seed 102)."""
        return self._enabled and self._sessions.get(session.client) is session

    def leave(self, session: Session) -> None:
        """The session ended."""
        self._index.leave(session)
        session.followed_at = None

    # Telling.

    def updated(self, updates: Sequence[Update], stamps: Sequence[Stamps] = (), more: bool = False) -> int:
        """These updates were accepted just now, here or at another gateway, and are durable in the feed; of sampled ones, since when.

        Answers how many of them were looked at, from the first on. The others have so many followers that they are to come again in a
        turn of the event loop that is theirs. `more`: others come in the next turn. What all of these tell a client shares a message.
        """
        if not self._index and not self._outbox:
            return len(updates)
        now_s = self._clock()
        room, crowd = self.bounds.looked_at_per_turn, self.bounds.crowd
        done = len(updates)
        for number, update in enumerate(updates):
            count = self._index.count(update.object)
            if count > crowd:
                self._tell_crowd(update)
                continue
            room -= count
            if room < 0:
                reached("fast path: others are looked at in a turn of their own")
                done = number
                break
            for session, seqno in self._index.of(update.object):
                self._gathered += self._tell(session, seqno, update, now_s, self._outbox)
        if stamps:
            self._note_followed(updates[:done], stamps, now_s)
        if self._gathered >= self.bounds.gathered_max or (done == len(updates) and not more):
            outbox, followed = self._outbox, self._followed
            self._outbox, self._followed, self._gathered = {}, {}, 0
            notified, messages = self._send(outbox, now_s, followed)
            self.notified += notified
            self.messages += messages
        return done

    def _note_followed(self, updates: Sequence[Update], stamps: Sequence[Stamps], now_s: float) -> None:
        """Of those who are told of sampled updates, a few; those who are told in turns are looked at then."""
        versions = {(one.object, one.version) for one in updates}
        stamps = [one for one in stamps if (one.object, one.version) in versions]
        for one in stamps:
            if (crowd := self._crowds.get(one.object)) is not None and crowd.newest.version == one.version:
                crowd.stamps = one
        told = (
            (session, entry)
            for one in stamps
            if self._index.count(one.object) <= self.bounds.crowd
            for session, _ in self._index.of(one.object)
            if (entry := session.outstanding.get((one.object, False))) is not None
        )
        for session, entries in self._trails.follow(self._trails.of(stamps), told, now_s).items():
            self._followed.setdefault(session, []).extend(entries)

    def _tell(self, session: Session, seqno: int, update: Update, now_s: float, outbox: _Outbox) -> bool:
        """Whether it is in the outbox now, and was not."""
        if update.source and session.is_of(update.source):
            return False
        key, busy = update.object, session.busy
        covered = busy.covered.get(key) if busy.covered else None
        if covered is not None and covered[0] == seqno and covered[1] >= update.version:
            return False
        unacknowledged = self._unacknowledged
        if busy.intervals and unacknowledged.pacing.leaves_out(session, key, seqno, update.version, now_s):
            return False
        if not unacknowledged.has_room(session, now_s) or not unacknowledged.may_hear(session, key):
            return False
        known = busy.outstanding.get((key, False))
        if known is not None and known.seqno > seqno:
            return False
        entry = unacknowledged.entry(session, key, seqno, update.version, now_s)
        if entry is known:
            if entry.version is None or entry.version >= update.version:
                return False
            entry.version = update.version
            entry.stored = min(entry.stored, MAYBE_STORED)
        if entry.gathered:
            return False
        entry.gathered = entry.hinted = True
        entry.sent_s = now_s  # as good as: whoever else comes with it need not send it
        entry.due_s = now_s + session.settings.resend_min_s
        entries = outbox.get(session)
        if entries is None:
            outbox[session] = [entry]
        else:
            entries.append(entry)
        return True

    def _send(self, outbox: _Outbox, now_s: float, followed: Mapping[Session, list[Outstanding]]) -> tuple[int, int]:
        """What is still owed of it: a session or a registration may have ended since it was looked at. How many, in how many messages."""
        sent = self._unacknowledged.sent
        notified = messages = 0
        for session, entries in outbox.items():
            outstanding = session.outstanding
            notifications = []
            for entry in entries:
                entry.gathered = False
                if outstanding.get((entry.object, False)) is entry:
                    notifications.append(sent(session, entry, now_s))
            if notifications:
                notified += len(notifications)
                messages += 1
                self._speak(session, notify=notifications)
                if followed and session in followed:
                    self._trails.sent(followed[session])
        self._counters.sent_at_once += notified
        return notified, messages

    def _tell_crowd(self, update: Update) -> None:
        """So many that others would wait: some in each turn of the loop, and of an object that changes meanwhile the newest version."""
        crowd = self._crowds.get(update.object)
        if crowd is not None:
            if crowd.newest.version < update.version:
                reached("fast path: a crowd is told of the newest half way")
                crowd.newest = update
        elif len(self._crowds) < self.bounds.crowds_max:
            self._crowds[update.object] = _Crowd(update)
            if not self._tells_crowds:
                self._tells_crowds = True
                self._spawn(self._tell_crowds())

    async def _tell_crowds(self) -> None:
        """Some of one crowd, then some of the next: others have as much time as all crowds together."""
        try:
            while self._crowds:
                for key, crowd in list(self._crowds.items()):
                    began_s = self._clock()
                    if not self._tell_some(crowd):
                        del self._crowds[key]
                    await asyncio.sleep(max(self._clock() - began_s, self.bounds.pause_s))
        finally:
            self._tells_crowds = False
            self._crowds.clear()

    def _tell_some(self, crowd: _Crowd) -> bool:
        """The next of them; whether anybody is left."""
        key = crowd.newest.object
        if crowd.at >= len(crowd.everyone):
            if crowd.newest.version <= crowd.told:
                return False
            crowd.told = crowd.newest.version
            crowd.everyone, crowd.at = [session for session, _ in self._index.of(key)], 0
        outbox: _Outbox = {}
        now_s = self._clock()
        until = crowd.at + self.bounds.told_per_turn
        for session in crowd.everyone[crowd.at : until]:
            seqno = self._index.registration(session, key)
            if seqno is None:
                reached("fast path: one of a crowd left before its turn")
            else:
                self._tell(session, seqno, crowd.newest, now_s, outbox)
        self._send(outbox, now_s, self._followed_in(crowd, outbox, now_s))
        if crowd.at:
            reached("fast path: a crowd is told in turns")
        crowd.at = until
        return crowd.at < len(crowd.everyone) or crowd.newest.version > crowd.told

    def _followed_in(self, crowd: _Crowd, outbox: _Outbox, now_s: float) -> Mapping[Session, list[Outstanding]]:
        """The last one of a turn, and of few turns, from the first to the last: who hears late is looked at as well."""
        size = self.bounds.told_per_turn
        turn, turns = crowd.at // size, -(-len(crowd.everyone) // size)
        if crowd.stamps is None or not outbox or (turn + 1) * CLIENTS_MAX // turns == turn * CLIENTS_MAX // turns:
            return NOBODY
        session = next(reversed(outbox))
        entry = session.outstanding.get((crowd.stamps.object, False))
        return NOBODY if entry is None else self._trails.follow(self._trails.of([crowd.stamps]), [(session, entry)], now_s)

    # What the pipeline need not tell any more.

    def acknowledged(self, session: Session, key: ObjectKey, seqno: int, version: int) -> None:
        """And nothing of it is written: it needs neither the pipeline nor a hint that comes late. To forget that costs a repetition, which
        the client answers by itself."""
        if not self._enabled:
            return
        busy = session.begin()
        if busy.covered is None:
            busy.covered = {}
        elif len(busy.covered) >= _COVERED_MAX and key not in busy.covered:
            del busy.covered[next(iter(busy.covered))]
        busy.covered[key] = (seqno, version)

    def covers(self, session: Session, key: ObjectKey, seqno: int, version: int) -> bool:
        """Whether the client has acknowledged this version, or a later one, for this very registration."""
        acknowledged = session.busy.covered
        if not acknowledged:
            return False
        covered = acknowledged.get(key)
        if covered is None or covered[0] != seqno or covered[1] < version:
            return False
        if covered[1] == version:
            del acknowledged[key]  # nothing older comes after it
        reached("fast path: what the pipeline tells was acknowledged")
        return True


def _stand(row: ClientRow) -> int:
    """The seqno and the epoch of a row as one number; in the first epoch it is the seqno itself."""
    return row.epoch << 64 | row.seqno if row.epoch else shared(row.seqno)

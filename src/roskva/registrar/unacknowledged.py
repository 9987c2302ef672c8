"""Notifications in memory until they are acknowledged: sent again when that is due, let go of when memory is short (Thialfi 4.1.4, 4.2.5).

At most `outstanding_max` of them are here; what is beyond is only stored, and its session has `more`: the row is read again when there is
room. Half of the room is for those who answer: while the other half is taken, the notifications of a client that is silent are let go of.
From then until it is heard it has its turns at growing pauses, and in that other half only. Nothing is lost by it: what is not stored yet
is awaited by a propagation call, which then writes it. This module reads and writes no rows: Delivery and the rounds do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from roskva.config import Settings
from roskva.model import ObjectKey, epoch_of, name_of, name_to_text
from roskva.probes import reached
from roskva.protocol.messages import Notify
from roskva.registrar.counters import Counters
from roskva.registrar.pacing import Interval, Pacing
from roskva.registrar.row import ClientRow, Waiting
from roskva.registrar.sessions import MAYBE_STORED, STORED, Outstanding, Session
from roskva.registrar.wheel import Wheel

NOTIFICATIONS_PER_MESSAGE_MAX: Final = 1_000
WAITING_IN_MEMORY_MAX: Final = 1_000  # of one client; the table has the others, and they follow when these are acknowledged
READ_AT_A_TIME: Final = 500  # rows that one round of resends asks for
_READ_AGAIN_S: Final = 5.0  # rows whose notifications do not fit into memory now are read again so often
_TEXTS_KEPT_MAX: Final = 100_000
_SLOT_S: Final = 0.0625  # of the times at which to send again: a quarter of a round
_SILENT_AFTER: Final = 7  # times resend_min_s: when a third resend is due, after pauses of 1, 2 and 4


class Hearing(Protocol):
    """What a session's user may be told."""

    def may_hear(self, session: Session, key: ObjectKey) -> bool: ...
    def is_held(self, session: Session) -> bool: ...


class Unacknowledged:
    def __init__(
        self, settings: Settings, counters: Counters, clock: Callable[[], float], speak: Callable[..., None], users: Hearing
    ) -> None:
        self._max = settings.outstanding_max
        self._of_silent_max = (settings.outstanding_max + 1) // 2
        self._counters = counters
        self._clock = clock
        self._speak = speak
        self._users = users
        self.sessions: dict[Session, None] = {}  # to whom something is owed
        self._touched: dict[Session, None] = {}  # those to whom more is owed than at the last round
        self._more: dict[Session, None] = {}  # whose rows hold more than is here; those whose rows were asked for last come last
        self._due: Wheel[Session] = Wheel(_SLOT_S)  # when to look at those to whom something was sent
        self._visits: dict[Session, int] = {}  # in which slot of it each is
        self.count = 0  # of notifications, over all sessions
        self.pacing = Pacing(settings.outstanding_max, counters, clock, self.tell_held_back)
        self._texts: dict[ObjectKey, tuple[str, int]] = {}  # how messages call an object, and its epoch
        self._said: tuple[int | None, str | None] = None, None  # the last version, and its text: many are told of it

    def has_room(self, session: Session, now_s: float) -> bool:
        """Whether one more notification of this session may be kept here now."""
        if session.busy.let_go:
            return self.count < self._of_silent_max and now_s - session.busy.let_go_s >= session.busy.let_go_pause_s
        return self.count < self._max

    def may_hear(self, session: Session, key: ObjectKey) -> bool:
        """Whether the session's user may be told of this now; else it stays stored, and `more` is owed."""
        return session.identity is None or self._users.may_hear(session, key)

    def entry(self, session: Session, key: ObjectKey, seqno: int, version: int | None, now_s: float) -> Outstanding:
        """What is outstanding for this registration and kind; one of an earlier registration is replaced."""
        entry = session.busy.outstanding.get(name := (key, version is None))
        if entry is not None:
            if entry.seqno == seqno:
                return entry
            entry.release()
            self.count -= 1
        busy = session.begin()
        if not busy.outstanding:
            busy.awaited_s = now_s
        entry = busy.outstanding[name] = Outstanding(key, seqno, version)
        self.count += 1
        self.sessions[session] = None
        return entry

    def sent(self, session: Session, entry: Outstanding, now_s: float) -> Notify:
        """The message for an entry that goes out now, and not because it was due."""
        if session.is_paced and self.pacing.sent(session, entry, now_s):
            entry.stored = max(entry.stored, MAYBE_STORED)
        pause_s = session.settings.resend_min_s
        entry.sent_s = now_s
        entry.pause_s = pause_s
        entry.due_s = now_s + pause_s
        self._touched[session] = None  # one of before, with a later version, may be due sooner than it was
        return self._notify(entry)

    def _notify(self, entry: Outstanding) -> Notify:
        known = self._texts.get(entry.object)
        if known is None:
            if len(self._texts) >= _TEXTS_KEPT_MAX:
                self._texts.clear()
            known = self._texts[entry.object] = name_to_text(name_of(entry.object)), epoch_of(entry.object)
        version = entry.version
        if version != self._said[0]:
            self._said = version, None if version is None else str(version)
        return Notify(known[0], str(entry.seqno), self._said[1], known[1])

    def owe_more(self, session: Session) -> None:
        """The row holds something for this session that is not here."""
        session.begin().more = True
        self.sessions[session] = self._more[session] = None

    def remove(self, session: Session, name: tuple[ObjectKey, bool]) -> Outstanding:
        entry = session.busy.outstanding.pop(name)
        self.count -= 1
        if not session.busy.outstanding:
            self._touched[session] = None  # the next round sees that nothing is owed
        return entry

    def take_up(self, session: Session, waiting: Waiting, now_s: float, notifications: list[Notify]) -> bool:
        """Keep and send what is stored and waits, unless it was sent already. False: there is no room, or it may not be heard now."""
        version = waiting.version
        if version is not None and self.pacing.holds(session, waiting.object, waiting.seqno, version, now_s, stored=True):
            return True
        known = session.outstanding.get((waiting.object, waiting.version is None))
        if known is not None and known.seqno == waiting.seqno:
            known.stored = STORED
            if waiting.version is None or known.version is None or waiting.version <= known.version:
                return True  # it was sent, and is sent again when that is due
            known.version = waiting.version
        elif len(session.outstanding) >= WAITING_IN_MEMORY_MAX or not self.has_room(session, now_s):
            return False
        if not self.may_hear(session, waiting.object):
            return False
        entry = self.entry(session, waiting.object, waiting.seqno, waiting.version, now_s)
        entry.stored = STORED
        notifications.append(self.sent(session, entry, now_s))
        return True

    def resume(self, session: Session, row: ClientRow) -> None:
        """Send what the row says is waiting: at session start, after a blind write, at a scan. At most so many at a time."""
        now_s = self._clock()
        notifications: list[Notify] = []
        if session.more:
            session.busy.more = False
        self._forget_outdated(session, row)
        for waiting in list(row.waiting()):
            if not self.take_up(session, waiting, now_s, notifications):
                self.owe_more(session)
                if session.identity is None:
                    break  # there is no room. What only may not be heard now holds up nothing else.
        for start in range(0, len(notifications), NOTIFICATIONS_PER_MESSAGE_MAX):
            self._speak(session, notify=notifications[start : start + NOTIFICATIONS_PER_MESSAGE_MAX])
        self._counters.resent += len(notifications)

    def _forget_outdated(self, session: Session, row: ClientRow) -> None:
        """By a fresh row: what an earlier registration or epoch yielded is void, whoever wrote the later, even if its write failed."""
        for name, entry in list(session.outstanding.items()):
            standing = row.standing(entry.object)
            if row.outdated(entry.object) or (standing is not None and standing.seqno > entry.seqno):
                reached("delivery: an earlier registration's notification is void")
                self.remove(session, name).release()
        for interval in list((session.intervals or {}).values()):
            standing = row.standing(interval.object)
            if row.outdated(interval.object) or (standing is not None and standing.seqno > interval.seqno):
                self.pacing.end(interval)

    def resend_due(self) -> list[Session]:
        """Send again what was not acknowledged in time; answers sessions for which the table holds more than memory does.

        Looked at is who is due. Only where memory is short, everybody: who is silent makes room.
        """
        now_s = self._clock()
        crowded = self.count >= self._of_silent_max
        due = self._take_due(now_s)
        try:
            for session in list(self.sessions) if crowded else due:
                if session.outstanding:
                    if crowded and session.is_silent(now_s, _SILENT_AFTER):
                        self._let_go(session, now_s)
                        continue
                    self._resend(session, now_s)
                if not session.outstanding and not session.more:
                    self.sessions.pop(session, None)
        finally:
            for session in due:  # also after a failure: nobody else would look at them again
                self._look_again(session, now_s)
        drained = self._to_be_read(now_s)
        for session in drained:
            self._to_the_end(session)
        return drained

    def _take_due(self, now_s: float) -> list[Session]:
        """Those who are touched, or whose time has come: no others."""
        due, self._touched = self._touched, {}
        for slot, session in self._due.take(now_s + _SLOT_S):
            if self._visits.get(session) == slot:
                del self._visits[session]
                due[session] = None
        return [session for session in due if session in self.sessions]

    def _look_again(self, session: Session, now_s: float) -> None:
        """When the first of what was sent is due, unless a look is planned before that."""
        if session.outstanding and session in self.sessions:
            due_s = max(now_s, min(entry.due_s for entry in session.outstanding.values()))
            visit = self._visits.get(session)
            if visit is None or due_s < visit * _SLOT_S:
                self._visits[session] = self._due.put(session, due_s)

    def _to_be_read(self, now_s: float) -> list[Session]:
        """Those who answer come before those who were let go of, and of both those first whose turn was longest ago."""
        answering: list[Session] = []
        silent: list[Session] = []
        for session in list(self._more):
            if not session.more or session not in self.sessions:
                del self._more[session]
                self._touched[session] = None  # perhaps nothing is owed any more
            elif self._is_to_be_read(session, now_s):
                (silent if session.is_let_go else answering).append(session)
                if len(answering) == READ_AT_A_TIME:
                    return answering
        return [*answering, *silent[: max(0, self._of_silent_max - self.count)]][:READ_AT_A_TIME]

    def _resend(self, session: Session, now_s: float) -> None:
        due = [entry for entry in session.outstanding.values() if entry.due_s <= now_s and self.may_hear(session, entry.object)]
        for entry in due[:NOTIFICATIONS_PER_MESSAGE_MAX]:
            entry.pause_s = min(entry.pause_s * 2, session.settings.resend_max_s)
            entry.due_s = now_s + entry.pause_s
            entry.sent_s = now_s
            if session.is_paced:
                self.pacing.sent(session, entry, now_s)
        if due:
            self._counters.resent += len(due)
            self._speak(session, notify=[self._notify(entry) for entry in due[:NOTIFICATIONS_PER_MESSAGE_MAX]])

    def tell_held_back(self) -> None:
        """Intervals are over: the newest version of each goes out, and begins the next."""
        now_s = self._clock()
        outbox: dict[Session, list[Notify]] = {}
        for interval in self.pacing.due(now_s):
            session, version = interval.session, interval.held
            entry = None if version is None else self._entry_of_held_back(interval, version, now_s)
            if entry is None:
                self.pacing.end(interval)
            else:
                outbox.setdefault(session, []).append(self.sent(session, entry, now_s))
                self.pacing.go_on(interval)
        for session, notifications in outbox.items():
            self._counters.sent += len(notifications)
            for start in range(0, len(notifications), NOTIFICATIONS_PER_MESSAGE_MAX):
                self._speak(session, notify=notifications[start : start + NOTIFICATIONS_PER_MESSAGE_MAX])

    def _entry_of_held_back(self, interval: Interval, version: int, now_s: float) -> Outstanding | None:
        """None: it is not sent now. The row has it and is read again, or the pipeline brings it, or it is void."""
        session, name = interval.session, (interval.object, False)
        known = session.outstanding.get(name)
        if known is not None and (known.seqno > interval.seqno or (known.seqno == interval.seqno and (known.version or 0) >= version)):
            return None
        if not self.has_room(session, now_s) or not self.may_hear(session, interval.object):
            if interval.stored:
                self.owe_more(session)
            return None
        entry = self.entry(session, interval.object, interval.seqno, version, now_s)
        entry.version = version
        if entry is known:
            entry.stored = min(entry.stored, MAYBE_STORED)
        entry.hinted = entry.hinted or interval.hinted
        return entry

    def _is_to_be_read(self, session: Session, now_s: float) -> bool:
        if session.identity is not None and self._users.is_held(session):
            return False
        if session.is_let_go:
            return self.has_room(session, now_s)
        if len(session.outstanding) >= WAITING_IN_MEMORY_MAX // 2:
            return False
        return self.count < self._max or now_s - session.read_s >= _READ_AGAIN_S

    def _let_go(self, session: Session, now_s: float) -> None:
        """Make room for those who answer. What a call waits for it writes now; the row has the rest, and is read again in its turn."""
        reached("delivery: a silent client's notifications are let go of")
        busy = session.begin()
        pause_s = 2 * busy.let_go_pause_s if busy.let_go else _SILENT_AFTER * session.settings.resend_min_s
        busy.let_go_pause_s = min(pause_s, session.settings.resend_max_s)
        busy.let_go_s = now_s
        busy.let_go = True
        self._counters.let_go += len(busy.outstanding)
        for name in list(session.outstanding):
            self.remove(session, name).release()
        self.owe_more(session)
        self._to_the_end(session)

    def _to_the_end(self, session: Session) -> None:
        """Others first, the next time. Nothing, if it left meanwhile."""
        if session in self._more:
            del self._more[session]
            self._more[session] = None

    def forget(self, session: Session, key: ObjectKey | None = None) -> None:
        """The session ended, or (with a key) an object was unregistered: nothing more is sent; who waits writes instead."""
        self.pacing.forget(session, key)
        names = list(session.outstanding) if key is None else [(key, False), (key, True)]
        for name in names:
            if name in session.outstanding:
                self.remove(session, name).release()
        if key is None or (not session.outstanding and not session.more):
            self.sessions.pop(session, None)
            self._touched.pop(session, None)
            self._more.pop(session, None)
            self._visits.pop(session, None)

    def rest(self) -> None:
        """Nothing is owed to anybody: give back what only busy times need."""
        if self._texts and not self.sessions:
            self._texts = {}

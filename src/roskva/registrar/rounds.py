"""What a Registrar does by itself, round after round: resend, keep alive, follow marks, look again (Thialfi 4.1.2, 4.2.3).

Each round is proportional to what is due, not to the number of clients, and none holds up the event loop for more than some milliseconds.
A failure ends a round, never the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

from roskva.config import Settings
from roskva.errors import CredentialExpired, TokenElsewhere, Unavailable
from roskva.model import ClientId, Registration
from roskva.probes import reached
from roskva.registrar.sessions import IDLE
from roskva.registrar.wheel import Wheel
from roskva.table.lanes import TableLanes

if TYPE_CHECKING:
    from roskva.registrar.service import Registrar
    from roskva.registrar.sessions import Session

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
_ROWS_AT_A_TIME: Final = 500
_VISITED_PER_TURN: Final = 200  # sessions in one turn of the event loop: a message takes some 10 microseconds
_MARKED_AT_A_TIME: Final = 5_000  # rows of marked clients that one round reads, so that resends and keepalives wait for no more
_KEPT_VISIT: Final = 5  # keepalives between two visits to a session that its line keeps alive: what it needs no more is taken back
_OTHERS_HEARD_BEATS: Final = 3  # by then every gateway and the pipeline have seen a change of members
_SETTLING_SLOT_S: Final = 0.0625
_SLOW_AFTER_S: Final = 5.0
_SETTLING_LOOK_S: Final = 1.0
_SETTLED_AFTER_S: Final = 1.0  # after so long without a word, a client that was told of unsettled work learns that it is settled


class Rounds:
    def __init__(
        self, registrar: Registrar, settings: Settings, table: TableLanes, clock: Callable[[], float], tick_s: float = TICK_S
    ) -> None:
        self.registrar = registrar
        self._settings = settings
        self._table = table
        self._clock = clock
        self._tick_s = tick_s
        self.incarnations: dict[int, int] = {}  # of the partitions that were looked at here, or by an admission
        # Of the applications, as all sessions here have heard of them.
        self.epochs = {application: registrar.epoch_of(application) for application in settings.applications}
        self._next_second_s = clock()
        self.marked: dict[ClientId, None] = {}  # whose marks were seen and whose rows were not yet read, the oldest first
        self._unfinished_found: Counter[int] = Counter()  # by partition, since it was taken over
        self.pending: dict[ClientId, None] = {}  # clients whose sessions had something pending at the last scan, or since
        self._look_at_all_s: list[float] = []
        self._visits: Wheel[ClientId] = Wheel()
        self._settling: Wheel[Session] = Wheel(_SETTLING_SLOT_S)  # of those in `unsettled_told`, when to look whether it is settled

    def members_changed(self, settling_until_s: float) -> None:
        """What an earlier owner stored before it heard of the change is in no session's memory here: look at all, twice."""
        others_heard_s = _OTHERS_HEARD_BEATS * self._settings.member_heartbeat_s
        self._look_at_all_s = [self._clock() + others_heard_s, settling_until_s + others_heard_s]
        self._next_second_s = self._clock()
        self._unfinished_found.clear()

    async def run(self) -> None:
        next_scan_s = next_marks_s = self._clock()
        while True:
            await asyncio.sleep(self._tick_s)
            try:
                now_s = self._clock()
                for session in self.registrar.unacknowledged.resend_due():
                    self.registrar.spawn(self.registrar.reread(session))
                self._tell_settled(now_s)
                await self._keep_alive(now_s)
                await self.registrar.lines.keep_alive(now_s)
                if now_s >= self._next_second_s:
                    self._next_second_s = now_s + 1.0
                    await self._notice_lost_partitions()
                    await self._notice_resets()
                    self.registrar.rows.evict_idle(self._settings.row_idle_s)
                    self.registrar.unacknowledged.rest()
                if now_s >= next_marks_s:
                    next_marks_s = now_s + self._settings.mark_poll_s
                    await self._follow_marks()
                if now_s >= next_scan_s:
                    next_scan_s = now_s + self._settings.scan_s
                    await self._scan()
                if self._look_at_all_s and now_s >= self._look_at_all_s[0]:
                    self._look_at_all_s.pop(0)
                    await self._look_at(list(self.registrar.sessions))
            except Unavailable as error:
                log.warning("background work is delayed: %s", error)
            except Exception:
                log.exception("background work failed; it goes on")

    async def _notice_lost_partitions(self) -> None:
        """A partition of ours that was lost has a new incarnation: its clients are nobody's until they start anew."""
        owned = sorted(self.registrar.owned)
        looks = (self._table.incarnation_of("registrar", partition) for partition in owned)
        for partition, incarnation in zip(owned, await asyncio.gather(*looks, return_exceptions=True), strict=True):
            if isinstance(incarnation, Unavailable):
                log.warning("%s", incarnation)  # the next look sees what became of it
                continue
            if isinstance(incarnation, BaseException):
                raise incarnation
            if self.incarnations.setdefault(partition, incarnation) == incarnation:
                continue
            log.error("Registrar partition %d was lost: its clients start anew", partition)
            self.incarnations[partition] = incarnation
            self.registrar.rows.drop_all()
            await self._dismiss_all(partition)

    async def _dismiss_all(self, partition: int) -> None:
        """Some in each turn of the event loop. Whoever is admitted meanwhile has a token of the new incarnation."""
        lost = [one for one in self.registrar.sessions.values() if one.partition == partition and one.channel is not None]
        for turn, session in enumerate(lost, 1):
            if self.registrar.sessions.get(session.client) is session:
                self.registrar.dismiss(session, TokenElsewhere.code, keep=True)
            if turn % _VISITED_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _notice_resets(self) -> None:
        """An epoch that rose: rows in memory count for the old one. The sessions' rows are read anew, and their clients told."""
        for application in self._settings.applications:
            epoch = self.registrar.epoch_of(application)
            known = self.epochs.get(application)  # None: an application that was added meanwhile
            if known == epoch:
                continue
            behind = [one.client for one in self.registrar.sessions.values() if one.application == application and one.epoch < epoch]
            if known is not None:
                log.warning("%s was reset: %d clients here state their registrations again", application, len(behind))
            self.registrar.rows.drop_epochs_before(epoch, application)
            await self._look_at(behind)
            if not any(one.application == application and one.epoch < epoch for one in self.registrar.sessions.values()):
                self.epochs[application] = epoch  # else rows could not be read now: the next look goes on

    def told_unsettled(self, session: Session, now_s: float) -> None:
        """It learns when all is settled."""
        if session not in self.registrar.unsettled_told:
            self.registrar.unsettled_told[session] = None
            self._settling.put(session, now_s + _SETTLED_AFTER_S)

    def _tell_settled(self, now_s: float) -> None:
        """Those who were told of unsettled work a second ago or more, and nothing since. Who is slow is looked at less often."""
        for _, session in self._settling.take(now_s + _SETTLING_SLOT_S):
            if session not in self.registrar.unsettled_told:
                continue  # it left
            silent_s = now_s - session.sent_s
            if session.unsettled == 0 and silent_s >= _SETTLED_AFTER_S:
                self.registrar.unsettled_told.pop(session, None)
                if not self.registrar.lines.settles(session):
                    self.registrar.speak(session)
            elif silent_s < _SETTLED_AFTER_S:
                self._settling.put(session, session.sent_s + _SETTLED_AFTER_S)
            else:
                self._settling.put(session, now_s + (_SETTLING_LOOK_S if silent_s > _SLOW_AFTER_S else _SETTLING_SLOT_S))
        self.registrar.lines.flush()

    # Keepalives: every session is in one slot of the wheel, by its client's id, so that one that ended is not kept for it.

    def expect(self, session: Session, now_s: float) -> None:
        """To visit the session when its next keepalive is due, or it has been silent for too long."""
        due_s = now_s + _KEPT_VISIT * session.settings.keepalive_s if _is_kept(session) else _keepalive_due_s(session)
        session.visit = self._visits.put(session.client, min(due_s, session.heard_s + session.settings.offline_s))

    async def _keep_alive(self, now_s: float) -> None:
        visited = 0
        for slot, client in self._visits.take(now_s):
            session = self.registrar.sessions.get(client)
            if session is None or session.visit != slot:
                continue  # it left, or came again
            self._visit(session, now_s)
            visited += 1
            if visited % _VISITED_PER_TURN == 0:
                await asyncio.sleep(0)

    def _visit(self, session: Session, now_s: float) -> None:
        if now_s - session.heard_s > session.settings.offline_s:
            channel = session.channel
            self.registrar.leave(session)
            if channel is not None:
                channel.close("offline")
            return
        if session.busy is not IDLE and now_s - session.heard_s > self._settings.row_idle_s:
            session.rest(now_s)
        if not _is_kept(session) and now_s >= _keepalive_due_s(session):
            if self.registrar.users.is_current(session.identity):
                self.registrar.speak(session)
            else:
                self.registrar.refuse(session, CredentialExpired())
        self.expect(session, now_s)

    async def _follow_marks(self) -> None:
        """What a Matcher task, or an owner before this one, left for clients of ours; what was shed; registrations that are overdue."""
        recovery = self.registrar.recovery
        newly_marked = await recovery.newly_marked(self._room())
        self.marked |= dict.fromkeys(newly_marked)
        found_again = await recovery.found_again(self._room())
        self.marked |= dict.fromkeys(found_again)
        await self._look_at([*islice(self.marked, _MARKED_AT_A_TIME), *recovery.overdue()])
        if recovery.taken_over:
            self._tell_taken_over(recovery.taken_over)

    def _room(self) -> int:
        return max(0, self._settings.unfinished_max - len(self.marked))

    def _tell_taken_over(self, taken_over: dict[int, float]) -> None:
        """What recovery by marks found, once for each partition that is ours now: when all its marked clients were looked at."""
        to_look_at = {self.registrar.rows.key(client).partition for client in self.marked}
        for partition in [partition for partition in taken_over if partition not in to_look_at]:
            took_ms = 1000.0 * (self._clock() - taken_over.pop(partition))
            log.info("found %d unfinished of partition %d in %.0f ms", self._unfinished_found.pop(partition, 0), partition, took_ms)

    def shed(self) -> None:
        """Give back the memory: the scan finds marked clients again. Those that are online and were not marked are all looked at."""
        self.registrar.recovery.shed_marked(list(self.marked))
        self.marked = {}
        self._look_at_all_soon()

    def _look_at_all_soon(self) -> None:
        """At those that are online: not all of them have a mark by which the scan would find them."""
        soon_s = self._clock() + self._settings.scan_s
        if not any(look_s <= soon_s for look_s in self._look_at_all_s):
            self._look_at_all_s.insert(0, soon_s)

    async def _scan(self) -> None:
        """Read again the rows of online clients with unfinished work: the net under the resends from memory."""
        sessions = self.registrar.sessions
        self.pending = {client: None for client in self.pending if (one := sessions.get(client)) is not None and one.pending}
        await self._look_at(list(self.pending | {session.client: None for session in self.registrar.unacknowledged.sessions}))
        await self.registrar.recovery.refresh()

    async def _look_at(self, clients: list[ClientId]) -> None:
        """Go on with what these rows show. A mark is done with only when its row was read."""
        for start in range(0, len(clients), _ROWS_AT_A_TIME):
            some = clients[start : start + _ROWS_AT_A_TIME]
            rows, _ = await self.registrar.rows.get_many(some, fresh=True, keep=False)
            self.registrar.recovery.postpone(client for client in some if client not in rows)
            pending: list[Registration] = []
            for client, row in rows.items():
                session = self.registrar.sessions.get(client)
                if row.pending_count or (session is not None and row.waits):
                    self._unfinished_found[self.registrar.rows.key(client).partition] += bool(self.registrar.recovery.taken_over)
                if session is None:
                    self.registrar.recovery.finished(row)
                    pending += self.registrar.telling.pending_again(row)
                else:
                    self.registrar.take_in(session, row)
            await self.registrar.telling.append(pending, marked=False)
            for client in rows:
                self.marked.pop(client, None)
            self._put_back([client for client in some if client not in rows])

    def _put_back(self, unread: list[ClientId]) -> None:
        """Their rows cannot be read now: others first. A partition that fails for long must not take all the room from the others."""
        if not unread:
            return
        reached("rounds: rows could not be read, and are looked at again")
        for client in unread:
            self.marked.pop(client, None)
        stay = max(0, self._settings.unfinished_max // 2 - len(self.marked))
        self.marked |= dict.fromkeys(unread[:stay])
        if unread[stay:]:
            self.registrar.recovery.shed_marked(unread[stay:])
            self._look_at_all_soon()


def _is_kept(session: Session) -> bool:
    """By the keepalive of its line, once it was spoken to."""
    return session.sent_s > 0.0 and session.keeper is not None


def _keepalive_due_s(session: Session) -> float:
    return session.sent_s + session.settings.keepalive_s

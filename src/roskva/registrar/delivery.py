"""Delivery: from the Matcher's propagations to acknowledged clients (Thialfi 4.1.4 steps 4 to 6, 4.2.3).

The one stated exception to commit-then-send lives here: a notification is sent, its acknowledgement awaited for at most `ack_wait_ms`, and
only what is then unacknowledged is written. A propagation call is answered when each of its tuples is acknowledged, durable or void;
until then the feed still has the update. Clients that usually answer later are written at once, so that no slow phone makes others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from roskva.config import Settings
from roskva.errors import BadRequest, Unavailable
from roskva.model import (
    NOT_OWNER,
    OUTCOME_UPDATE,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
    Stamps,
    client_partition,
    name_from_text,
    object_key,
)
from roskva.protocol.messages import Ack, Notify, Status
from roskva.registrar import core
from roskva.registrar.cells import is_waiting, stamped_waiting
from roskva.registrar.core_collection import ASKED
from roskva.registrar.counters import Counters
from roskva.registrar.fast import FastPath
from roskva.registrar.row import ClientRow, Waiting
from roskva.registrar.rows import Rows
from roskva.registrar.sessions import MAYBE_STORED, NOT_STORED, STORED, Outstanding, Session, Wave
from roskva.registrar.trails import NOBODY, ByUpdate, Trails
from roskva.registrar.unacknowledged import Unacknowledged
from roskva.table.interface import Cell

_SENT_JUST_NOW_S: Final = 1.0
_READING_FOR_ACKS_MAX: Final = 1_000  # messages with acknowledgements that wait for their client's row
_TURN_S: Final = 0.001
# Tuples of one call that are looked at in a turn of the event loop: a large fan-out comes in calls of 1,000, and others wait for each turn.
_TOLD_PER_TURN: Final = 200
_SORTED_PER_TURN: Final = 1_000  # those that are settled already cost a microsecond or two each

Item = TypeVar("Item")


class _Owed(NamedTuple):
    """One propagation that still needs a write, an acknowledgement or both."""

    place: int  # in the call
    told: Propagation
    row: ClientRow
    session: Session | None
    entry: Outstanding | None  # None: nothing is told, or the client is offline
    tell: bool
    version: int | None


class _Told:
    """What has become of a call so far."""

    __slots__ = ("awaited", "reissues", "verdicts", "wave")

    def __init__(self, wave: Wave, verdicts: list[int]) -> None:
        self.wave = wave
        self.verdicts = verdicts
        self.awaited: list[_Owed] = []  # sent, to clients that usually answer in time
        self.reissues: dict[ClientId, list[int]] = {}  # places in the call


# A propagation, its place in the call, and what its client's row makes of it; no row: it cannot be read now.
_Judged = tuple[int, Propagation, ClientRow | None, core.Judgement]
_NOT_READ: Final = core.Judgement()


def _in_turns(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """So many as do not keep others waiting; once, also if there are none."""
    for start in range(0, max(1, len(items)), _TOLD_PER_TURN):
        yield items[start : start + _TOLD_PER_TURN]


def _entries(owed: Iterable[_Owed]) -> Iterator[tuple[Session, Outstanding]]:
    """Who is told of an update, and was not told by the fast path."""
    for one in owed:
        if one.session is not None and one.entry is not None and not one.entry.hinted and one.told.outcome == OUTCOME_UPDATE:
            yield one.session, one.entry


def _judged(index: int, told: Propagation, row: ClientRow | None) -> _Judged:
    return index, told, row, _NOT_READ if row is None else core.judge(row, told)


class Delivery:
    def __init__(
        self,
        settings: Settings,
        rows: Rows,
        sessions: dict[ClientId, Session],
        unacknowledged: Unacknowledged,
        fast: FastPath,
        counters: Counters,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        owns: Callable[[int], bool],
        settling: Callable[[], bool],
        speak: Callable[..., None],
        write: Callable[[Mapping[ClientId, list[list[Cell]]]], Awaitable[set[ClientId]]],
        reissue: Callable[[ClientId, Sequence[Propagation]], Awaitable[list[int]]],
        collect: Callable[[Sequence[Propagation]], Awaitable[list[int]]],
        settled: Callable[[ClientId, ObjectKey], None],
        spawn: Callable[[Coroutine[object, object, None]], object],
        trails: Trails,
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._sessions = sessions
        self._unacknowledged = unacknowledged
        self._fast = fast
        self._counters = counters
        self._clock = clock
        self._wall_clock = wall_clock
        self._owns = owns
        self._settling = settling
        self._speak = speak
        self._write = write  # answers the clients whose write failed
        self._reissue = reissue
        self._collect = collect
        self._settled = settled
        self._spawn = spawn
        self._trails = trails
        self._lag_s = 0.0  # how long the event loop lately took to come round to reading answers
        self._ack_cells: dict[ClientId, list[Cell]] = {}
        self._reading_for_acks = 0

    async def propagate(self, propagations: Sequence[Propagation], stamps: Sequence[Stamps] = ()) -> list[int]:
        """One call of a Matcher task, with the stamps of sampled updates in it. Answers a verdict for each, in order."""
        self._counters.propagated += len(propagations)
        sampled = self._trails.told(stamps) if stamps else None
        verdicts = [SETTLED] * len(propagations)
        mine: list[tuple[int, Propagation]] = []
        asked: list[tuple[int, Propagation]] = []
        for start in range(0, len(propagations), _SORTED_PER_TURN):
            if start:
                await asyncio.sleep(0)
            self._sort(start, propagations[start : start + _SORTED_PER_TURN], verdicts, mine, asked)
        if not mine and not asked:
            return verdicts
        told_now = _Told(Wave(self._clock), verdicts)
        writes: list[asyncio.Future[None]] = []
        wait_s = self._settings.ack_wait_ms / 1000.0
        try:
            for some in _in_turns(mine):
                if writes:
                    await asyncio.sleep(0)
                at_once = await self._tell(some, told_now, sampled)
                writes.append(asyncio.ensure_future(self._store(at_once, verdicts)))
            await told_now.wave.wait(wait_s)
            *parts, last = _in_turns(self._unsettled(told_now, wait_s))
            for part in parts:
                writes.append(asyncio.ensure_future(self._store(part, verdicts)))
                await asyncio.sleep(0)
            await self._store(last, verdicts)
        except Exception:
            await asyncio.gather(*writes, return_exceptions=True)  # nothing of a call that failed is left under way
            raise
        for write in writes:
            await write
        reissues = told_now.reissues
        repairs = (self._reissue(client, [propagations[index] for index in indexes]) for client, indexes in reissues.items())
        for indexes, repaired in zip(reissues.values(), await asyncio.gather(*repairs), strict=True):
            for index, verdict in zip(indexes, repaired, strict=True):
                verdicts[index] = verdict
        for (index, _), verdict in zip(asked, await self._collect([told for _, told in asked]), strict=True):
            verdicts[index] = verdict
        return verdicts

    def _sort(
        self,
        start: int,
        propagations: Sequence[Propagation],
        verdicts: list[int],
        mine: list[tuple[int, Propagation]],
        asked: list[tuple[int, Propagation]],
    ) -> None:
        """Some of a call, from this place on: what is settled already, or another's, needs nothing more."""
        settling = self._settling()
        for index, told in enumerate(propagations, start):
            session = self._sessions.get(told.client)
            partition = client_partition(told.client, self._settings.partitions) if session is None else session.partition
            if not self._owns(partition):
                verdicts[index] = NOT_OWNER
            elif session is not None and session.busy.covered and not settling and self._is_covered(session, told):
                continue  # acknowledged by this very registration before the pipeline came: settled, whatever the row says
            else:
                (asked if told.outcome in ASKED else mine).append((index, told))

    def _unsettled(self, told_now: _Told, wait_s: float) -> list[_Owed]:
        """After the wait: what must be written all the same."""
        unsettled: list[_Owed] = []
        for one in told_now.awaited:
            acknowledged = one.entry is not None and one.entry.acknowledged
            if one.session is not None and not acknowledged and self._is_covered(one.session, one.told):
                continue  # by this version; a later one is still owed, for which the feed has a record of its own
            if one.session is not None and not acknowledged:
                one.session.answered(2 * (wait_s + self._lag_s))  # so that who never answers does not hold up every batch
            if not acknowledged or one.told.outcome != OUTCOME_UPDATE:  # an acknowledged update leaves nothing to write
                unsettled.append(one)
        return unsettled

    async def _tell(self, propagations: Sequence[tuple[int, Propagation]], told_now: _Told, sampled: ByUpdate | None) -> list[_Owed]:
        """Some of a call: read, then judged and sent in one turn of the event loop. Answers what is written without waiting for anybody."""
        rows, _ = await self._rows.get_many([told.client for _, told in propagations], fresh=self._settling())
        judged = await self._judge(propagations, rows)
        at_once: list[_Owed] = []
        awaited: list[_Owed] = []
        outbox: dict[Session, list[Notify]] = {}
        now_s = self._clock()
        for index, told, row, judgement in judged:
            if row is None:
                told_now.verdicts[index] = UNAVAILABLE
            elif judgement.verdict is not None:
                told_now.verdicts[index] = judgement.verdict
                self._counters.void += 1
            elif judgement.reissue:
                told_now.reissues.setdefault(told.client, []).append(index)
            else:
                owed = self._send(index, told, row, told_now.wave, outbox, now_s)
                (awaited if owed.entry is not None and owed.entry.waves else at_once).append(owed)
        followed = self._trails.follow(sampled, _entries((*at_once, *awaited)), now_s) if sampled else NOBODY
        for session, notifications in outbox.items():
            self._speak(session, notify=notifications)
            if followed and session in followed:
                self._trails.sent(followed[session])
        told_now.awaited += awaited
        asyncio.get_running_loop().call_later(_TURN_S, self._turned, now_s)
        return at_once

    def _is_covered(self, session: Session, told: Propagation) -> bool:
        return told.outcome == OUTCOME_UPDATE and self._fast.covers(session, told.object, told.seqno, told.version)

    def _turned(self, sent_s: float) -> None:
        """The event loop came round after a call's sends: before that it read no answers, and no client is slow for it."""
        self._lag_s = max(self._clock() - sent_s - _TURN_S, 0.7 * self._lag_s)

    async def _judge(self, told: Sequence[tuple[int, Propagation]], rows: dict[ClientId, ClientRow]) -> list[_Judged]:
        """A cached row may be behind what another gateway wrote: nothing is dropped or repaired before the table was asked."""
        judged = [_judged(index, one, self._rows.peek(one.client) or rows.get(one.client)) for index, one in told]
        doubted = {told.client for _, told, _, found in judged if found.reissue or found.verdict not in (None, SETTLED)}
        if not doubted:
            return judged
        fresh, _ = await self._rows.get_many(doubted, fresh=True)
        return [_judged(one[0], one[1], fresh.get(one[1].client)) if one[1].client in doubted else one for one in judged]

    def _send(self, index: int, told: Propagation, row: ClientRow, wave: Wave, outbox: dict[Session, list[Notify]], now_s: float) -> _Owed:
        tell, version = core.notification_of(row, told)
        session = self._sessions.get(told.client)
        if tell and version is not None and session is not None and self._fast.covers(session, told.object, told.seqno, version):
            tell = False
        if tell and session is not None and session.intervals and self._is_held_back(session, told, row, version, now_s):
            return _Owed(index, told, row, session, None, tell, version)  # written now, sent when the interval is over
        hears = session is not None and tell and self._unacknowledged.has_room(session, now_s)
        if session is None or not hears or not self._unacknowledged.may_hear(session, told.object):
            return _Owed(index, told, row, session, None, tell, version)
        entry = self._unacknowledged.entry(session, told.object, told.seqno, version, now_s)
        if row.waits:
            self._note_stored(entry, row, version)
        raised = version is not None and entry.version is not None and version > entry.version
        if raised:
            entry.version = version
            entry.stored = min(entry.stored, MAYBE_STORED)
        if raised or now_s - entry.sent_s >= _SENT_JUST_NOW_S:
            outbox.setdefault(session, []).append(self._unacknowledged.sent(session, entry, now_s))
            self._counters.sent += 1
        if session.answer_ms <= self._settings.ack_wait_ms + 1000.0 * self._lag_s and entry.stored != STORED:
            entry.waves = (*entry.waves, wave)
            entry.awaited = max(entry.awaited, told.version)
            wave.join()
        return _Owed(index, told, row, session, entry, tell, version)

    def _is_held_back(self, session: Session, told: Propagation, row: ClientRow, version: int | None, now_s: float) -> bool:
        """What a registration yields never is; what is repeated after it was settled is like any update."""
        if version is None or (told.outcome != OUTCOME_UPDATE and row.is_pending(told.object, told.seqno)):
            return False
        return self._unacknowledged.pacing.holds(session, told.object, told.seqno, version, now_s, stored=True)

    @staticmethod
    def _note_stored(entry: Outstanding, row: ClientRow, version: int | None) -> None:
        """What is stored already need not be written again; over what is stored, even of a lower version, the answer must be."""
        cell = row.unknown(entry.object) if version is None else row.logged(entry.object, entry.seqno)
        if cell is None or not is_waiting(cell):
            return
        if version is None:
            entry.stored = STORED if cell.timestamp == entry.seqno else entry.stored
        else:
            entry.stored = STORED if cell.timestamp >= version else max(entry.stored, MAYBE_STORED)

    async def _store(self, owed: Sequence[_Owed], verdicts: list[int]) -> None:
        """Settle in one write per client: `pending` done, together with what is still unacknowledged. Then confirm registrations."""
        time_s = self._wall_clock()
        cells_of: dict[ClientId, list[list[Cell]]] = {}
        stored: list[tuple[Propagation, Outstanding | None, int | None]] = []
        for one in owed:
            entry = one.entry
            row = self._rows.peek(one.told.client) or one.row
            tell = one.tell and not (entry is not None and entry.acknowledged)
            version = one.version if entry is None else entry.version
            cells = stamped_waiting(core.settle(row, one.told, tell, version), time_s)
            if cells:
                cells_of.setdefault(one.told.client, []).append(cells)
            if tell:
                stored.append((one.told, entry, version))
            if entry is not None and tell:
                entry.stored = max(entry.stored, MAYBE_STORED)
        failed = await self._write(cells_of)
        for told, entry, version in stored:
            if entry is not None:
                entry.stored = STORED  # or as good as: the acknowledgement of a possibly stored one is written too
                entry.release()
            if told.client not in failed and not (entry is not None and entry.acknowledged):
                self._hand_over(told, entry, version)
        self._counters.stored += len(stored)
        confirmed: dict[Session, list[Status]] = {}
        for one in owed:
            if one.told.client in failed:
                verdicts[one.place] = UNAVAILABLE
                continue
            status = core.status_of(one.told)
            if status is None:
                continue
            self._settled(one.told.client, one.told.object)
            session = self._sessions.get(one.told.client)
            if session is not None:
                confirmed.setdefault(session, []).append(status)
        for session, statuses in confirmed.items():
            row_now = self._rows.peek(session.client)
            if row_now is not None:
                session.pending = row_now.pending_count
            self._speak(session, status=statuses)

    def _hand_over(self, told: Propagation, entry: Outstanding | None, version: int | None) -> None:
        """What was stored while its client's session began, moved or was full has no entry there: nobody else would send it."""
        session = self._sessions.get(told.client)
        if session is None or session.outstanding.get((told.object, version is None)) is entry is not None:
            return
        row = self._rows.peek(told.client)
        if row is not None and (row.outdated(told.object) or row.standing(told.object) != (told.seqno, True)):
            return
        notifications: list[Notify] = []
        if not self._unacknowledged.take_up(session, Waiting(told.object, told.seqno, version), self._clock(), notifications):
            self._unacknowledged.owe_more(session)
        if notifications:
            self._counters.sent += len(notifications)
            self._speak(session, notify=notifications)

    def acknowledge(self, session: Session, acks: Sequence[Ack]) -> None:
        """The application has the versions that these name. Acknowledgements are never refused for order, nor beyond what was sent."""
        now_s = self._clock()
        unmatched: list[tuple[ObjectKey, int, int | None]] = []
        start, epoch = object_key(session.application, 0, b""), 0
        for ack in acks:
            if ack.epoch != epoch:
                start, epoch = object_key(session.application, ack.epoch, b""), ack.epoch
            try:
                key = ObjectKey(start + name_from_text(ack.object))
            except BadRequest:
                continue
            version = None if ack.version is None else int(ack.version)  # one that is too large was never sent
            seqno = int(ack.seqno)
            if not self._acknowledge_one(session, key, seqno, version, now_s) and session.more:
                unmatched.append((key, seqno, version))
        if not session.outstanding and not session.more:
            self._unacknowledged.sessions.pop(session, None)
        if unmatched:
            self._note_stored_answers(session, unmatched)

    def _acknowledge_one(self, session: Session, key: ObjectKey, seqno: int, version: int | None, now_s: float) -> bool:
        entry = session.busy.outstanding.get(name := (key, version is None))
        if entry is None or entry.seqno != seqno:
            return False
        if version is not None and entry.version is not None and version != entry.version:
            if version < entry.version:
                self._acknowledge_earlier(session, entry, version, now_s)
            return True  # an earlier one: the later is still owed. A later one was never sent: nobody can have it from us.
        self._unacknowledged.remove(session, name)
        entry.acknowledged = True
        if entry.trail is not None:
            self._trails.acknowledged(entry)
        session.busy.awaited_s = now_s
        self._counters.acknowledged += 1
        if entry.stored == NOT_STORED:
            self._counters.acknowledged_in_time += 1
            if version is not None:
                self._fast.acknowledged(session, key, seqno, version)
        else:
            self._write_acknowledged(session.client, core.acknowledge(key, seqno, version))
        session.answered(now_s - entry.sent_s)
        if entry.waves:
            entry.release()
        return True

    def _acknowledge_earlier(self, session: Session, entry: Outstanding, version: int, now_s: float) -> None:
        """Of an object that changes faster than its client answers. What is written stays so until the last version is acknowledged."""
        session.busy.awaited_s = now_s
        if entry.stored == NOT_STORED:
            self._fast.acknowledged(session, entry.object, entry.seqno, version)
            if version >= entry.awaited:
                entry.release()

    def _note_stored_answers(self, session: Session, acks: list[tuple[ObjectKey, int, int | None]]) -> None:
        """At the limit they are dropped: a lost acknowledgement costs a duplicate."""
        if self._reading_for_acks < _READING_FOR_ACKS_MAX:
            self._reading_for_acks += 1
            self._spawn(self._acknowledge_stored(session, acks))

    async def _acknowledge_stored(self, session: Session, acks: list[tuple[ObjectKey, int, int | None]]) -> None:
        """Acknowledgements of what is stored but not in memory: only what the row says is waiting is cleared."""
        try:
            await self._acknowledge_in_row(session, acks)
        finally:
            self._reading_for_acks -= 1

    async def _acknowledge_in_row(self, session: Session, acks: list[tuple[ObjectKey, int, int | None]]) -> None:
        with contextlib.suppress(Unavailable):
            row = await self._rows.get(session.client)
            waiting = {(one.object, one.seqno, one.version is None): one.version for one in row.waiting()}
            for key, seqno, version in acks:
                stored = waiting.get((key, seqno, version is None), -1)
                if stored != -1 and (version is None or (stored is not None and version <= stored)):
                    self._write_acknowledged(session.client, core.acknowledge(key, seqno, version))

    def _write_acknowledged(self, client: ClientId, cell: Cell) -> None:
        """Nobody waits for this write: what is lost of it costs a duplicate. So acknowledgements of a moment go together."""
        if not self._ack_cells:
            self._spawn(self._flush_acknowledged())
        self._ack_cells.setdefault(client, []).append(cell)

    async def _flush_acknowledged(self) -> None:
        await asyncio.sleep(0.005)
        cells_of, self._ack_cells = self._ack_cells, {}
        await self._write({client: [[cell] for cell in cells] for client, cells in cells_of.items()})

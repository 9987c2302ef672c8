"""The Registrar: registrations, and reliable delivery to clients (Thialfi 4.1.2 to 4.1.4, 4.2.1 to 4.2.3).

Theory of operation. Every function takes a client's row, as it durably is, and what happened, and returns a Decision. The caller

1. writes a mark for the client, if the decision leaves something pending (`events`), and waits until it is durable;
2. makes `writes` durable, each of them in one write of the row, then applies them to the row;
3. appends `events` to the feed "registrations";
4. sends the replies.

A crash between any two steps loses nothing: before 2 the client repeats its operation, after 2 whoever finds the mark or reads the row
repeats the event, and the Matcher's answer may come any number of times. What comes back from the Matcher is judged by the row's
durable registration alone (`judge`), so that a Registrar which is no longer the owner can do no harm.

Pure: no clock, no randomness, no store, no logging.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from roskva.errors import BadRequest, NotAuthorized, RoskvaError, TokenInvalid, TooManyRegistrations
from roskva.model import (
    DROP_COPY,
    OUTCOME_COVERED,
    OUTCOME_LOST,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    SETTLED,
    ClientId,
    ObjectKey,
    Propagation,
    Registration,
    name_from_text,
    name_of,
    name_to_text,
    object_key,
    seqno_of,
    session_of,
    version_from_text,
)
from roskva.probes import reached
from roskva.protocol.messages import FAILED, REGISTERED, UNREGISTERED, Register, Status, Sync, SyncObject, SyncRequest, Unregister
from roskva.protocol.summaries import bucket_of, bucket_summaries, differing_buckets
from roskva.protocol.tokens import Claims
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    WAITING,
    Created,
    Pending,
    created_cell,
    done_cell,
    is_registered,
    is_waiting,
    log_cell,
    registration_cells,
    seen_cell,
    seqno_cell,
    unknown_cell,
)
from roskva.registrar.core_collection import ASKED, answer
from roskva.registrar.row import ClientRow, Standing
from roskva.table.interface import Cell

_OPERATIONS_PER_WRITE: Final = 400  # two cells each and one for the seqno: below the 1,000 cells that one write takes
_NUMBERS_KEPT_MAX: Final = 10_000  # of one session, in memory


@dataclass(frozen=True, slots=True)
class Decision:
    """What must happen, in the order of the fields."""

    writes: list[list[Cell]] = field(default_factory=list)
    events: list[Registration] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    sync_request: SyncRequest | None = None


@dataclass(slots=True)
class Operations:
    """The numbers of a session's operations, in memory: an operation that comes after a later one on its object is ignored.

    Forgetting them is harmless: the summaries then differ, and the client syncs.
    """

    last: dict[ObjectKey, int] = field(default_factory=dict)
    last_sync: int = 0
    # The row's seqno, as it was last seen while this session was the granted one. Cells that told it may be purged since.
    used: int = 0

    def late(self, key: ObjectKey, number: int) -> bool:
        if number <= max(self.last.get(key, 0), self.last_sync):
            return True
        if len(self.last) >= _NUMBERS_KEPT_MAX:
            self.last.clear()
        self.last[key] = number
        return False

    def late_sync(self, number: int) -> bool:
        if number <= self.last_sync:
            return True
        self.last_sync = number
        self.last = {key: last for key, last in self.last.items() if last > number}
        return False


@dataclass(frozen=True, slots=True)
class Granted:
    """A new session. It takes effect at the first message that uses it: a late repeat of an old `init` supersedes nobody."""

    client: ClientId
    session: int
    cells: list[Cell]


def may_keep_id(row: ClientRow, prior: Claims, created: Created, data_center: str, incarnation: int) -> bool:
    """Thialfi 4.1.2: "when possible, the new token reuses the existing client identifier".

    Not when the row is gone, or was rolled back behind what the token proves, or the token is not of this place or installation.
    """
    return (
        row.created == created
        and prior.application == created.application
        and prior.data_center == data_center
        and prior.incarnation == incarnation
        and prior.session <= session_of(row.seqno)
    )


def grant(row: ClientRow, created: Created, day: int, tag: bytes = b"") -> Granted:
    """The next session of a client, new or known, in one write. Another owner may grant one of the same number: `tag` tells them apart."""
    session = session_of(row.seqno) + 1
    cells = [seqno_cell(seqno_of(session, 0), tag), seen_cell(day)]
    if row.created is None:
        cells.append(created_cell(created))
    return Granted(row.client, session, cells)


class Admission:
    """What a message's token means by the row: see `admit`."""

    WELCOME: Final = "welcome"
    SUPERSEDED: Final = "session-superseded"
    GONE: Final = "token-invalid"


def admit(row: ClientRow, session: int, active: int | None, tag: bytes = b"") -> str:
    """Whether a session may speak. `active` is the session that spoke last, as far as this Registrar remembers; `tag` is the session's.

    A session above the granted one proves that the table was rolled back: the client is lost here and starts anew. Of two that were granted
    under one number, the one whose tag the table kept may speak.
    """
    granted = session_of(row.seqno)
    if row.created is None or session > granted:
        reached("admission: the client is not known any more")
        return Admission.GONE
    if session == granted:
        return Admission.WELCOME if tag == row.session_tag else Admission.SUPERSEDED
    if session == active or (active is not None and session > active):
        reached("admission: a later session is granted and not used")
        return Admission.WELCOME
    reached("admission: another session speaks for this client")
    return Admission.SUPERSEDED


@dataclass(slots=True)
class _Plan:
    """Registrations and unregistrations that one message asks for, gathered into writes and events."""

    row: ClientRow
    next_seqno: int
    session: int
    registered_count: int
    planned: dict[ObjectKey, Standing] = field(default_factory=dict)
    planned_ms: dict[ObjectKey, int] = field(default_factory=dict)  # the intervals of what is planned
    repaired: set[ObjectKey] = field(default_factory=set)  # of what is planned, what yields "unknown"
    cells: list[list[Cell]] = field(default_factory=list)
    events: list[Registration] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)

    @classmethod
    def of(cls, row: ClientRow, session: int, operations: Operations) -> _Plan:
        # Seqnos of a session go on after the largest that it used; a later session that was granted but not yet used does not count.
        used = row.seqno if session_of(row.seqno) == session else max(largest_of(row, session), operations.used)
        return cls(row, used + 1, session, row.digest.count)

    def standing(self, key: ObjectKey) -> Standing | None:
        """Where the registration will stand when what is planned so far is written."""
        return self.planned.get(key) or self.row.standing(key)

    def is_pending(self, key: ObjectKey, seqno: int) -> bool:
        return key in self.planned or self.row.is_pending(key, seqno)

    def interval_ms(self, key: ObjectKey) -> int:
        return self.planned_ms[key] if key in self.planned else self.row.interval_ms(key)

    def owes_unknown(self, key: ObjectKey, seqno: int) -> bool:
        return key in self.repaired if key in self.planned else self.row.owes_unknown(key, seqno)

    def add(self, key: ObjectKey, registered: bool, pending: Pending, interval_ms: int = 0) -> None:
        before = self.standing(key)
        seqno = self.next_seqno
        if before is not None and before.seqno >= seqno:
            seqno = before.seqno + 1  # a repair took its seqno from a session that is granted but not yet used
        else:
            self.next_seqno += 1
        self.planned[key] = Standing(seqno, registered)
        self.planned_ms[key] = interval_ms
        (self.repaired.add if pending.repair else self.repaired.discard)(key)
        if not self.cells or len(self.cells[-1]) >= 2 * _OPERATIONS_PER_WRITE:
            self.cells.append([])
        self.cells[-1] += registration_cells(key, seqno, registered, pending, interval_ms)
        self.events.append(event_of(self.row, key, seqno, registered, pending))
        self.registered_count += registered - (before is not None and before.registered)

    def decision(self, sync_request: SyncRequest | None = None) -> Decision:
        for chunk in self.cells:
            chunk.append(seqno_cell(max(cell.timestamp for cell in chunk), self.row.session_tag))
        return Decision(self.cells, self.events, self.statuses, sync_request)


def largest_of(row: ClientRow, session: int) -> int:
    """The largest seqno that a session has used, where the row's own seqno belongs to a later grant."""
    floor = seqno_of(session, 0)
    used = [s.seqno for s in (row.standing(key) for key in row.objects()) if s is not None and session_of(s.seqno) == session]
    return max(used, default=floor)


def event_of(row: ClientRow, key: ObjectKey, seqno: int, registered: bool, pending: Pending) -> Registration:
    device = row.created.device if row.created else ""
    return Registration(row.client, key, seqno, registered, device, pending.held, pending.repair)


def operate(
    row: ClientRow,
    session: int,
    operations: Operations,
    register: Iterable[Register],
    unregister: Iterable[Unregister],
    registrations_max: int,
) -> Decision:
    """Thialfi 4.1.3, steps 1 and 2: order the operations, record them with their pending markers, answer later.

    A repeat of what is pending reuses its seqno and adds nothing; a repeat of what is done is answered at once.
    """
    plan = _Plan.of(row, session, operations)
    application = _application_of(row)
    asked: list[Register | Unregister] = [*register, *unregister]
    for operation in sorted(asked, key=lambda operation: operation.op):
        try:
            key = object_key(application, row.epoch, name_from_text(operation.object))
            if operations.late(key, operation.op):
                continue
            if isinstance(operation, Register):
                _register(plan, key, operation, registrations_max)
            else:
                _unregister(plan, key)
        except BadRequest as error:
            plan.statuses.append(failed(operation.object, error))
    return plan.decision()


def _application_of(row: ClientRow) -> str:
    """The row of a living session may have been lost or collected under it: nothing may be written into what is left of it."""
    if row.created is None:
        raise TokenInvalid("The service no longer has this client.")
    return row.created.application


def _register(plan: _Plan, key: ObjectKey, stated: Register | SyncObject, registrations_max: int) -> None:
    """A client that states no interval leaves the one that its registration has; one that states another registers anew.

    An "unknown" that the standing registration owes is owed by the new one: no version that the client states covers it.
    """
    pending = Pending(_held(stated, plan.row.epoch))
    standing = plan.standing(key)
    if standing is not None and standing.registered:
        if stated.notify_interval_ms is None or stated.notify_interval_ms == plan.interval_ms(key):
            if not plan.is_pending(key, standing.seqno):
                plan.statuses.append(Status(object=name_to_text(name_of(key)), state=REGISTERED))
            return
        if plan.owes_unknown(key, standing.seqno):
            pending = Pending(repair=True)
    elif plan.registered_count >= registrations_max:
        raise TooManyRegistrations(registrations_max)
    plan.add(key, registered=True, pending=pending, interval_ms=stated.notify_interval_ms or 0)


def _unregister(plan: _Plan, key: ObjectKey) -> None:
    standing = plan.standing(key)
    if standing is not None and standing.registered:
        plan.add(key, registered=False, pending=Pending())
    elif standing is None or not plan.is_pending(key, standing.seqno):
        plan.statuses.append(Status(object=name_to_text(name_of(key)), state=UNREGISTERED))


def _held(stated: Register | SyncObject, epoch: int) -> int | None:
    """The version that the client holds; one of another epoch says nothing about this one."""
    if stated.version is None or stated.epoch != epoch:
        return None
    return version_from_text(stated.version)


def failed(text: str, error: RoskvaError) -> Status:
    return Status(object=text[:512], state=FAILED, transient=error.transient, code=error.code, message=str(error)[:512])


def sync(row: ClientRow, session: int, operations: Operations, request: Sync, registrations_max: int) -> Decision:
    """Thialfi 4.1.3, Registration Sync Protocol: a sync is authoritative for what it names, and applies only differences."""
    if operations.late_sync(request.op):
        return Decision()
    if request.summaries is not None:
        mine = bucket_summaries(name_of(key) for key in row.registered())
        return Decision(sync_request=SyncRequest(op=request.op, buckets=differing_buckets(mine, request.summaries)))
    plan = _Plan.of(row, session, operations)
    application = _application_of(row)
    buckets = None if request.buckets is None else set(request.buckets)
    desired: dict[ObjectKey, SyncObject] = {}
    for stated in request.objects or []:
        try:
            name = name_from_text(stated.object)
        except BadRequest as error:
            plan.statuses.append(failed(stated.object, error))
            continue
        if buckets is None or bucket_of(name) in buckets:
            desired[object_key(application, row.epoch, name)] = stated
    for key in list(row.registered()) if buckets is None else row.registered_in(buckets):
        # An object whose last operation came after this sync is left as that operation put it.
        if key not in desired and key not in operations.last:
            plan.add(key, registered=False, pending=Pending())
    for key, stated in desired.items():
        if key in operations.last:
            continue
        try:
            _register(plan, key, stated, registrations_max)
        except BadRequest as error:
            plan.statuses.append(failed(stated.object, error))
    return plan.decision()


def compared(row: ClientRow, request: Sync) -> int:
    """How many registrations `sync` looks at."""
    return row.digest.count if request.buckets is None or not row.large else len(row.registered_in(set(request.buckets)))


def revoke(row: ClientRow, session: int, operations: Operations, keys: Iterable[ObjectKey]) -> Decision:
    """End registrations that the client's user may not have any more. The client gives them up for good, so that the summaries agree."""
    plan = _Plan.of(row, session, operations)
    error = NotAuthorized()
    for key in keys:
        standing = plan.standing(key)
        if standing is not None and standing.registered and not row.outdated(key):
            plan.add(key, registered=False, pending=Pending())
            plan.statuses.append(failed(name_to_text(name_of(key)), error))
    return plan.decision()


def reissue(row: ClientRow, lost: Sequence[tuple[ObjectKey, int]]) -> Decision:
    """The one repair operation: a new seqno and a pending marker, flagged as a repair; what it yields is always unknown.

    `lost`: the objects, and the seqno above which each is registered anew.
    """
    reached("registrar: a registration is made anew")
    seqno = max(row.seqno, *(above for _, above in lost))
    pending = Pending(held=None, repair=True)
    decision = Decision()
    for start in range(0, len(lost), _OPERATIONS_PER_WRITE):
        cells: list[Cell] = []
        for key, _ in lost[start : start + _OPERATIONS_PER_WRITE]:
            seqno += 1
            cells += registration_cells(key, seqno, registered=True, pending=pending, interval_ms=row.interval_ms(key))
            decision.events.append(event_of(row, key, seqno, True, pending))
        decision.writes.append([*cells, seqno_cell(seqno, row.session_tag)])
    return decision


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the row makes of a propagation. Exactly one of three: a verdict; a reissue; or something to deliver and settle."""

    verdict: int | None = None
    reissue: bool = False


_DELIVER: Final = Judgement()
_SETTLED: Final = Judgement(verdict=SETTLED)
_DROP: Final = Judgement(verdict=DROP_COPY)
_REISSUE: Final = Judgement(reissue=True)


def judge(row: ClientRow, told: Propagation) -> Judgement:
    """A tuple (client, object, version, s) by the row's durable registration @r.

    s = r: deliver. s < r: void, since that registration's own read saw this version. No `created`: void, and the Matcher drops its
    copy. s > r: the row lost something: reissue what is registered, or let the Matcher drop its copy. What a sweep found lost is reissued
    as it stands. Of an epoch before the last reset: void, since the registration of the new epoch yields what there is.
    """
    if row.created is None:
        return _DROP
    if row.outdated(told.object):
        reached("registrar: told of an epoch before a reset")
        return _SETTLED
    cell = row.registration(told.object)
    registered = cell is not None and is_registered(cell)
    if cell is None or told.seqno > cell.timestamp:
        if registered:
            return _REISSUE
        return _SETTLED if told.outcome in (OUTCOME_UNREGISTERED, OUTCOME_LOST) else _DROP
    if told.seqno < cell.timestamp:
        return _SETTLED
    if told.outcome == OUTCOME_LOST:
        return _REISSUE if registered else _SETTLED
    if registered == (told.outcome == OUTCOME_UNREGISTERED):
        return _SETTLED
    return _DELIVER


def notification_of(row: ClientRow, told: Propagation) -> tuple[bool, int | None]:
    """Whether the client must be told anything, and which version (None: unknown). For propagations that `judge` delivers."""
    if told.outcome in (OUTCOME_COVERED, OUTCOME_UNREGISTERED):
        return False, None
    if told.outcome == OUTCOME_UNKNOWN:
        cell = row.unknown(told.object)
        if cell is not None and cell.timestamp >= told.seqno:
            return is_waiting(cell), None
        # Done, and nothing stored: it was acknowledged before it had to be.
        return row.is_pending(told.object, told.seqno), None
    logged = row.logged(told.object, told.seqno)
    if logged is not None and logged.timestamp >= told.version:
        return is_waiting(logged), logged.timestamp
    return True, told.version


def settle(row: ClientRow, told: Propagation, unacknowledged: bool, version: int | None) -> list[Cell]:
    """The one write that settles a propagation: `pending` done, together with the notification if it is still unacknowledged.

    Empty when everything is durable already.
    """
    cells: list[Cell] = []
    if told.outcome != OUTCOME_UPDATE and row.is_pending(told.object, told.seqno):
        cells.append(done_cell(told.object, told.seqno))
    if unacknowledged:
        cell = notification_cell(told.object, told.seqno, version, WAITING)
        old = row.unknown(told.object) if version is None else row.logged(told.object, told.seqno)
        if old is None or old.timestamp < cell.timestamp:
            cells.append(cell)
    return cells


def notification_cell(key: ObjectKey, seqno: int, version: int | None, value: bytes) -> Cell:
    return unknown_cell(key, seqno, value) if version is None else log_cell(key, seqno, version, value)


def acknowledge(key: ObjectKey, seqno: int, version: int | None) -> Cell:
    """Clears exactly the cell that the acknowledgement names (an acknowledged version says nothing of an unknown)."""
    return notification_cell(key, seqno, version, ACKNOWLEDGED)


def status_of(told: Propagation) -> Status | None:
    """Thialfi 4.1.3, step 5: the confirmation of a registration, sent when its propagation is settled."""
    if told.outcome == OUTCOME_UPDATE:
        return None
    state = UNREGISTERED if told.outcome == OUTCOME_UNREGISTERED else REGISTERED
    return Status(object=name_to_text(name_of(told.object)), state=state)


def confirmation(row: ClientRow, key: ObjectKey) -> Status:
    """The same, read from the row: its propagation was settled by somebody else."""
    standing = row.standing(key)
    registered = standing is not None and standing.registered
    return Status(object=name_to_text(name_of(key)), state=REGISTERED if registered else UNREGISTERED)


@dataclass(frozen=True, slots=True)
class BlindDecision:
    """What a Matcher task writes in the stead of a Registrar that does not answer, after a mark for the client."""

    cells: list[Cell]
    verdict: int


def blind(row: ClientRow, told: Propagation) -> BlindDecision:
    """The same judgement and the same writes, for a client that counts as offline. The owner finds the mark and goes on from there."""
    if told.outcome in ASKED:
        answered = answer(row, told, online=False)
        return BlindDecision(answered.cells, answered.verdict)
    judgement = judge(row, told)
    if judgement.verdict is not None:
        return BlindDecision([], judgement.verdict)
    if judgement.reissue:
        # The event is not appended here: the owner repeats what it finds pending.
        return BlindDecision(reissue(row, [(told.object, told.seqno)]).writes[0], SETTLED)
    tell, version = notification_of(row, told)
    return BlindDecision(settle(row, told, tell, version), SETTLED)

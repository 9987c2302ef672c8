"""What a Registrar keeps in memory of clients that are online: sessions, and notifications until they are acknowledged.

All of it may be dropped at any moment: the table has whatever is needed to go on. Kept small, since there are many of them: no task, no
timer and no lock per session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, cast

from roskva.access.identity import Identity
from roskva.config import ApplicationSettings
from roskva.errors import Overloaded
from roskva.model import ClientId, ObjectKey, Stamps, session_of
from roskva.protocol.messages import Summary
from roskva.protocol.tokens import Keyring
from roskva.registrar.core import Operations
from roskva.registrar.row import ClientRow

if TYPE_CHECKING:
    from roskva.registrar.pacing import Interval


_WAITING_PER_CLIENT_MAX: Final = 100  # messages of one client that wait for an earlier one of it
_LATE_S: Final = 0.005  # the event loop is always a little late
_WAITS_MAX: Final = 4
# What a session knows of its registrations, and its place in the index, are one number: how many they are plus one, their digest, the place
# plus one. Up to four million registrations it takes as much memory as the digest alone.
_DIGEST_AT: Final = 30
_DIGEST_MAX: Final = (1 << 128) - 1
_COUNT_AT: Final = 30 + 128
_PLACE_MAX: Final = (1 << _DIGEST_AT) - 1
_MOMENT_S: Final = 0.0625  # of which every number is exact
_SEQNOS_SHARED_MAX: Final = 10_000
SYNC_HINT_S: Final = 60.0  # a sync is asked for at most once in this
OUTRANKED_S_MAX: Final = 3_600.0  # far below the days for which closed cells are kept
NOTHING: Final[tuple[ObjectKey, ...]] = ()  # of a session that follows nothing
NOT_STORED: Final = 0
MAYBE_STORED: Final = 1  # a write is on its way or failed: an acknowledgement must be written too
STORED: Final = 2


class Channel(Protocol):
    """A way to one client: a connection here, or one that another gateway holds."""

    session: object | None  # the Registrar's own note on the channel

    def send(self, data: bytes) -> None:
        """Never blocks, never raises. What a closed or full channel is given is dropped; one that stays full is closed."""
        ...

    def close(self, code: str) -> None: ...


class Keeper(Protocol):
    """A line that carries many clients, and whose keepalive stands for all sessions that are confirmed on it."""

    @property
    def closed(self) -> bool: ...

    def take_missed(self) -> Sequence[OnLine]:
        """Those who were not told all that was said to them."""
        ...

    def tell_settled(self, channels: Sequence[OnLine]) -> None:
        """Nothing is unsettled any more for these; all else is as they were told last."""
        ...

    def keep_alive(self) -> None: ...


class OnLine:
    """A channel on a line that carries many. What is confirmed on it is said once, and once when it is not any more."""

    __slots__ = ()
    session: object | None

    @property
    def keeper(self) -> Keeper | None:
        """None: every client is kept alive by itself."""
        raise NotImplementedError

    def confirmed(self) -> None:
        raise NotImplementedError

    def unconfirmed(self) -> None:
        raise NotImplementedError


class Wave:
    """One propagation call's wait for acknowledgements: over when all have answered, or at its time limit.

    While the event loop is busy nobody's answer is read: if it comes late to the end of the wait, the wait is as much longer,
    so that clients are not taken for slow, and their notifications written, for what the loop did to them.
    """

    __slots__ = ("_clock", "_done", "_remaining")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._remaining = 0
        self._done: asyncio.Future[None] | None = None

    def join(self) -> None:
        self._remaining += 1

    def answered(self) -> None:
        self._remaining -= 1
        if self._remaining == 0:
            self._over()

    def _over(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(self, limit_s: float) -> None:
        if self._remaining == 0:
            return
        loop = asyncio.get_running_loop()
        for _ in range(_WAITS_MAX):
            self._done = loop.create_future()
            end_s = self._clock() + limit_s
            timer = loop.call_later(limit_s, self._over)
            try:
                await self._done
            finally:
                timer.cancel()
            late_s = self._clock() - end_s
            if self._remaining == 0 or late_s < _LATE_S:
                return
            limit_s = min(limit_s, late_s)


class Outstanding:
    """A notification that an online client has not acknowledged: at most one per object and kind."""

    __slots__ = (
        "acknowledged",
        "awaited",
        "due_s",
        "gathered",
        "hinted",
        "object",
        "pause_s",
        "sent_s",
        "seqno",
        "stored",
        "trail",
        "version",
        "waves",
    )

    def __init__(self, key: ObjectKey, seqno: int, version: int | None) -> None:
        self.object = key
        self.seqno = seqno
        self.version = version  # None: unknown. The highest sent or stored for this registration.
        self.sent_s = -1e9
        self.due_s = 0.0  # when to send it again
        self.pause_s = 0.0
        self.stored = NOT_STORED
        self.acknowledged = False
        self.hinted = False  # sent before the pipeline came with it
        self.gathered = False  # and not sent yet: together with others of its client, in this turn of the loop or one of the next
        self.trail: Stamps | None = None  # of a sampled update
        self.waves: Sequence[Wave] = ()  # the calls that wait for it,
        self.awaited = 0  # and the highest version that one of them told of

    def release(self) -> None:
        """Nobody needs to wait for this one any longer: acknowledged, gone, or its client is offline."""
        waves, self.waves = self.waves, ()
        for wave in waves:
            wave.answered()


class Busy:
    """What a session needs only while something is owed to it, or it asked for something lately; `rest` gives it back."""

    __slots__ = (
        "asked_ms",
        "awaited_s",
        "covered",
        "hinted_s",
        "intervals",
        "let_go",
        "let_go_pause_s",
        "let_go_s",
        "more",
        "nonce",
        "operations",
        "outstanding",
        "summary",
    )

    def __init__(self) -> None:
        self.outstanding: dict[tuple[ObjectKey, bool], Outstanding] = {}
        self.covered: dict[ObjectKey, tuple[int, int]] | None = None  # acknowledged by seqno and version, before the pipeline came
        self.asked_ms: dict[ObjectKey, int] | None = None  # the intervals of its registrations, as its row has them
        self.intervals: dict[ObjectKey, Interval] | None = None  # those that have begun
        self.more = False  # the table holds more unacknowledged notifications than are in memory
        self.awaited_s = 0.0  # since when an acknowledgement is awaited: the first send, or the last one that came
        self.let_go = False  # its notifications were dropped from memory, since it did not answer, and it was not heard since
        self.let_go_s = -1e9  # when that was last,
        self.let_go_pause_s = 0.0  # and for how long then
        self.hinted_s = -1e9  # when a sync was last asked for
        self.nonce = ""  # of the init that the session was granted for: a repeat of it is late
        self.operations = Operations()
        self.summary: Summary | None = None  # of its registrations, once it was asked for


IDLE: Final = Busy()  # of every session that is at rest; never changed
IDLE.outstanding = cast(dict[tuple[ObjectKey, bool], Outstanding], MappingProxyType({}))


class Session:
    """One start of a client that is online here.

    There may be a million of them, so what is the same for many is one object: times are read from `Moments`, and what an idle session
    does not need is in `busy`.
    """

    __slots__ = (
        "_device_hash",
        "_known",
        "answer_ms",
        "application",
        "busy",
        "channel",
        "client",
        "epoch",
        "followed",
        "followed_at",
        "granted_s",
        "heard_s",
        "identity",
        "number",
        "partition",
        "pending",
        "read_s",
        "sent_s",
        "settings",
        "since_s",
        "token",
        "told_unsettled",
        "used",
        "visit",
    )

    def __init__(
        self,
        client: ClientId,
        partition: int,
        application: str,
        device: str,
        settings: ApplicationSettings,
        token: str,
        number: int,
        channel: Channel,
        identity: Identity | None = None,
    ) -> None:
        self.client = client
        self.partition = partition  # of the client's row
        self.application = application
        self._device_hash = hash(device) % 256  # the token has it whole
        self.settings = settings
        self.identity = identity  # of the user, where the application asks who that is
        self.token = token
        self.number = number
        self.channel: Channel | None = channel
        self.heard_s = self.sent_s = self.read_s = 0.0
        self.since_s = 0.0  # when it came online here
        self.granted_s = 0.0  # when a look at the row last showed that no later session was granted
        self._known = 0  # `summary` and `place`
        self.epoch = -1  # of the row that was last taken in
        self.pending = 0
        self.told_unsettled = 0
        self.answer_ms = 0  # how long this client usually takes to acknowledge
        # The row's seqno, as it was last seen while this session was the granted one. Cells that told it may be purged since.
        self.used = 0
        self.followed: Sequence[ObjectKey] = NOTHING  # what the fast path tells it of,
        self.followed_at: int | None = None  # as of this seqno and epoch of its row
        self.visit = 0  # the slot of time in which the rounds look at it next
        self.busy = IDLE

    def begin(self) -> Busy:
        """To change what is in `busy`."""
        if self.busy is IDLE:
            self.busy = Busy()
        return self.busy

    @property
    def outstanding(self) -> dict[tuple[ObjectKey, bool], Outstanding]:
        """To be read. Who adds to it does so to that of `begin`."""
        return self.busy.outstanding

    @property
    def operations(self) -> Operations:
        operations = self.begin().operations
        operations.used = self.used
        return operations

    @property
    def intervals(self) -> dict[ObjectKey, Interval] | None:
        return self.busy.intervals

    @property
    def more(self) -> bool:
        return self.busy.more

    @property
    def summary(self) -> Summary | None:
        """Of its registrations; None: not known yet. Every message has it: one that is busy makes it once."""
        busy = self.busy
        if busy.summary is not None:
            return busy.summary
        known = self._known
        count = known >> _COUNT_AT
        summary = Summary(count=count - 1, digest=f"{known >> _DIGEST_AT & _DIGEST_MAX:032x}") if count else None
        if busy is not IDLE:
            busy.summary = summary
        return summary

    @property
    def place(self) -> int | None:
        """By which the fast path calls it."""
        place = self._known & _PLACE_MAX
        return place - 1 if place else None

    @place.setter
    def place(self, place: int | None) -> None:
        self._known = self._known >> _DIGEST_AT << _DIGEST_AT | (0 if place is None else place + 1)

    @property
    def device(self) -> str:
        return Keyring.read(self.token).device

    def is_of(self, device: str) -> bool:
        """Whether it is this device's; mostly known without a look into the token."""
        return self._device_hash == hash(device) % 256 and self.device == device

    @property
    def asked_ms(self) -> dict[ObjectKey, int] | None:
        return self.busy.asked_ms

    @property
    def is_paced(self) -> bool:
        """Whether it is told of some object at most once in an interval."""
        busy = self.busy
        return bool(self.settings.notify_interval_ms or busy.asked_ms or busy.intervals)

    @property
    def unsettled(self) -> int:
        busy = self.busy
        return self.pending + len(busy.outstanding) + busy.more

    @property
    def is_let_go(self) -> bool:
        """Its notifications were dropped from memory, and it was not heard since."""
        return self.busy.let_go

    def heard(self, now_s: float) -> None:
        self.heard_s = now_s
        if self.busy.let_go:
            self.busy.let_go = False

    def is_silent(self, now_s: float, patience: float) -> bool:
        """Of one with something outstanding: nothing was acknowledged for so many first pauses; for one, if it was let go of before."""
        patience_s = (1.0 if self.is_let_go else patience) * self.settings.resend_min_s
        return now_s - self.busy.awaited_s >= patience_s

    @property
    def keeper(self) -> Keeper | None:
        """The line whose keepalive stands for this session. None: it is kept alive by itself, and so is one whose credential may expire."""
        channel: object = self.channel
        return channel.keeper if isinstance(channel, OnLine) and self.identity is None else None

    def take(self, row: ClientRow, now_s: float) -> bool:
        """Remember what every message tells of the row, so that the row itself need not stay in memory. Whether the summary changed."""
        before = self._known
        self._known = (row.digest.count + 1) << _COUNT_AT | row.digest.total << _DIGEST_AT | self._known & _PLACE_MAX
        if before != self._known and self.busy is not IDLE:
            self.busy.summary = None
        self.pending = row.pending_count
        if row.intervals or self.busy.asked_ms:
            self.begin().asked_ms = row.intervals
        self.read_s = now_s
        if session_of(row.seqno) == self.number:
            self.used = shared(row.seqno)
            self.granted_s = now_s
        return before != self._known and before >> _COUNT_AT > 0

    def go_on_from(self, known: Session) -> None:
        """Admitted beside a later grant that nobody uses, because of this one. What the row showed then, it does not show any more."""
        self.granted_s = known.granted_s
        if known.number == self.number:
            self.used = known.used

    def is_outranked(self, row: ClientRow, now_s: float) -> bool:
        """Whether a later session was granted, too long ago. Nobody uses it, but sweeps forget cells as if none before it lived."""
        return session_of(row.seqno) > self.number and now_s - self.granted_s > OUTRANKED_S_MAX

    def rest(self, now_s: float) -> bool:
        """Silent for a while: give back what only a busy session needs, if it is none. Old numbers of operations are no longer late."""
        busy = self.busy
        if busy.outstanding or busy.more or busy.intervals or busy.asked_ms or now_s - busy.hinted_s < SYNC_HINT_S:
            busy.operations = Operations()
            busy.covered = None
            return False
        self.busy = IDLE
        return True

    def answered(self, took_s: float) -> None:
        # A second at most counts: a client that was away for long is not slow for long. Whole ones, since small numbers cost nothing.
        self.answer_ms = round(self.answer_ms + 0.2 * (min(took_s, 1.0) * 1000.0 - self.answer_ms))


_seqnos: dict[int, int] = {}


def shared(seqno: int) -> int:
    """The same number as one object for many sessions: most are in one of their first starts, with a few operations."""
    if len(_seqnos) >= _SEQNOS_SHARED_MAX:
        _seqnos.clear()
    return _seqnos.setdefault(seqno, seqno)


class Moments:
    """A clock for what sessions remember: all that read it within a sixteenth of a second get the same object, not 24 bytes each."""

    __slots__ = ("_clock", "_last_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = 0.0

    def __call__(self) -> float:
        now_s = self._clock() // _MOMENT_S * _MOMENT_S
        if now_s != self._last_s:
            self._last_s = now_s
        return self._last_s


class Orders:
    """Messages of one client are handled one after the other; too many of them waiting are refused."""

    def __init__(self) -> None:
        self._turns: dict[ClientId, _Turn] = {}

    def turn(self, client: ClientId) -> _Turn:
        """`async with` it."""
        turn = self._turns.get(client)
        if turn is None:
            turn = self._turns[client] = _Turn(self._turns, client)
        return turn


class _Turn:
    """Of one client, for all that want it now."""

    __slots__ = ("_client", "_lock", "_turns", "_users")

    def __init__(self, turns: dict[ClientId, _Turn], client: ClientId) -> None:
        self._turns = turns
        self._client = client
        self._lock = asyncio.Lock()
        self._users = 0

    async def __aenter__(self) -> None:
        if self._users >= _WAITING_PER_CLIENT_MAX:
            raise Overloaded("Too many messages of this client are waiting.")
        self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._left()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._left()

    def _left(self) -> None:
        self._users -= 1
        if not self._users:
            del self._turns[self._client]

"""How much of the clients' work may wait in a Registrar at once; what comes at the limit is answered "overloaded" (Thialfi 4.2.5).

Counted is what costs a read or a write before it is answered: handshakes, the first message of a session, registrations and syncs. Never
refused, since they end work instead of beginning it: acknowledgements, heartbeats, and the deliveries of the Matcher. One client, or one
channel that asks for sessions, may hold a part of the room only, so that who floods is refused before everybody else is.

Who is refused is told when to come again: each a little later than the one before, at the pace at which the room empties. So ten
thousand that were refused together return one after the other, as soon as there is room for them, and not before.
Pure: whoever asks spawns the work, says when it is over, and knows the time.
"""

from __future__ import annotations

from typing import Final, NoReturn

from roskva.errors import Overloaded
from roskva.registrar.counters import Counters

_OF_ONE: Final = 4  # a quarter of the room for one client
_BUSY_FROM: Final = 4  # above a quarter of the room it is busy: how fast it empties then says how fast it can
AGAIN_MIN_S: Final = 1.0
AGAIN_MAX_S: Final = 30.0
PRESSED_AGAIN_S: Final = 10.0  # when what is missing is not room
_PACE_AT_FIRST: Final = 1_000.0  # operations a second, until it was measured
_PACE_MIN: Final = 10.0
_PACE_OVER_S: Final = 1.0
_CLIENTS_ADD: Final = 1.5  # a client waits from once to twice as long as it is told


class Pace:
    """How many operations a second are done while many wait. What little work is done when little comes says nothing."""

    def __init__(self) -> None:
        self.per_s = _PACE_AT_FIRST
        self._since_s = 0.0
        self._done = 0

    def begins(self, now_s: float) -> None:
        self._since_s, self._done = now_s, 0

    def done(self, now_s: float, operations: int) -> None:
        self._done += operations
        took_s = now_s - self._since_s
        if took_s >= _PACE_OVER_S:
            self.per_s = max(_PACE_MIN, (self.per_s + self._done / took_s) / 2)
            self.begins(now_s)


class Room:
    def __init__(self, waiting_max: int, counters: Counters) -> None:
        self.waiting = 0  # operations under way, a message without any counts as one
        self.pressed = ""  # why nothing new is admitted, whatever waits: memory
        self.pace = Pace()
        self._waiting_max = waiting_max
        self._counters = counters
        self._of: dict[object, int] = {}
        self._owed = 0.0  # operations of those who were refused and are to come again, as of `_owed_s`
        self._owed_s = 0.0

    def enter(self, who: object, operations: int, now_s: float) -> None:
        """Raises Overloaded; else the caller owes a `leave` with the same arguments. No single message is too large for an empty room."""
        mine = self._of.get(who, 0)
        if self.pressed:
            self._refuse(self.pressed, PRESSED_AGAIN_S)
        if self.waiting and self.waiting + operations > self._waiting_max:
            reason = f"{self.waiting:,} operations of clients are waiting; {self._waiting_max:,} may."
            self._refuse(reason, self._booked_s(operations, now_s))
        if mine and mine + operations > self._waiting_max // _OF_ONE:  # who floods is told its own time, and moves nobody else's
            reason = f"{mine:,} operations of this client are waiting; {self._waiting_max // _OF_ONE:,} may."
            self._refuse(reason, mine / self.pace.per_s)
        if not self._busy:
            self.pace.begins(now_s)
        self._of[who] = mine + operations
        self.waiting += operations

    def leave(self, who: object, operations: int, now_s: float, done: bool = True) -> None:
        """`done`: the work was. What failed at once says nothing of the pace."""
        if self._busy and done:
            self.pace.done(now_s, operations)
        self.waiting -= operations
        left = self._of[who] - operations
        if left:
            self._of[who] = left
        else:
            del self._of[who]

    def until_done_s(self) -> float:
        """How long what waits will take."""
        return min(AGAIN_MAX_S, max(AGAIN_MIN_S, self.waiting / self.pace.per_s))

    @property
    def _busy(self) -> bool:
        return self.waiting >= self._waiting_max // _BUSY_FROM

    def _booked_s(self, operations: int, now_s: float) -> float:
        """Behind all that wait, and behind all that were refused before and have not had the time to come again."""
        per_s = self.pace.per_s
        done = per_s * max(0.0, now_s - self._owed_s)
        self._owed = min(max(0.0, self._owed - done) + operations, per_s * AGAIN_MAX_S * _CLIENTS_ADD)
        self._owed_s = now_s
        return (self.waiting + self._owed) / per_s / _CLIENTS_ADD

    def _refuse(self, reason: str, again_s: float) -> NoReturn:
        self._counters.overloaded += 1
        raise Overloaded(reason, round(min(AGAIN_MAX_S, max(AGAIN_MIN_S, again_s)), 3))

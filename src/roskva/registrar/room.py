"""How much of the clients' work may wait in a Registrar at once; what comes at the limit is answered "overloaded" (Thialfi 4.2.5).

Counted is what costs a read or a write before it is answered: handshakes, the first message of a session, registrations and syncs. Never
refused, since they end work instead of beginning it: acknowledgements, heartbeats, and the deliveries of the Matcher. One client, or one
channel that asks for sessions, may hold a part of the room only, so that who floods is refused before everybody else is.
Pure: whoever asks spawns the work, and says when it is over.
"""

from __future__ import annotations

from typing import Final

from roskva.errors import Overloaded
from roskva.registrar.sessions import Counters

_OF_ONE: Final = 4  # a quarter of the room for one client


class Room:
    def __init__(self, waiting_max: int, counters: Counters) -> None:
        self.waiting = 0  # operations under way, a message without any counts as one
        self.pressed = ""  # why nothing new is admitted, whatever waits: memory
        self._waiting_max = waiting_max
        self._counters = counters
        self._of: dict[object, int] = {}

    def enter(self, who: object, operations: int) -> None:
        """Raises Overloaded; else the caller owes a `leave` with the same arguments. No single message is too large for an empty room."""
        mine = self._of.get(who, 0)
        reason = self.pressed
        if not reason and self.waiting and self.waiting + operations > self._waiting_max:
            reason = f"{self.waiting:,} operations of clients are waiting; {self._waiting_max:,} may."
        if not reason and mine and mine + operations > self._waiting_max // _OF_ONE:
            reason = f"{mine:,} operations of this client are waiting; {self._waiting_max // _OF_ONE:,} may."
        if reason:
            self._counters.overloaded += 1
            raise Overloaded(reason)
        self._of[who] = mine + operations
        self.waiting += operations

    def leave(self, who: object, operations: int) -> None:
        self.waiting -= operations
        left = self._of[who] - operations
        if left:
            self._of[who] = left
        else:
            del self._of[who]

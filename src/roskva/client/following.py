"""Up to when a client was told of every change of an object, as far as the service knows (Thialfi 3.3; traps 19 and 43). Pure.

`in_sync` speaks of all registrations at once, and is false whenever any of them is on its way. Whoever holds a copy of one object wants to
know of that one. Its registration is confirmed; the server speaks to this session; and since the connection began it has once been in
sync, or has lived for CATCH_UP_S: what waited for a client that returns is the first thing that it is sent. From then on changes are
told as they happen; of an object with a `notify_interval_ms` one interval later at most. While operations are open the summaries differ
and mean nothing; if they differ without one, nothing is sure.
"""

from __future__ import annotations

from typing import Final

from roskva.client.core import ClientCore

CATCH_UP_S: Final = 10.0
_NEVER: Final = float("-inf")


class Following:
    def __init__(self) -> None:
        self._session = -1
        self._since = _NEVER  # the first word of this session over this connection
        self._caught_up = False
        self._until = _NEVER

    def connected(self) -> None:
        self._since = _NEVER
        self._caught_up = False

    def heard(self, core: ClientCore, now: float) -> None:
        """A message came, and the core has taken it in."""
        if core.handover.session != self._session:
            self._session = core.handover.session
            self.connected()
        if core.alive(now):
            self._since = now if self._since == _NEVER else self._since
            if self._follows(core, now):
                self._until = now

    def told_until(self, core: ClientCore, now: float, name: bytes) -> float | None:
        """Now, while all is well; later the last time at which it was. None: the object's registration is not confirmed."""
        if name not in core.desired or name in core.desired.unconfirmed:
            return None
        return now if self._follows(core, now) else self._until

    def _follows(self, core: ClientCore, now: float) -> bool:
        if not core.alive(now) or self._since == _NEVER or not (core.operations or core.confirmed(now)):
            return False
        self._caught_up = self._caught_up or core.in_sync(now) or now - self._since >= CATCH_UP_S
        return self._caught_up

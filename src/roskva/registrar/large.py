"""What clients with very many registrations cost: to read their rows, and to compare all that is in them, takes the event loop's time.

A client with 100,000 registrations may have them, and start, and sync; but each of these takes some 300 ms in which nobody else is
served. So they are paid from a budget of the client's own, after the work, when its size is known. Who has spent it is told when to come
again. Rows of the usual size cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roskva.access.limits import Buckets
from roskva.errors import RateLimited
from roskva.model import ClientId

# A thousand entries take 1 to 3 ms: a client takes some percent of a core for good, and a few seconds of it at once.
ENTRIES_PER_S: Final = 40_000.0
ENTRIES_AT_ONCE: Final = 2_000_000.0
_FREE: Final = 1_000


class LargeRows:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._budgets = Buckets(ENTRIES_PER_S, ENTRIES_AT_ONCE)

    def check(self, client: ClientId) -> None:
        """Before the work. Raises RateLimited."""
        wait_s = self._budgets.wait_s(client, self._clock())
        if wait_s > 0:
            raise RateLimited("the work on a client's many registrations", wait_s)

    def did(self, client: ClientId, entries: int) -> None:
        """After it: so many cells or registrations were looked at."""
        if entries > _FREE:
            self._budgets.spend(client, self._clock(), entries)

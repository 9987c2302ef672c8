"""How much of publishing may be under way at once; what comes at the limit is answered 503 "overloaded" with Retry-After.

Decided before the body of a request is read, so that a burst costs the gateway a head per request and no more. What was admitted is
carried to its end: nothing that was accepted is dropped. A request counts with its length, or the longest allowed if it does not say, and
a little for itself. Whoever announces much and sends it slowly holds room for as long: one publisher has a quarter of all at most. Imports
nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from roskva.errors import Overloaded
from roskva.telemetry.metrics import Metrics

REQUEST_BYTES: Final = 4 << 10  # for a request itself, whatever its body
SHARE: Final = 4  # one publisher may have such a part of the room


class Intake:
    """`pressed` tells why nothing at all may begin now; empty: it may."""

    def __init__(self, bytes_max: int, metrics: Metrics, pressed: Callable[[], str] = str) -> None:
        self.bytes_waiting = 0
        self._bytes_max = bytes_max
        self._metrics = metrics
        self._pressed = pressed
        self._of_publisher: dict[str, int] = {}

    @contextmanager
    def request(self, length: int, publisher: str = "") -> Iterator[None]:
        """Raises Overloaded. A single request is never too large while no other is under way, of the same publisher or at all.

        "" is one who has no share, but all of the room.
        """
        size = length + REQUEST_BYTES
        own = self._of_publisher.get(publisher, 0) if publisher else 0
        reason = self._pressed()
        if not reason and own and own + size > self._bytes_max // SHARE:
            reason = f"Publish requests of {own:,} bytes are under way with this key or from here; {self._bytes_max // SHARE:,} may be."
        if not reason and self.bytes_waiting and self.bytes_waiting + size > self._bytes_max:
            reason = f"Publish requests of {self.bytes_waiting:,} bytes are under way; {self._bytes_max:,} may be."
        if reason:
            self._metrics.publishes_overloaded += 1
            raise Overloaded(reason)
        self.bytes_waiting += size
        if publisher:
            self._of_publisher[publisher] = own + size
        try:
            yield
        finally:
            self.bytes_waiting -= size
            if publisher:
                self._less(publisher, size)

    def _less(self, publisher: str, size: int) -> None:
        left = self._of_publisher[publisher] - size
        if left:
            self._of_publisher[publisher] = left
        else:
            del self._of_publisher[publisher]

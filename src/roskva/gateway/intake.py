"""How much of publishing may be under way at once; what comes at the limit is answered 503 "overloaded" with Retry-After.

Decided before the body of a request is read, so that a burst costs the gateway a head per request and no more. What was admitted is
carried to its end: nothing that was accepted is dropped. A request counts with its length, or the longest allowed if it does not say, and
a little for itself. Imports nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from roskva.errors import Overloaded
from roskva.telemetry.metrics import Metrics

REQUEST_BYTES: Final = 4 << 10  # for a request itself, whatever its body


class Intake:
    """`pressed` tells why nothing at all may begin now; empty: it may."""

    def __init__(self, bytes_max: int, metrics: Metrics, pressed: Callable[[], str] = str) -> None:
        self.bytes_waiting = 0
        self._bytes_max = bytes_max
        self._metrics = metrics
        self._pressed = pressed

    @contextmanager
    def request(self, length: int) -> Iterator[None]:
        """Raises Overloaded. A single request is never too large while no other is under way."""
        size = length + REQUEST_BYTES
        reason = self._pressed()
        if not reason and self.bytes_waiting and self.bytes_waiting + size > self._bytes_max:
            reason = f"Publish requests of {self.bytes_waiting:,} bytes are under way; {self._bytes_max:,} may be."
        if reason:
            self._metrics.publishes_overloaded += 1
            raise Overloaded(reason)
        self.bytes_waiting += size
        try:
            yield
        finally:
            self.bytes_waiting -= size

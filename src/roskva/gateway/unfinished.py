"""What has arrived of messages that are not complete: a common room for all connections of a gateway.

Anybody may begin a message of `message_bytes_max` and never end it, over thousands of connections. What has arrived of all those messages
may take BYTES_MAX; beyond that, whoever's last grew longest ago is closed with "overloaded": a message that is on its way grows, one that
is held back does not. Messages below FREE_BYTES are not counted: nearly all are. A message that is larger than that cannot be refused to
strangers: a client that returns says first what it could not say meanwhile.
"""

from __future__ import annotations

from typing import Final, Protocol

from roskva.errors import Overloaded
from roskva.telemetry.metrics import Metrics

BYTES_MAX: Final = 64 << 20
FREE_BYTES: Final = 8 << 10


class Holder(Protocol):
    def close(self, code: str) -> None: ...


class Unfinished:
    def __init__(self, metrics: Metrics, bytes_max: int = BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._metrics = metrics
        self._held: dict[Holder, int] = {}  # as large as buffers are: powers of two; whose last grew longest ago first

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, holder: Holder) -> bool:
        return holder in self._held

    def grew(self, holder: Holder, size: int) -> None:
        """So many bytes of its message are here, more than FREE_BYTES."""
        before, now = self._held.get(holder, 0), 1 << (size - 1).bit_length()
        if now <= before:
            return
        self.done(holder)
        self._held[holder] = now
        self.bytes += now
        while self.bytes > self._bytes_max and len(self._held) > 1:
            oldest = next(iter(self._held))
            self.done(oldest)
            self._metrics.limited_messages += 1
            oldest.close(Overloaded.code)

    def done(self, holder: Holder) -> None:
        """Its message is complete, or is not awaited any more."""
        self.bytes -= self._held.pop(holder, 0)

"""When the next micro-batch may begin while the fast path tells clients: after a rest, so that more updates share its price.

A batch costs Spark some 120 ms of CPU, whatever it carries. Without the fast path everybody waits for it, and it begins at once. With
it, clients that are online know already (`registrar/fast.py`), and a batch of updates alone may wait: four times as long as the
last one took, and at most `batch_rest_ms`. A registration waits for nobody: its client is told when the Matcher has answered. Nor
does a backlog. Whoever wishes for larger batches in any case says how far apart they begin at least (`batch_delay_ms`). Pure: the clock
is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from roskva.feed.interface import UPDATES
from roskva.pipeline.offsets import MATCHING, Positions, Stream

if TYPE_CHECKING:
    from roskva.config import Settings

_REST_PER_WORK: Final = 4.0
_BACKLOG: Final = 10_000  # updates: whoever is so far behind does not rest


class Pace:
    def __init__(self, settings: Settings, stream: Stream) -> None:
        rests = settings.fast_path and stream == MATCHING
        self._rest_s_max = settings.batch_rest_ms / 1000 if rests else 0.0
        self._delay_s = settings.batch_delay_ms / 1000
        self._began_s: float | None = None
        self._until_s = 0.0

    def asked(self, now_s: float) -> None:
        """Spark asks for the next batch: the one before is done."""
        if self._began_s is not None:
            rested_s = now_s + min(_REST_PER_WORK * (now_s - self._began_s), self._rest_s_max)
            self._until_s = max(rested_s, self._began_s + self._delay_s)
            self._began_s = None

    def began(self, now_s: float) -> None:
        """A batch was given out."""
        self._began_s = now_s

    def rest_s(self, start: Positions, end: Positions, now_s: float) -> float:
        """For how long what lies between the two may wait now."""
        if now_s >= self._until_s:
            return 0.0
        updates = 0
        for place, last in end.items():
            since = start.get(place)
            if since == last:
                continue
            if place[0] != UPDATES or since is None or since.incarnation != last.incarnation:
                return 0.0
            updates += last.offset - since.offset
        return 0.0 if updates >= _BACKLOG else self._until_s - now_s

"""Flows that have come further than the log's end: they would be sent nothing until the log has come there, and then what is written from
there on, as if they had missed nothing (Wormhole 3.3.1).

The datamarker, or what was sent since, is of a log that had more than this one has. There are two reasons, and which it is shows in what
the datastore says of itself (`Retained.follows`) and in time:

- This log is behind: a standby, or a copy, of that from which another publisher has read. Then to wait is right. `status` says what for;
  after `behind_s_max` that is a problem, since nobody knows any more whether it will ever come there.
- Something was taken back: the database was restored from a backup, or an earlier version was told a place that does not exist. What is
  written now has places that the flow counts as dealt with. So the flow is stopped, with a note beside the datamarkers: it stays stopped
  after a restart, by when the log may have come past its place and nothing would show it any more. An operator says where it goes on
  (`capture rewind`).

A log that does not say which it is, is waited for, in case it is behind; but not if this process itself has seen more of it
(`Retained.same_log`): before it is late, it may have come past that place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from roskva.capture.core import Core
from roskva.capture.interface import Retained
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.publisher.notes import BEYOND, Stopped
from roskva.capture.publisher.owning import Owning
from roskva.errors import RoskvaError, WrongHistory

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    end: Position  # of the log, then
    since_s: float


class Beyond:
    """Belongs to the event loop."""

    def __init__(self, core: Core, owning: Owning) -> None:
        self._core = core
        self._owning = owning
        self._seen: dict[FlowName, _Seen] = {}
        self._end: Position | None = None
        self._had = BEGINNING  # so far this process has seen the log go
        self._now_s = 0.0

    def before(self) -> dict[FlowName, Position]:
        """Before the log is asked for its end: what was read and dealt with by then is in it."""
        self._had = max(self._had, *(caravan.position for caravan in self._core.caravans() if caravan.lead))
        return self.reached()

    def reached(self) -> dict[FlowName, Position]:
        """How far each flow has come: by its datamarker, or by what was read for it, which it may still acknowledge."""
        return {status.flow: max(status.datamarker, status.taken) for status in self._core.flows()}

    async def look(self, before: Mapping[FlowName, Position], retained: Retained, now_s: float) -> None:
        """`before`: what it said before `retained` was asked for."""
        self._end, self._now_s = retained.end, now_s
        self._had = max(self._had, retained.end)
        stopped = self._owning.stopped
        found = {
            flow: reached
            for flow, reached in self.reached().items()
            if flow not in stopped and min(reached, before.get(flow, retained.end)) > retained.end
        }
        for flow in self._seen.keys() - found.keys():
            if flow not in stopped:
                log.warning("The flow %s does not stand beyond the log's end any more, which is %s.", flow, retained.end)
            del self._seen[flow]
        stop: dict[FlowName, Stopped] = {}
        for flow, reached in found.items():
            seen = self._seen.get(flow)
            if seen is None:
                seen = self._seen[flow] = _Seen(retained.end, now_s)
                log.warning("The flow %s waits: it has come to %s, and the log ends at %s.", flow, reached, retained.end)
            if self._is_taken_back(reached, retained, seen):
                stop[flow] = Stopped(reached, seen.end)
        if stop:
            try:
                await self._stop(stop)
            except RoskvaError as error:
                log.warning("The place of the datamarkers does not answer, which is tried again: %s", error)

    def needed(self, position: Position) -> Position:
        """Of the log up to here, what nobody needs: an operator may want to go on where the log ended, when these flows were beyond it."""
        stopped, seen = self._owning.stopped.values(), self._seen.values()
        return min([position, *(one.end for one in stopped), *(one.end for one in seen)])

    def _is_taken_back(self, reached: Position, retained: Retained, seen: _Seen) -> bool:
        """Or may be, and nobody else has a log in which it is not."""
        if retained.follows is None:
            went_back = retained.same_log and retained.end < self._had
            return len(self._owning.settings.peers) < 2 and (went_back or self._is_late(seen))
        # Of another history is also a primary of before, whose flows a peer takes that follows the present one.
        alone = len(self._owning.settings.peers) < 2 or reached.history == retained.end.history
        return not retained.follows and alone

    async def _stop(self, flows: Mapping[FlowName, Stopped]) -> None:
        """Those that nobody has rewound meanwhile."""
        async with self._owning.round:
            now = self.reached()
            for flow, why in flows.items():
                if now.get(flow) == why.reached:
                    log.error("The flow %s is stopped: %s.", flow, why)
                    await self._owning.note(f"{BEYOND}{flow}", why.note())
                    self._owning.stopped[flow] = why
                    del self._seen[flow]

    def _is_late(self, seen: _Seen) -> bool:
        return self._now_s - seen.since_s >= self._owning.settings.behind_s_max

    def waits_for(self, flow: FlowName) -> str:
        """Empty: it does not stand beyond the end."""
        return f"waits for the log, which ends at {self._end}, to come to where it is" if flow in self._seen else ""

    def problems(self) -> list[str]:
        """For a person: one line for all flows that are stopped, and one for all that have waited long."""
        reached = self.reached()
        stopped = {flow: why.reached for flow, why in self._owning.stopped.items() if flow in reached}
        late = {flow: reached[flow] for flow, seen in self._seen.items() if flow in reached and self._is_late(seen)}
        return [
            *_told(stopped, "it was beyond its end", "is stopped"),
            *_told(late, f"it ends at {self._end}, and does not come there", "waits for its log"),
        ]


def _told(flows: Mapping[FlowName, Position], why: str, what: str) -> list[str]:
    if not flows:
        return []
    first = min(flows)
    more = f" (as {len(flows) - 1:,} more)" if len(flows) > 1 else ""
    return [f"The flow {first} {what}{more}. {WrongHistory(flows[first], why)} `roskva capture rewind {first} PLACE` does that."]

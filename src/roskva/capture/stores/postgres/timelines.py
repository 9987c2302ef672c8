"""Postgres' places in its log as logical positions: LSN, timeline, and which timeline an LSN is of (Wormhole 3.3.2).

Pure. A physical replica has every record at the same LSN as its primary, up to where it was promoted; from there on it counts its own
under a new timeline. So (timeline, LSN of the commit record, index) names an update at every replica, and the list of switches, which each
replica keeps as a file for each timeline, says whether a position of an earlier timeline is of this one's past. One that lies beyond the
switch was undone: the primary had published what its standby never got. Whoever stands there has all of the past, and goes on with the
first commit of the next timeline; that is told as a loss, since what it was sent last is not so any more.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from roskva.capture.positions import WHOLE, Position
from roskva.errors import LogCut, WrongHistory

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SWITCH: Final = re.compile(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


def lsn_from_text(text: str) -> int:
    found = _LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a log sequence number")
    return int(found[1], 16) << 32 | int(found[2], 16)


def lsn_to_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def first_needed(position: Position) -> int:
    """The lowest LSN of a commit of which something comes after the position.

    To a slot that stands here, the server sends the commits whose records begin here or later; it knows nothing of parts of a commit.
    """
    return position.sequence + 1 if position.index == WHOLE else position.sequence


class Timelines(NamedTuple):
    """Which timeline each part of a server's log is of."""

    current: int
    ends: tuple[tuple[int, int], ...] = ()  # (timeline, LSN at which the next one began), of all before the current one, in order

    def history_of(self, lsn: int) -> int:
        for timeline, end in self.ends:
            if lsn < end:
                return timeline
        return self.current

    def before(self, lsn: int) -> Position:
        """All whose commits begin below this LSN."""
        return Position(self.history_of(lsn - 1), lsn - 1) if lsn else Position(0, 0, 0)

    def needed(self, position: Position) -> int:
        """As `first_needed`, of this log: after a position that was undone, the place where that happened."""
        return min(first_needed(position), dict(self.ends).get(position.history, first_needed(position)))

    def check(self, position: Position, end: int) -> None:
        """Whether the position is of this log, which ends at the LSN `end`. Raises LogCut if it was undone, WrongHistory if not."""
        history, needed = position.history, first_needed(position)
        if history > self.current:
            raise WrongHistory(position, f"it is of the timeline {history}, and this server is at {self.current}")
        switched = dict(self.ends).get(history)
        if history < self.current and switched is None and history != 0:
            raise WrongHistory(position, f"the timeline {history} is none that this server, at {self.current}, came from")
        if switched is not None and needed > switched:
            raise LogCut(position, Position(self.history_of(switched), switched, 0))
        if needed > end:
            raise WrongHistory(position, f"the log ends at {lsn_to_text(end)}, before {lsn_to_text(position.sequence)}")


def timelines_from_history(current: int, text: str) -> Timelines:
    """Of the contents of a timeline's history file: lines of a timeline, the LSN at which it was left, and why."""
    return Timelines(current, tuple((int(timeline), lsn_from_text(lsn)) for timeline, lsn in _SWITCH.findall(text)))

"""What capture promises, watched from outside: what the log had, what subscribers dealt with, what was made durable (Wormhole 2, 3.3).

Each promise has a name, which stands in `Broken`:

- at least once: a datamarker becomes durable only when all up to it was dealt with, or was reported as lost.
- in order: a stream begins after the datamarker and has no gap and no repeat; over all streams nothing is dealt with before all that was
  written earlier to the same shard.
- kept: no log is cut, by what publishers confirm, that a flow still needs; nothing is reported as lost that is there.
- harmless: who rides at the log's end and takes what comes stays there, whatever others do; nobody with credit loses its buffer.
- fenced: who was told that another one owns a flow sends nothing more of it.
- bounded: buffers, caravans, rates and what is under way to a subscriber.
- one owner: two publishers never serve a flow under one epoch, nor one that is taken for dead and the one that takes over.
- one at a time: two callbacks of one shard never run beside each other.
- caught up: when the faults end, everybody gets everything.
- invariant: an assertion of the core itself.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from roskva.capture.flows import Routed, Stream, Terms
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position

PROMISES: Final = (
    "at least once",
    "in order",
    "kept",
    "harmless",
    "fenced",
    "bounded",
    "one owner",
    "one at a time",
    "caught up",
    "invariant",
)


class Broken(Exception):
    def __init__(self, promise: str, what: str) -> None:
        assert promise in PROMISES
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass
class Track:
    """One flow, over all its publishers and subscribers."""

    flow: FlowName
    terms: Terms
    start: Position
    wanted: list[Position] = field(default_factory=list)
    written_us: list[int] = field(default_factory=list)
    dealt: int = 0  # so many of `wanted`, from the first
    epoch: int = 0  # streams of an earlier one are of before it was rewound, or began anew

    def upto(self, position: Position) -> int:
        return bisect_right(self.wanted, position)


class Checkers:
    def __init__(self) -> None:
        self.tracks: dict[FlowName, Track] = {}
        self._cursors: dict[tuple[int, Stream], int] = {}  # by connection and stream: the next of `wanted`
        self._entries: list[Routed] = []
        self.repeats = 0
        self.losses = 0
        self.cut_by_force = False  # what was in a buffer then is sent without credit: it is nowhere else

    def began(self, flow: FlowName, terms: Terms, start: Position) -> None:
        self.tracks[flow] = Track(flow, terms, start)
        self._written(self._entries, [self.tracks[flow]])

    def written(self, entries: list[Routed]) -> None:
        self._entries += entries
        self._written(entries, list(self.tracks.values()))

    def _written(self, entries: list[Routed], tracks: list[Track]) -> None:
        for entry in entries:
            for track in tracks:
                if entry.shard == track.flow.shard and track.flow.application in entry.applications and entry.position > track.start:
                    track.wanted.append(entry.position)
                    track.written_us.append(entry.committed_us)

    def begins_anew(self, flow: FlowName, start: Position, epoch: int) -> None:
        """It was taken over before it was durable where it begins: it begins somewhere else."""
        track = self.tracks[flow]
        if track.dealt:
            raise Broken("at least once", f"{flow} was sent updates, and where it began was not durable")
        self.began(flow, track.terms, start)
        self.tracks[flow].epoch = epoch

    def rewound(self, flow: FlowName, position: Position, epoch: int) -> None:
        track = self.tracks[flow]
        track.dealt = track.upto(position)
        track.epoch = epoch

    def noticed(self, connection: int, stream: Stream, flow: FlowName, after: Position, today_us: int) -> None:
        """A stream begins: all before it was dealt with."""
        track = self.tracks[flow]
        self._excuse_the_old(track, track.upto(after), today_us)
        self._cursors[connection, stream] = track.upto(after)
        if not track.terms.realtime and stream.epoch >= track.epoch and track.upto(after) > track.dealt:
            raise Broken("in order", f"{flow} begins after {after}, and {track.wanted[track.dealt]} was never dealt with")

    def dealt(self, connection: int, stream: Stream, flow: FlowName, update: Routed, today_us: int) -> None:
        track = self.tracks[flow]
        index = track.upto(update.position) - 1
        if index < 0 or track.wanted[index] != update.position:
            raise Broken("in order", f"{flow} was sent {update.position}, which is not for it")
        expected = self._cursors[connection, stream]
        self._cursors[connection, stream] = index + 1
        if index < expected:
            raise Broken("in order", f"{flow} was sent {update.position} after {track.wanted[expected - 1]}")
        if track.terms.realtime:
            return
        self._excuse_the_old(track, index, today_us)
        if index > expected and not self._all_old(track, expected, index, today_us):
            raise Broken("in order", f"{flow} was sent {update.position}, and {track.wanted[expected]} was left out")
        if stream.epoch < track.epoch:
            return
        if index > track.dealt:
            raise Broken("in order", f"{flow}: {update.position} was dealt with before {track.wanted[track.dealt]}")
        self.repeats += index < track.dealt
        track.dealt = max(track.dealt, index + 1)

    def lost(self, connection: int, stream: Stream, flow: FlowName, after: Position, to: Position, forced: Position) -> None:
        """Reported as lost: it must have been cut off by force."""
        track = self.tracks[flow]
        self.losses += 1
        if to > forced:
            raise Broken("kept", f"{flow} lost what is after {after} up to {to}; only up to {forced} was cut by force")
        expected = self._cursors[connection, stream]
        if track.upto(after) > expected and track.terms.age_max_s is None:
            raise Broken("in order", f"{flow} lost what is after {after}, and {track.wanted[expected]} was left out")
        self._cursors[connection, stream] = max(expected, track.upto(to))
        if stream.epoch >= track.epoch:
            track.dealt = max(track.dealt, track.upto(to))

    def durable(self, flow: FlowName, position: Position, today_us: int) -> None:
        track = self.tracks[flow]
        self._excuse_the_old(track, track.upto(position), today_us)
        if track.upto(position) > track.dealt:
            raise Broken("at least once", f"{flow} is stored at {position}, and {track.wanted[track.dealt]} was never dealt with")

    def behind(self, flow: FlowName, today_us: int) -> int:
        """How many updates it still has to deal with."""
        track = self.tracks[flow]
        self._excuse_the_old(track, len(track.wanted), today_us)
        return 0 if track.terms.realtime else len(track.wanted) - track.dealt

    def _all_old(self, track: Track, first: int, stop: int, today_us: int) -> bool:
        age_max_s = track.terms.age_max_s
        return age_max_s is not None and all(today_us - written_us > age_max_s * 1_000_000 for written_us in track.written_us[first:stop])

    def _excuse_the_old(self, track: Track, stop: int, today_us: int) -> None:
        """Of a flow with `age_max_s`, updates that are older now need not be dealt with."""
        while track.dealt < stop and self._all_old(track, track.dealt, track.dealt + 1, today_us):
            track.dealt += 1

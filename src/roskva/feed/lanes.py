"""The asyncio front end of a blocking feed, with group commit off the event loop (see table/lanes.py for how a lane works)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from roskva.errors import Overloaded, PartitionBusy, PartitionLost, Unavailable
from roskva.feed.interface import Entry, Feed
from roskva.model import partition_of
from roskva.table.lanes import Lane, Rounds, all_of

QUEUED_ENTRIES_MAX: Final = 20_000  # of one lane, in the queue and under way; a call that comes at the limit is refused
BATCH_ENTRIES_MAX: Final = 4_000  # of one transaction, a larger single call aside
# For a partition that is busy, in all. The engine calls it so after 0.2 s without anybody's progress, and a large transaction of another
# gateway, on a disk and cores that all share, may take longer: without this, two gateways with 32 callers each, 1,000 updates a call,
# refused 52 calls.
PATIENCE_S: Final = 2.0


class Appended(NamedTuple):
    """Where entries are now, durably, and what a look that began after that has found."""

    offsets: list[int]
    looked: Any


class FeedLanes:
    """Appends to a blocking `Feed` for an event loop: one lane per topic and partition. Make it inside the running loop.

    `look` is called in the lane's thread after each commit, once for all whose entries were in it. Between the beginnings of commits lie
    about `rest_s`: less after calls that came alone, more after many. `after` is called on the loop when those whose entries were in a
    commit have their answers.
    """

    def __init__(
        self, feed: Feed, look: Callable[[], Any] = lambda: None, rest_s: float = 0.0, after: Callable[[], None] = lambda: None
    ) -> None:
        self.feed = feed
        self._look = look
        self._after = after
        self._rounds = Rounds(rest_s)
        self._lanes: dict[tuple[str, int], Lane[Sequence[Entry], Appended]] = {}

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> asyncio.Future[Appended]:
        """Append entries whose keys all belong to this partition, by `partition_of`: whoever grouped them knows it. Not none."""
        return self._lane(topic, partition).submit(entries, len(entries))

    async def append(self, topic: str, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Like `Feed.append`. An exception reaches exactly the callers whose entries were in the partition that failed."""
        groups: dict[int, list[int]] = {}
        for index, entry in enumerate(entries):
            groups.setdefault(partition_of(entry.key, self.feed.partitions), []).append(index)
        if any(self._lane(topic, partition).full for partition in groups):  # all or nothing: the caller will come again with all
            raise Overloaded(f"A partition of {topic} has as many records waiting as allowed.")
        parts = [self.append_to(topic, partition, [entries[index] for index in indexes]) for partition, indexes in groups.items()]
        answers: list[tuple[int, int]] = [(0, 0)] * len(entries)
        for (partition, indexes), appended in zip(groups.items(), await all_of(parts), strict=True):
            for index, offset in zip(indexes, appended.offsets, strict=True):
                answers[index] = (partition, offset)
        return answers

    async def close(self) -> None:
        """Finish what was asked for. The feed itself stays open."""
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    def _lane(self, topic: str, partition: int) -> Lane[Sequence[Entry], Appended]:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            work = partial(self._append_batch, topic, partition)
            lane = self._lanes[topic, partition] = Lane(
                f"{topic}-{partition}", work, BATCH_ENTRIES_MAX, QUEUED_ENTRIES_MAX, rounds=self._rounds, after=self._after
            )
        return lane

    def _append_in_turn(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        """Wait for other processes that append to the same file, but not for long: one of them may stand still in the middle.

        A loss is met once by every process that has the lost file open, however long ago another one recorded it: whoever asked would only
        ask again, so that it is done here, once.
        """
        give_up_s = time.monotonic() + PATIENCE_S
        met_loss = False
        while True:
            try:
                return self.feed.append_to(topic, partition, entries)
            except PartitionLost:
                if met_loss:
                    raise
                met_loss = True
            except PartitionBusy:
                if time.monotonic() >= give_up_s:
                    raise

    def _append_batch(self, topic: str, partition: int, calls: list[Sequence[Entry]]) -> list[Appended | Exception]:
        try:
            offsets = self._append_in_turn(topic, partition, [entry for entries in calls for entry in entries])
        except Unavailable as error:
            return [error] * len(calls)
        except Exception as error:
            if len(calls) == 1:
                return [error]
            # One call was wrong in a way that only the engine sees: find out whose.
            return [self._append_batch(topic, partition, [entries])[0] for entries in calls]
        try:
            looked = self._look()
        except Exception as error:
            return [error] * len(calls)
        answers: list[Appended | Exception] = []
        start = 0
        for entries in calls:
            answers.append(Appended(offsets[start : start + len(entries)], looked))
            start += len(entries)
        return answers

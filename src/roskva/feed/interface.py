"""The feed: topics of partitioned, durable logs. The contract that every engine keeps.

Engines: sqlite.py (embedded); Kafka comes later, and nothing here promises more than it can give.
Contract tests: tests/feed/contract.py. Calls block; they are safe from several threads and processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

UPDATES: Final = "updates"
REGISTRATIONS: Final = "registrations"
FAN_OUTS: Final = "fan-outs"  # updates of objects with many registrations, on their way to a query of their own
DEAD_LETTERS: Final = "dead-letters"
TOPICS: Final = (UPDATES, REGISTRATIONS, FAN_OUTS, DEAD_LETTERS)


class Entry(NamedTuple):
    """What is appended: `key` chooses the partition (model.partition_of) and keeps an object's records in order."""

    key: bytes
    value: bytes
    headers: bytes = b""  # opaque to the feed: for updates, matcher.forms.Stamp


class Record(NamedTuple):
    """What is read."""

    partition: int
    offset: int
    time_ms: int  # when it was appended, by the appender's clock
    key: bytes
    headers: bytes
    value: bytes


class Position(NamedTuple):
    """A place in one partition: the offset of the next record to read, and the incarnation that the offset belongs to.

    Offsets grow and are never reused within an incarnation, even when retention has emptied the partition.
    """

    incarnation: int
    offset: int


class Feed(Protocol):
    partitions: int

    def append(self, topic: str, entries: Sequence[Entry]) -> list[tuple[int, int]]:
        """Make the entries durable; answers (partition, offset) for each, in their order.

        Entries of one partition land together, in order. FeedFull: refused, nothing landed in that partition.
        PartitionUnavailable: may or may not have landed; append again.
        """
        ...

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> list[int]:
        """Like `append`, for entries of one partition, which the caller has found by their keys; answers their offsets."""
        ...

    def append_once(self, topic: str, entries: Sequence[Entry]) -> None:
        """Like `append`, but an entry whose key this call has appended before, and which is still there, is left out.

        For dead letters, keyed by their origin. Keys of plain `append` do not count.
        """
        ...

    def read(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        """The records with start <= offset < end that still exist, in order. Past the end there are none."""
        ...

    def oldest(self, topic: str) -> Mapping[int, Position]:
        """Where reading may begin, by partition."""
        ...

    def newest(self, topic: str) -> Mapping[int, Position]:
        """One past the last durable record, by partition."""
        ...

    def wait(self, topics: Sequence[str], seen: Mapping[tuple[str, int], Position], timeout_s: float) -> bool:
        """Block until some partition of these topics may be past `seen` (True), or the time is over. May wake early."""
        ...

    def subscribe(self, subscription: str, topics: Sequence[str]) -> None:
        """From now on nothing of these topics is dropped that this subscription has not committed. Begin at `oldest`."""
        ...

    def commit(self, subscription: str, topic: str, positions: Mapping[int, Position]) -> None:
        """The subscription needs nothing before these positions any more. Commits only move forward, and never past `newest`.

        Subscribes it to the topic, if it was not. A position of another incarnation than the present one changes nothing.
        """
        ...

    def committed(self, subscription: str, topic: str) -> Mapping[int, Position]:
        """The last commits, by partition; partitions never committed, or lost since, are absent."""
        ...

    def trim(self) -> int:
        """Drop what is past retention and committed by every subscription; answers how many records went.

        A topic without subscriptions keeps everything. Whoever runs the service calls this now and then.
        """
        ...

    def close(self) -> None: ...

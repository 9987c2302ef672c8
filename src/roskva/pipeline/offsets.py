"""Which records a micro-batch takes: positions of the feed as Spark's offsets, and what a range of them means today.

Spark logs (start, end) before a batch and repeats it after a restart, when the feed may be another: a partition that was lost has a
new incarnation, and offsets of the old one mean nothing there. So every offset carries its incarnation, and `plan` accepts a start
or an end of another one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from roskva.feed.interface import FAN_OUTS, REGISTRATIONS, UPDATES, Position
from roskva.probes import reached

SUBSCRIPTION: Final = "pipeline"
# Below this a further task costs more than it brings. At 200 records a second, four runs of each by turns on two cores that others
# used too: median batches of 85 to 131 ms in one task, 151 to 336 ms in two, and 25 to 44 ms less CPU of the JVM a batch. The limit
# itself is a guess between that rate and the large batches where two cores pay.
RECORDS_PER_TASK_MIN: Final = 250

Place = tuple[str, int]  # topic and partition
Positions = Mapping[Place, Position]


class Stream(NamedTuple):
    """What one query reads."""

    name: str
    topics: tuple[str, ...]


MATCHING: Final = Stream("matching", (UPDATES, REGISTRATIONS))
FAN_OUT: Final = Stream("fan-out", (FAN_OUTS,))
STREAMS: Final = (MATCHING, FAN_OUT)


class Range(NamedTuple):
    """Records of one partition of one topic: start <= offset < end."""

    topic: str
    partition: int
    incarnation: int
    start: int
    end: int


class Plan(NamedTuple):
    ranges: list[Range]
    losses: list[str]  # what was to be read and no longer exists, for the log


def to_json(positions: Positions) -> dict[str, dict[str, list[int]]]:
    """As Spark logs it: {"updates": {"0": [incarnation, offset]}}. Equal positions give equal text, which is how Spark compares."""
    document: dict[str, dict[str, list[int]]] = {}
    for topic, partition in sorted(positions):
        document.setdefault(topic, {})[str(partition)] = list(positions[topic, partition])
    return document


def from_json(document: Mapping[str, Any]) -> dict[Place, Position]:
    return {
        (topic, int(partition)): Position(int(position[0]), int(position[1]))
        for topic, partitions in document.items()
        for partition, position in partitions.items()
    }


def advance(start: Positions, oldest: Positions, newest: Positions, records_max: int) -> dict[Place, Position]:
    """Where the next batch ends: at the newest record, or `records_max` after its start, for each partition."""
    end = {}
    for place, last in newest.items():
        begin = _begin(start.get(place), oldest[place], last)
        end[place] = Position(last.incarnation, min(last.offset, begin + records_max))
    return end


def plan(start: Positions, end: Positions, oldest: Positions, newest: Positions) -> Plan:
    """What to read for a batch that Spark planned as (start, end), perhaps in an earlier life of the feed."""
    ranges: list[Range] = []
    losses: list[str] = []
    for place, last in sorted(newest.items()):
        topic, partition = place
        until = end.get(place)
        if until is None:
            continue
        if until.incarnation != last.incarnation:
            reached("offsets: a range of a lost incarnation")
            losses.append(f"{topic}/{partition}: incarnation {until.incarnation} up to {until.offset:,}; now it is {last.incarnation}")
            continue
        since = start.get(place)
        if since is not None and since.incarnation == until.incarnation and since.offset < oldest[place].offset < until.offset:
            losses.append(f"{topic}/{partition}: from {since.offset:,} to the oldest record, {oldest[place].offset:,}")
        begin = _begin(since, oldest[place], last)
        if begin < until.offset:
            ranges.append(Range(topic, partition, last.incarnation, begin, until.offset))
    return Plan(ranges, losses)


def _begin(start: Position | None, oldest: Position, newest: Position) -> int:
    """A start of another incarnation, or past the end, means: from the oldest."""
    if start is None or start.incarnation != newest.incarnation or start.offset > newest.offset:
        return oldest.offset
    return max(start.offset, oldest.offset)


def share_out(ranges: Iterable[Range], tasks_max: int) -> list[list[Range]]:
    """Tasks of about equal size: as many as are worth it. All topics of a partition go to one task: an object has one worker."""
    by_partition: dict[int, list[Range]] = {}
    for item in ranges:
        by_partition.setdefault(item.partition, []).append(item)
    sizes = {partition: sum(item.end - item.start for item in items) for partition, items in by_partition.items()}
    worth_it = -(-sum(sizes.values()) // RECORDS_PER_TASK_MIN)
    tasks: list[list[Range]] = [[] for _ in range(min(tasks_max, worth_it, len(by_partition)))]
    loads = [0] * len(tasks)
    for partition in sorted(sizes, key=lambda partition: (-sizes[partition], partition)):
        lightest = loads.index(min(loads))
        tasks[lightest] += by_partition[partition]
        loads[lightest] += sizes[partition]
    return tasks

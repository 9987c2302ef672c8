"""A version counts as known only while nothing was lost since that may have held a later one."""

from __future__ import annotations

from roskva.feed.interface import UPDATES
from roskva.feed.known import known_since, since_of
from roskva.table.manifest import COMPLETE, RECOVERING, PartitionRecord

PARTITIONS = 2


class Partitions:
    """What the manifest says; incarnations grow from 10 on."""

    def __init__(self) -> None:
        places = [("feed", UPDATES), ("table", "matcher"), ("table", "scratch")]
        self.records = {(*place, number): PartitionRecord(10, COMPLETE, True) for place in places for number in range(PARTITIONS)}
        self._last = 10

    def lose(self, kind: str, name: str, partition: int) -> None:
        self._last += 1
        self.records[kind, name, partition] = PartitionRecord(self._last, RECOVERING, True)

    def complete(self) -> None:
        self.records = {place: record._replace(state=COMPLETE) for place, record in self.records.items()}

    def record(self, kind: str, name: str, partition: int) -> PartitionRecord:
        return self.records[kind, name, partition]

    def known(self) -> int | None:
        return known_since(self.record, 0, PARTITIONS)

    def written(self, came: int | None = None) -> int:
        """For a version that comes now, or came with an earlier incarnation of the feed."""
        came = self.records["feed", UPDATES, 0].incarnation if came is None else came
        return since_of(self.record, 0, PARTITIONS, came)


def test_what_comes_while_nothing_is_lost_is_known() -> None:
    place = Partitions()
    assert place.written() == place.known()


def test_while_anything_is_recovered_nothing_is_known() -> None:
    for kind, name, partition in [("feed", UPDATES, 0), ("table", "matcher", 0), ("table", "scratch", 0), ("table", "scratch", 1)]:
        place = Partitions()
        place.lose(kind, name, partition)
        assert place.known() is None


def test_another_partition_of_the_feed_or_the_matcher_does_not_matter() -> None:
    place = Partitions()
    before = place.written()
    place.lose("feed", UPDATES, 1)
    place.lose("table", "matcher", 1)
    assert place.known() == before


def test_what_came_before_a_loss_is_never_known_again_and_what_comes_after_it_is() -> None:
    for kind, name, partition in [("feed", UPDATES, 0), ("table", "scratch", 1)]:
        place = Partitions()
        before = place.written()
        place.lose(kind, name, partition)
        place.complete()
        assert place.known() != before
        assert place.written() == place.known()


def test_what_comes_while_anything_is_recovered_is_not_known_afterwards() -> None:
    """A later version of it may have been in the part that was lost: this one may be a publisher's late repeat."""
    for kind, name, partition in [("feed", UPDATES, 0), ("table", "matcher", 0), ("table", "scratch", 0), ("table", "scratch", 1)]:
        place = Partitions()
        place.lose(kind, name, partition)
        meanwhile = place.written()
        place.complete()
        assert place.known() != meanwhile
        assert place.written() == place.known()


def test_what_comes_back_from_scratch_after_the_feed_was_lost_is_not_known() -> None:
    place = Partitions()
    came = place.records["feed", UPDATES, 0].incarnation
    place.lose("feed", UPDATES, 0)
    place.lose("table", "scratch", 1)
    place.complete()
    assert place.written(came) != place.known()

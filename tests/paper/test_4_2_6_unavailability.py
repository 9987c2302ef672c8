"""Thialfi 4.2.6, tolerating storage unavailability: the real task and the real sweep over real feed and table, with injected faults."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

from __future__ import annotations

from roskva.feed.known import known_since
from roskva.matcher.scratch import Homeless, homeless_cell, place
from roskva.pipeline.matching import Task
from roskva.table import open_manifest, open_table
from tests.pipeline.standin import RegistrarStandIn
from tests.pipeline.test_matching import Rows, key_of
from tests.pipeline.test_scratch import (  # noqa: F401
    DOWN,
    DOWN_RULE,
    NAMES,
    Injected,
    injected,
    registered,
    registrar,
    rows,
    settings,
    updates,
    versions_told,
)


def test_4_2_6_a_partition_that_fails_is_put_aside_and_everyone_else_is_told(
    injected: Injected, registered: RegistrarStandIn, rows: Rows
) -> None:
    """Some rows cannot be written: their updates are buffered in a scratch table, the feed is acknowledged, and clients of other rows
    are served. A scanner later brings the versions home."""
    injected.fail(DOWN_RULE)
    counts = Task(injected).run([*updates(rows, 5), rows.registration("b", NAMES[DOWN], 1)])
    assert versions_told(registered) == {name: 5 for name in NAMES if name != NAMES[DOWN]}
    since = known_since(open_manifest(injected.settings).record, DOWN, injected.settings.partitions)
    assert since is not None
    assert injected.aside() == [Homeless(key_of(NAMES[DOWN]), 5, since, 0)]
    assert (counts.scratched, counts.left_pending) == (1, 1)
    injected.heal()
    assert versions_told(registered) == dict.fromkeys(NAMES, 5)
    assert injected.aside() == []


def test_4_2_6_later_versions_overwrite_earlier_ones(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    """Successive versions of an object overwrite each other in the scratch table: only the latest is propagated."""
    injected.fail(DOWN_RULE)
    for version in range(5, 25):
        Task(injected).run(updates(rows, version))
    assert [one.version for one in injected.aside() if isinstance(one, Homeless)] == [24]
    injected.heal()
    assert registered.versions(key_of(NAMES[DOWN])) == [24]


def test_4_2_6_where_one_place_of_scratch_fails_the_next_is_taken(injected: Injected, registered: RegistrarStandIn, rows: Rows) -> None:
    """Retry locations are computed in turn: if the first write to the scratch table fails, the next goes elsewhere."""
    places = [place(homeless_cell(Homeless(key_of(NAMES[DOWN]), 5, 1)), attempt, 4) for attempt in range(4)]
    broken = places[0].partition
    injected.fail(DOWN_RULE, {"table": "scratch", "partitions": [broken]})
    Task(injected).run(updates(rows, 5))
    second = next(row for row in places if row.partition != broken)
    assert open_table(injected.settings).read([second])[second]
    injected.heal()
    assert versions_told(registered) == dict.fromkeys(NAMES, 5)

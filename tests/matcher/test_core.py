"""The Matcher: collapse, write, then read, then decide whom to tell (Thialfi 4.1.3, 4.1.4)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.matcher.cells import object_row
from roskva.matcher.core import Accepted, Batch, Change, accept, collapse, drop_copies, hand_over, match, tell_registered
from roskva.matcher.events import decode_update, encode_update
from roskva.model import (
    DROP_COPY,
    NOT_OWNER,
    OUTCOME_COVERED,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    ObjectKey,
    Propagation,
    Registration,
    Update,
    object_key,
)
from roskva.table.interface import CELLS_PER_WRITE_MAX, Cell, Row, RowKey, wins

PARTITIONS = 4
HELLO = object_key("demo", 0, b"hello")
OTHER = object_key("demo", 0, b"other")
PHONE, LAPTOP = ClientId("phone"), ClientId("laptop")


class World:
    """A table in memory, and the caller's duties one by one, so that tests can put other tasks between them."""

    def __init__(self, feed_incarnation: int = 1, complete: bool = True) -> None:
        self.rows: dict[RowKey, dict[bytes, Cell]] = {}
        self.feed_incarnation = feed_incarnation
        self.complete = complete

    def accept(self, batch: Batch) -> Accepted:
        return accept(batch, PARTITIONS, lambda key: self.feed_incarnation)

    def write(self, accepted: Accepted) -> None:
        for mutation in accepted.writes:
            row = self.rows.setdefault(mutation.row, {})
            for cell in mutation.cells:
                if cell.name not in row or wins(cell, row[cell.name]):
                    row[cell.name] = cell

    def read(self, accepted: Accepted) -> dict[RowKey, Row]:
        rows: dict[RowKey, Row] = {key: dict(self.rows.get(key, {})) for key in accepted.read_whole}
        for key in accepted.read_version:
            rows[key] = {name: cell for name, cell in self.rows.get(key, {}).items() if name == b"version"}
        return rows

    def match(self, batch: Batch, rows: dict[RowKey, Row]) -> list[Propagation]:
        return match(batch, rows, PARTITIONS, lambda key: self.feed_incarnation if self.complete else None)

    def task(self, *events: Update | Registration) -> list[Propagation]:
        batch = batch_of(events)
        accepted = self.accept(batch)
        self.write(accepted)
        return self.match(batch, self.read(accepted))


def batch_of(events: Iterable[Update | Registration]) -> Batch:
    events = list(events)
    return collapse((e for e in events if isinstance(e, Update)), (e for e in events if isinstance(e, Registration)))


def registration(
    client: ClientId = PHONE,
    seqno: int = 1,
    object: ObjectKey = HELLO,
    registered: bool = True,
    held: int | None = None,
    repair: bool = False,
) -> Registration:
    return Registration(client, object, seqno, registered, device=client, held=held, repair=repair)


def update(version: int, source: str = "", again: bool = False) -> Update:
    return Update(HELLO, version, source, again)


def told(propagations: Iterable[Propagation]) -> set[tuple[str, int, int]]:
    return {(one.client, one.outcome, one.version) for one in propagations}


def test_updates_of_an_object_collapse_to_the_highest_version() -> None:
    batch = collapse([update(5), update(9), update(7), Update(OTHER, 1, "")], [])
    assert {key: change.version for key, change in batch.changes.items()} == {HELLO: 9, OTHER: 1}


@given(st.lists(st.builds(update, st.integers(0, 3), st.sampled_from(["", "a", "b"]), again=st.booleans()), min_size=1), st.randoms())
def test_what_is_left_out_does_not_depend_on_the_order_of_updates(updates: list[Update], shuffled: object) -> None:
    other = list(updates)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    one, two = collapse(updates, []).changes[HELLO], collapse(other, []).changes[HELLO]
    assert (one.version, one.sole_source) == (two.version, two.sole_source)
    assert one.source == two.source or not one.sole_source


@given(st.lists(st.builds(update, st.integers(0, 3), st.sampled_from(["", "a", "b"]), again=st.booleans()), min_size=1))
def test_a_source_is_left_out_only_if_every_update_named_it_on_its_first_pass(updates: list[Update]) -> None:
    change = collapse(updates, []).changes[HELLO]
    sources = {"" if one.again else one.source for one in updates}
    assert change.version == max(one.version for one in updates)
    assert change.sole_source == (len(sources) == 1 and sources != {""})
    if change.sole_source:
        assert sources == {change.source}


def test_an_empty_batch_says_so() -> None:
    assert batch_of([]).empty
    assert not batch_of([update(1)]).empty
    assert not batch_of([registration()]).empty


def test_registrations_of_one_client_and_object_collapse_to_the_highest_seqno() -> None:
    batch = batch_of([registration(seqno=2, registered=False), registration(seqno=1), registration(LAPTOP, 1)])
    assert [(one.client, one.seqno, one.registered) for one in batch.registrations.values()] == [
        (PHONE, 2, False),
        (LAPTOP, 1, True),
    ]


def test_an_update_is_told_to_everyone_who_is_registered() -> None:
    world = World()
    world.task(registration(PHONE), registration(LAPTOP), registration(ClientId("gone"), 1))
    world.task(registration(ClientId("gone"), 2, registered=False))
    assert told(world.task(update(7))) == {(PHONE, OUTCOME_UPDATE, 7), (LAPTOP, OUTCOME_UPDATE, 7)}


def test_a_propagation_names_the_registration_that_it_answers() -> None:
    world = World()
    world.task(registration(PHONE, seqno=11))
    assert world.task(update(7)) == [Propagation(PHONE, HELLO, 11, OUTCOME_UPDATE, 7)]


@pytest.mark.parametrize("update_writes_first", [True, False])
def test_a_registration_and_an_update_that_race_never_miss_each_other(update_writes_first: bool) -> None:
    """Trap 1: if both tasks read before the other's write landed, nobody would be told. Each reads after its own write."""
    world = World()
    changing, registering = batch_of([update(7)]), batch_of([registration()])
    first, second = (changing, registering) if update_writes_first else (registering, changing)
    accepted_first, accepted_second = world.accept(first), world.accept(second)
    world.write(accepted_first)
    # The first reads before the second has written: it sees nothing of it.
    from_first = world.match(first, world.read(accepted_first))
    world.write(accepted_second)
    from_second = world.match(second, world.read(accepted_second))
    versions = {one.version for one in from_first + from_second if one.outcome in (OUTCOME_UPDATE, OUTCOME_VERSION)}
    assert 7 in versions


def test_when_both_have_written_before_either_reads_both_tell() -> None:
    """Trap 1, the other interleaving: too often is allowed, not at all is not."""
    world = World()
    changing, registering = batch_of([update(7)]), batch_of([registration()])
    accepted = [world.accept(changing), world.accept(registering)]
    world.write(accepted[0])
    world.write(accepted[1])
    assert told(world.match(changing, world.read(accepted[0]))) == {(PHONE, OUTCOME_UPDATE, 7)}
    assert told(world.match(registering, world.read(accepted[1]))) == {(PHONE, OUTCOME_VERSION, 7)}


def test_in_one_batch_the_registration_and_the_update_both_tell() -> None:
    assert told(World().task(registration(), update(7))) == {(PHONE, OUTCOME_UPDATE, 7), (PHONE, OUTCOME_VERSION, 7)}


def test_what_is_read_is_named_after_what_is_written() -> None:
    accepted = World().accept(batch_of([update(7), registration(object=OTHER)]))
    assert {mutation.row.key for mutation in accepted.writes} == {HELLO, OTHER}
    assert [row.key for row in accepted.read_whole] == [HELLO]
    assert [row.key for row in accepted.read_version] == [OTHER]


def test_a_row_that_holds_a_higher_version_tells_that_one() -> None:
    world = World()
    world.task(registration())
    world.task(update(9))
    assert told(world.task(update(7))) == {(PHONE, OUTCOME_UPDATE, 9)}


def test_a_version_equal_to_the_one_in_the_row_is_told_again() -> None:
    """The batch that wrote it may have died before it told anybody."""
    world = World()
    world.task(registration())
    batch = batch_of([update(7)])
    world.write(world.accept(batch))  # and here it died
    assert told(world.task(update(7))) == {(PHONE, OUTCOME_UPDATE, 7)}


def test_the_device_that_made_the_change_is_left_out() -> None:
    world = World()
    world.task(registration(PHONE), registration(LAPTOP))
    assert told(world.task(update(7, "phone"))) == {(LAPTOP, OUTCOME_UPDATE, 7)}
    assert told(world.task(update(8, "phone"), update(9, "phone"))) == {(LAPTOP, OUTCOME_UPDATE, 9)}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([update(5, "laptop"), update(6, "phone")], id="collapsed with an earlier version of another"),
        pytest.param([update(6, "phone"), update(5, "laptop")], id="collapsed with a late, lower version of another"),
        pytest.param([update(6, "phone"), update(6, "laptop")], id="the same version by two"),
        pytest.param([update(5), update(6, "phone")], id="collapsed with one of no source"),
        pytest.param([update(6, "phone", again=True)], id="brought back by a sweep"),
        pytest.param([update(5, "phone", again=True), update(6, "phone")], id="collapsed with one that was brought back"),
        pytest.param([update(6)], id="no source named"),
    ],
)
def test_nobody_is_left_out_unless_the_change_is_only_theirs(events: list[Update]) -> None:
    """Trap 11: left out as the source of v6, a device would never hear of the v5 that another one made."""
    world = World()
    world.task(registration(PHONE), registration(LAPTOP))
    assert told(world.task(*events)) == {(PHONE, OUTCOME_UPDATE, 6), (LAPTOP, OUTCOME_UPDATE, 6)}


def test_a_source_of_a_lower_version_is_told_the_higher_one_in_the_row() -> None:
    """Trap 11: the phone made v6, not the v9 that is told instead, and the pass of v9 may have died."""
    world = World()
    world.task(registration(PHONE))
    world.task(update(9, "laptop"))
    assert told(world.task(update(6, "phone"))) == {(PHONE, OUTCOME_UPDATE, 9)}


def test_a_registration_is_answered_even_if_its_device_is_the_source() -> None:
    """Trap 11: suppression is for updates only; a device that registers wants to know where it stands."""
    world = World()
    world.task(update(7, "phone"))
    assert told(world.task(registration())) == {(PHONE, OUTCOME_VERSION, 7)}
    world = World()
    assert told(world.task(update(7, "phone"), registration())) == {(PHONE, OUTCOME_VERSION, 7)}


def test_a_version_of_mixed_sources_is_stored_without_a_source() -> None:
    world = World()
    accepted = world.accept(batch_of([update(5, "laptop"), update(6, "phone")]))
    (cell,) = accepted.writes[0].cells
    assert (cell.timestamp, cell.value) == (6, (1).to_bytes(8, "big"))


@pytest.mark.parametrize(
    ("held", "outcome"),
    [(None, OUTCOME_VERSION), (6, OUTCOME_VERSION), (7, OUTCOME_COVERED), (8, OUTCOME_COVERED), (0, OUTCOME_VERSION)],
)
def test_a_held_version_is_covered_only_when_the_known_one_is_not_greater(held: int | None, outcome: int) -> None:
    world = World()
    world.task(update(7))
    version = 7 if outcome == OUTCOME_VERSION else 0
    assert told(world.task(registration(held=held))) == {(PHONE, outcome, version)}


@pytest.mark.parametrize("held", [None, 0, 7, 2**63 - 1])
def test_where_no_version_is_known_a_held_one_does_not_silence_unknown(held: int | None) -> None:
    """Trap 33: a Matcher that knows nothing cannot tell whether "I hold v7" is the latest."""
    assert told(World().task(registration(held=held))) == {(PHONE, OUTCOME_UNKNOWN, 0)}


def test_a_version_of_another_feed_incarnation_counts_as_unknown() -> None:
    """Traps 6 and 33: v8 may have been acknowledged to its publisher and lost with the feed."""
    world = World(feed_incarnation=1)
    world.task(update(7))
    world.feed_incarnation = 2
    assert told(world.task(registration(held=7))) == {(PHONE, OUTCOME_UNKNOWN, 0)}
    world.task(update(7))  # published again: known again
    assert told(world.task(registration(seqno=2, held=7))) == {(PHONE, OUTCOME_COVERED, 0)}


def test_while_the_partition_is_incomplete_registrations_yield_unknown() -> None:
    """Trap 32: a late retry of v8 must not make the row look known while v9 may be lost."""
    world = World()
    world.task(update(8))
    world.complete = False
    assert told(world.task(registration(held=8))) == {(PHONE, OUTCOME_UNKNOWN, 0)}


def test_an_update_is_told_even_while_the_partition_is_incomplete() -> None:
    world = World(complete=False)
    world.task(registration())
    assert told(world.task(update(8))) == {(PHONE, OUTCOME_UPDATE, 8)}


@pytest.mark.parametrize("held", [None, 7, 99])
def test_a_repair_always_yields_unknown(held: int | None) -> None:
    """Traps 7 and 33: what a repair stands for is a possible loss, whatever is known or held."""
    world = World()
    world.task(update(7))
    assert told(world.task(registration(repair=True, held=held))) == {(PHONE, OUTCOME_UNKNOWN, 0)}


def test_an_unregistration_is_confirmed_and_nothing_is_told_afterwards() -> None:
    world = World()
    world.task(registration(seqno=1))
    assert told(world.task(registration(seqno=2, registered=False))) == {(PHONE, OUTCOME_UNREGISTERED, 0)}
    assert world.task(update(7)) == []


def test_a_late_registration_does_not_undo_a_later_unregistration() -> None:
    world = World()
    world.task(registration(seqno=2, registered=False))
    world.task(registration(seqno=1))
    assert world.task(update(7)) == []


def test_a_repeated_batch_tells_the_same_and_leaves_the_same_rows() -> None:
    world = World()
    events: list[Update | Registration] = [registration(PHONE), registration(LAPTOP, 3), update(7, "phone"), update(6, "phone")]
    first = world.task(*events)
    rows = {key: dict(row) for key, row in world.rows.items()}
    assert world.task(*events) == first
    assert world.rows == rows


def test_objects_of_another_epoch_are_other_objects() -> None:
    """Trap 33: a version held in the epoch before a reset says nothing about the one after it."""
    world = World()
    world.task(update(100))
    after_reset = object_key("demo", 1, b"hello")
    assert told(world.task(registration(object=after_reset, held=None))) == {(PHONE, OUTCOME_UNKNOWN, 0)}
    world.task(Update(after_reset, 5, ""))
    assert told(world.task(registration(object=after_reset, seqno=2))) == {(PHONE, OUTCOME_VERSION, 5)}


def test_a_write_never_holds_more_cells_than_an_engine_takes() -> None:
    clients = [ClientId(f"client-{number}") for number in range(2_500)]
    accepted = World().accept(batch_of([update(7), *(registration(client) for client in clients)]))
    sizes = [len(mutation.cells) for mutation in accepted.writes]
    assert max(sizes) <= CELLS_PER_WRITE_MAX
    assert sum(sizes) == 2_501


def test_copies_that_the_registrar_calls_dead_are_dropped_and_no_others() -> None:
    """Trap 26: after a loss at the Registrar, dead ids would be told of every update for ever."""
    world = World()
    clients = [ClientId(name) for name in "abcd"]
    world.task(*(registration(client, 5) for client in clients))
    propagations = world.task(update(7))
    verdicts = {"a": SETTLED, "b": DROP_COPY, "c": NOT_OWNER, "d": UNAVAILABLE}
    drops = drop_copies(propagations, [verdicts[one.client] for one in propagations], PARTITIONS)
    world.write(Accepted(drops, [], []))
    assert {one.client for one in world.task(update(8))} == {"a", "c", "d"}


def test_dropping_a_copy_spares_a_later_registration() -> None:
    world = World()
    world.task(registration(seqno=5))
    propagations = world.task(update(7))
    world.task(registration(seqno=6))
    world.write(Accepted(drop_copies(propagations, [DROP_COPY], PARTITIONS), [], []))
    assert told(world.task(update(8))) == {(PHONE, OUTCOME_UPDATE, 8)}


def test_verdicts_must_match_their_propagations() -> None:
    with pytest.raises(ValueError, match="shorter"):
        drop_copies([Propagation(PHONE, HELLO, 1, OUTCOME_UPDATE, 1)], [], PARTITIONS)


def test_a_change_shows_what_it_is() -> None:
    assert collapse([update(7, "phone")], []).changes[HELLO] == Change(7, "phone", sole_source=True)


events_of_a_story = st.lists(
    st.builds(update, st.integers(0, 6))
    | st.builds(registration, st.sampled_from([PHONE, LAPTOP]), st.integers(1, 6), registered=st.just(True)),
    min_size=1,
    max_size=8,
)


@given(events_of_a_story, st.data())
def test_however_tasks_interleave_every_registered_client_learns_the_latest_version(
    events: list[Update | Registration], data: st.DataObject
) -> None:
    """Trap 1, at large: tasks of one event each, their write and read steps in any order that keeps each task's own."""
    world = World()
    tasks = [batch_of([event]) for event in events]
    accepted = [world.accept(batch) for batch in tasks]
    steps = data.draw(st.permutations([index for index in range(len(tasks)) for _ in range(2)]))
    written: set[int] = set()
    heard: dict[str, set[tuple[int, int, int]]] = {}
    for index in steps:
        if index not in written:
            written.add(index)
            world.write(accepted[index])
            continue
        for one in world.match(tasks[index], world.read(accepted[index])):
            heard.setdefault(one.client, set()).add((one.seqno, one.outcome, one.version))
    latest = max((event.version for event in events if isinstance(event, Update)), default=None)
    seqnos = {e.client: max(o.seqno for o in events if isinstance(o, Registration) and o.client == e.client)
              for e in events if isinstance(e, Registration)}  # fmt: skip
    for client, seqno in seqnos.items():
        told_now = {(outcome, version) for s, outcome, version in heard[client] if s == seqno}
        if latest is None:
            assert told_now == {(OUTCOME_UNKNOWN, 0)}
        else:
            assert told_now & {(OUTCOME_UPDATE, latest), (OUTCOME_VERSION, latest)}


def test_an_object_with_many_registrations_is_handed_over_and_the_others_stay() -> None:
    world = World()
    clients = [ClientId(f"c{number}") for number in range(4)]
    world.task(*(registration(client) for client in clients), *(registration(client, object=OTHER) for client in clients[:3]))
    batch = batch_of([update(5, "c0"), update(6, "c0"), Update(OTHER, 1, ""), registration(PHONE)])
    accepted = world.accept(batch)
    world.write(accepted)
    staying, large = hand_over(batch, world.read(accepted), PARTITIONS, above=4)
    assert large == [Update(HELLO, 6, "c0")], "five are registered, with the one of this batch"
    assert (set(staying.changes), set(staying.registrations)) == ({OTHER}, {(PHONE, HELLO)})
    assert hand_over(batch, world.read(accepted), PARTITIONS, above=5) == (batch, [])


def test_what_is_handed_over_names_a_source_only_if_all_updates_did() -> None:
    world = World()
    world.task(registration(PHONE), registration(LAPTOP))
    for updates, expected in [
        ([update(5, "a"), update(6, "b")], Update(HELLO, 6, "", again=True)),
        ([update(5, "a", again=True)], Update(HELLO, 5, "", again=True)),
        ([update(5, "a")], Update(HELLO, 5, "a")),
    ]:
        batch = batch_of(updates)
        accepted = world.accept(batch)
        world.write(accepted)
        assert hand_over(batch, world.read(accepted), PARTITIONS, above=1)[1] == [expected]
        assert decode_update(encode_update(expected)) == expected


def test_pages_of_a_row_yield_what_the_whole_row_does() -> None:
    world = World()
    world.task(*(registration(ClientId(f"c{number}")) for number in range(7)), update(4))
    row = world.rows[object_row(HELLO, PARTITIONS)]
    change = collapse([update(3, "c1")], []).changes[HELLO]
    whole = list(tell_registered(HELLO, change, row))
    version = {name: cell for name, cell in row.items() if name == b"version"}
    names = sorted(name for name in row if name != b"version")
    pages = [{**{name: row[name] for name in names[start : start + 3]}, **version} for start in range(0, len(names), 3)]
    assert [one for page in pages for one in tell_registered(HELLO, change, page)] == whole
    assert {one.version for one in whole} == {4}
    assert len(whole) == 7, "the row's version is told, and so to everyone"

"""The decoder of the binary log, from bytes that a server wrote, and from bytes that none should write."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from roskva.capture.actions import DataLoss, Send
from roskva.capture.core import Core
from roskva.capture.flows import Routed, Terms
from roskva.capture.limits import Limits
from roskva.capture.ownership import FlowName
from roskva.capture.positions import BEGINNING, WHOLE, Position
from roskva.capture.stores.binlog.decoding import INCIDENT, ROTATE, TABLE_MAP, XID, rotated_to
from roskva.capture.stores.mariadb.decoding import GTID, MariadbDecoder
from roskva.capture.updates import Change, Operation
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, RoskvaError
from tests.capture.core.stage import of
from tests.capture.stores.binlog.events import CODECS, FORMATTED, event, nobody_describes, statement
from tests.capture.stores.mariadb.recorded import EVENTS

INSERTED, UPDATED = 23, 24
RECORDED_MAP = next(one for one in EVENTS if one[4] == TABLE_MAP)
RECORDED_ROWS = next(one for one in EVENTS if one[4] == INSERTED)


def decoder(after: Position = BEGINNING, prepared_xa_counts: bool = False, last: int = 0) -> MariadbDecoder:
    return MariadbDecoder(after, 0, CODECS, nobody_describes, prepared_xa_counts, last)


def decoded(events: Iterable[bytes], after: Position = BEGINNING, whole_up_to: int | None = None) -> tuple[list[Change], Position]:
    decoding = decoder(after)
    decoding.file_begins(whole_up_to)
    changes: list[Change] = []
    for each in events:
        decoding.decode(each, changes)
    return changes, decoding.reached


def group(sequence: int, domain: int = 0, flags: int = 0) -> bytes:
    return event(GTID, sequence.to_bytes(8, "little") + domain.to_bytes(4, "little") + bytes([flags]) + bytes(6))


MAPPED, ROWS, DONE = (event(each[4], each[19:-4]) for each in (RECORDED_MAP, RECORDED_ROWS, next(one for one in EVENTS if one[4] == XID)))


def test_a_recorded_log_becomes_its_changes() -> None:
    changes, reached = decoded(EVENTS)
    assert reached == Position(0, 7, WHOLE)
    assert [
        (str(change.position), change.operation, change.table, change.key, change.columns, change.old_key, change.attached)
        for change in changes
    ] == [
        ("0/3.1", Operation.INSERT, "t", {"id": 1}, {"id": 1, "v": "a", "n": "-1.50000"}, None, None),
        ("0/3.2", Operation.INSERT, "t", {"id": 2}, {"id": 2, "v": "b", "n": None}, None, None),
        ("0/4.1", Operation.UPDATE, "t", {"id": 3}, {"id": 3, "v": "b", "n": None}, {"id": 2}, None),
        ("0/6.2", Operation.INSERT, "t", {"id": 9}, {"id": 9, "v": "x", "n": "1.00000"}, None, {"source": "me"}),
        ("0/7.1", Operation.TRUNCATE, "t", {}, {}, None, None),
    ]
    assert {(change.database, change.committed_us % 1_000_000) for change in changes} == {("a", 0)}


def test_after_each_position_of_a_recorded_log_comes_the_rest() -> None:
    changes, _ = decoded(EVENTS)
    for place, change in enumerate(changes):
        assert decoded(EVENTS, change.position) == (changes[place + 1 :], Position(0, 7, WHOLE))
        assert decoded(EVENTS, change.position._replace(index=WHOLE))[0] == [
            later for later in changes if later.position.sequence > change.position.sequence
        ]
    assert decoded(EVENTS, Position(0, 7)) == ([], Position(0, 7))


def test_any_bit_that_fell_over_on_the_way_is_noticed() -> None:
    for place in range(19, len(RECORDED_ROWS)):
        damaged = bytearray(RECORDED_ROWS)
        damaged[place] ^= 4
        with pytest.raises(DatastoreUnavailable, match="check sum"):
            decoded([EVENTS[0], group(3), RECORDED_MAP, bytes(damaged)])


def test_any_bytes_in_a_table_map_or_a_row_are_an_error_and_no_endless_loop() -> None:
    """A wrong check sum is found before this; what a server of another kind would write must not hang a reader."""
    for kept in (MAPPED, ROWS):
        for place in range(19, len(kept) - 4):
            body = bytearray(kept[19:-4])
            body[place - 19] ^= 0x55
            strange = event(kept[4], bytes(body))
            events = [FORMATTED, group(3), strange if kept is MAPPED else MAPPED, ROWS if kept is MAPPED else strange]
            decoding, changes = MariadbDecoder(BEGINNING, 0, CODECS, lambda database, table: None), list[Change]()
            try:
                for each in events:
                    decoding.decode(each, changes)
            except RoskvaError:
                continue
            assert 1 <= len(changes) <= 2  # only what the rows say was changed


def test_a_group_that_a_crash_has_cut_is_passed_over_and_its_number_comes_again() -> None:
    cut = [group(3), MAPPED, ROWS]
    decoding = decoder()
    changes: list[Change] = []
    decoding.file_begins(whole_up_to=2)
    for each in [FORMATTED, *cut]:
        decoding.decode(each, changes)
    assert (changes, decoding.reached) == ([], BEGINNING)
    decoding.file_begins(whole_up_to=None)
    for each in [FORMATTED, *cut, DONE]:
        decoding.decode(each, changes)
    assert [str(change.position) for change in changes] == ["0/3.1", "0/3.2"]
    assert decoding.reached == Position(0, 3)


def test_numbers_that_go_back_are_refused() -> None:
    with pytest.raises(CaptureRefused, match=r"sequence number 3 after 3.*gtid_strict_mode"):
        decoded([FORMATTED, group(3), MAPPED, ROWS, DONE, group(3)])


def test_another_domain_is_refused() -> None:
    with pytest.raises(CaptureRefused, match="GTID domain 5"):
        decoded([FORMATTED, group(1, domain=5)])


def test_a_server_that_says_that_it_has_lost_something_is_believed() -> None:
    incident = event(INCIDENT, b"\x01\x00\x00")
    with pytest.raises(LogCut) as cut:
        decoded([FORMATTED, group(3), MAPPED, ROWS, DONE, incident])
    assert cut.value.oldest == Position(0, 4, 0)
    for dealt_with in (Position(0, 8), Position(0, 4, 0)):
        assert decoded([FORMATTED, group(3), MAPPED, ROWS, DONE, incident], after=dealt_with) == ([], dealt_with)
    with pytest.raises(LogCut):  # also if reading began right before it
        decoder(Position(0, 3), last=3).decode(incident, [])


def test_what_a_server_has_lost_is_told_to_subscribers_once_and_reading_goes_on() -> None:
    core, flow = Core(Limits()), FlowName("a", 0)
    core.start(BEGINNING, 0.0)
    core.add(flow, Terms(), BEGINNING, 1, True, 0.0)
    core.attached(flow, 7, 2**20, 0.0)
    log = [FORMATTED, group(3), MAPPED, ROWS, DONE, event(INCIDENT, b"\x01\x00\x00"), group(4), MAPPED, ROWS, DONE]
    losses, sent = list[tuple[FlowName, Position, Position]](), list[str]()
    for _ in range(2):
        (caravan,) = core.caravans()
        lead, after = caravan.caravan, caravan.position
        decoding, changes = decoder(after), list[Change]()
        cut: LogCut | None = None
        try:
            for each in log:
                decoding.decode(each, changes)
        except LogCut as error:
            cut = error
        routed = [Routed(change.position, 0, frozenset("a"), 10, change.committed_us, None) for change in changes]
        actions = core.read(lead, after, routed, decoding.reached, 100, 0.0, 0)
        if cut is not None:
            assert isinstance(cut.oldest, Position)
            actions += core.cut(lead, cut.oldest, 0.0)
        core.check()
        losses += [(action.flow, action.lost_after, action.lost_to) for action in of(actions, DataLoss)]
        sent += [str(update.position) for action in of(actions, Send) for update in action.updates]
    assert losses == [(flow, Position(0, 3), Position(0, 4, 0))]
    assert sent == ["0/3.1", "0/3.2", "0/4.1", "0/4.2"]


def test_rows_of_a_table_without_a_map_are_damage() -> None:
    with pytest.raises(DatastoreUnavailable, match="before its map"):
        decoded([FORMATTED, group(3), ROWS])


def test_a_column_of_an_unknown_type_is_refused_by_its_name() -> None:
    kinds = MAPPED.index(b"\x03\x03\x0f\xf6") + 1
    strange = event(TABLE_MAP, MAPPED[19 : kinds + 1] + b"\xc8" + MAPPED[kinds + 2 : -4])
    with pytest.raises(CaptureRefused, match=r"column v of a\.t .*type 200"):
        decoded([FORMATTED, group(3), strange])


@pytest.mark.parametrize(
    ("text", "emptied"),
    [
        ("TRUNCATE t", ("d", "t")),
        ("truncate table\n`t`", ("d", "t")),
        ("TRUNCATE`t`", ("d", "t")),
        ("/* app:7 */ -- so\n TRUNCATE /* it */ TABLE e . t /* now */;", ("e", "t")),
        ('TRUNCATE TABLE "e"."a ""b"""', ("e", 'a "b"')),
        ("TRUNCATE TABLE `a``b` WAIT 5", ("d", "a`b")),
        ("SET STATEMENT lock_wait_timeout=5 FOR TRUNCATE TABLE tablets", ("d", "tablets")),
        ("TRUNCATE `Þ`.`ö`", ("Þ", "ö")),
        ("DELETE FROM `e`.`m`", ("e", "m")),
        ("CREATE TABLE truncate_t (id INT)", None),
        ("CREATE OR REPLACE TABLE t (id INT)", ("d", "t")),
        ("create or replace table`e`.`t` LIKE u", ("e", "t")),
        ("ALTER TABLE t TRUNCATE PARTITION p", ("d", "t")),
        ("ALTER TABLE `e`.`t` TRUNCATE PARTITION ALL", ("e", "t")),
        ("ALTER ONLINE IGNORE TABLE IF EXISTS t WAIT 5 DROP PARTITION p, q", ("d", "t")),
        ("alter /* x */ table `t`drop\npartition p", ("d", "t")),
        ("ALTER TABLE t CONVERT PARTITION p TO TABLE u", ("d", "t")),
        ("ALTER TABLE t IMPORT TABLESPACE", ("d", "t")),
        ("DROP TABLE `t` /* generated by server */", ("d", "t")),
        ("DROP TABLE IF EXISTS `e`.`t` /* generated by server */", ("e", "t")),
        ("ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN (5))", None),
        ("ALTER TABLE xdrop PARTITION BY HASH (id)", None),
        ("ALTER TABLE t DROP COLUMN partition_", None),
        ("CREATE TABLE IF NOT EXISTS t (id INT)", None),
        ("CREATE OR REPLACE VIEW t AS SELECT 1", None),
        ("DROP TEMPORARY TABLE IF EXISTS t", None),
        ("DROP VIEW t", None),
        ("DROP DATABASE t", None),
        ("GRANT DELETE ON d.* TO u", None),
        ("CREATE TRIGGER x AFTER INSERT ON t FOR EACH ROW DELETE FROM t", None),
    ],
)
def test_only_a_statement_that_empties_a_table_is_a_change(text: str, emptied: tuple[str, str] | None) -> None:
    changes, reached = decoded([FORMATTED, group(4, flags=1), statement(text)])
    assert [(change.operation, change.database, change.table) for change in changes] == (
        [(Operation.TRUNCATE, *emptied)] if emptied else []
    )
    assert reached == Position(0, 4)


@pytest.mark.parametrize(
    ("text", "emptied"),
    [
        ("DROP TABLE IF EXISTS `a`,e . `b,c` , `d``e` /* generated by server */", [("d", "a"), ("e", "b,c"), ("d", "d`e")]),
        ("ALTER TABLE t EXCHANGE PARTITION p WITH TABLE e.u WITHOUT VALIDATION", [("d", "t"), ("e", "u")]),
        ("ALTER TABLE `e`.t EXCHANGE PARTITION `p` WITH TABLE `u`", [("e", "t"), ("d", "u")]),
    ],
)
def test_a_statement_may_empty_several_tables_and_reading_goes_on_between_them(text: str, emptied: list[tuple[str, str]]) -> None:
    events = [FORMATTED, group(4, flags=1), statement(text)]
    changes, reached = decoded(events)
    assert [(change.operation, change.database, change.table) for change in changes] == [(Operation.TRUNCATE, *one) for one in emptied]
    assert [change.position.index for change in changes] == list(range(1, len(emptied) + 1))
    assert reached == Position(0, 4)
    assert decoded(events, after=changes[0].position)[0] == changes[1:]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["DROP TABLE " + "a," * 200_000, "ALTER TABLE " + "/**/" * 200_000, "DROP TABLE " + "a . " * 100_000])
def test_a_long_statement_is_read_in_one_pass(text: str) -> None:
    assert len(decoded([FORMATTED, group(4, flags=1), statement(text)])[0]) in (0, 1, 200_000)


@pytest.mark.parametrize(
    "text",
    ["INSERT INTO t VALUES (1)", "/* x */ update t set a = 1", "DELETE FROM t WHERE id = 1", "SET STATEMENT a=1 FOR REPLACE t VALUES (1)"],
)
def test_a_statement_that_writes_rows_is_refused(text: str) -> None:
    with pytest.raises(CaptureRefused, match="binlog_format=ROW"):
        decoded([FORMATTED, group(4), statement(text)])
    assert decoded([FORMATTED, group(4), statement(text), DONE], after=Position(0, 4)) == ([], Position(0, 4))


def test_a_statement_is_read_in_the_character_set_of_its_client() -> None:
    changes, _ = decoded([FORMATTED, group(4, flags=1), statement("TRUNCATE `tä`", collation=8)])
    assert [change.table for change in changes] == ["tä"]


def test_the_next_file_is_named_with_and_without_a_check_sum() -> None:
    rotate = event(ROTATE, (4).to_bytes(8, "little") + b"bin.000012")
    assert rotated_to(rotate) == rotated_to(rotate[:-4]) == "bin.000012"


def test_commits_that_were_read_through_are_reached_even_without_changes() -> None:
    assert decoded([FORMATTED, group(4, flags=1), statement("ALTER TABLE t ADD x INT"), group(5), statement("COMMIT")]) == (
        [],
        Position(0, 5),
    )

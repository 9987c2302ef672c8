"""The decoder of MySQL's log, from bytes: what must never be skipped, nor taken for a position."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest

from roskva.capture.positions import BEGINNING, WHOLE, Position
from roskva.capture.stores.binlog.decoding import INCIDENT, TABLE_MAP, XID
from roskva.capture.stores.mysql.decoding import ANONYMOUS, GTID, PARTIAL_UPDATE, PAYLOAD, TAGGED, MysqlDecoder
from roskva.capture.stores.mysql.gtids import Gtids, gtids_of
from roskva.capture.stores.mysql.marks import Mark, Marks
from roskva.capture.updates import Change
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut
from tests.capture.stores.binlog.events import FORMATTED, event, nobody_describes, statement

SOURCE, OTHER = "7978feb9-e3c8-11f1-b767-02fc00000001", "00000000-e3c8-11f1-b767-02fc00000002"
INSERTED = 30
NOTHING = Gtids({})
# Of CREATE TABLE z (b INT UNSIGNED), as MySQL 8.0.33 wrote it.
MAPPED = event(TABLE_MAP, bytes.fromhex("6d00000000000100016400017a0001030000010180040201620c0180"))
ROW = event(INSERTED, bytes.fromhex("6d00000000000100020001ff0001000000"))
DONE = event(XID, bytes(8))


def group(sequence: int, source: str = SOURCE, kind: int = GTID, ends: int = 0) -> bytes:
    """With the times of its commit: here, and where it was written first."""
    here, first = (1_795_000_000_000_000 | 1 << 55).to_bytes(7, "little"), (1_794_999_999_123_456).to_bytes(7, "little")
    return event(kind, b"\1" + UUID(source).bytes + sequence.to_bytes(8, "little") + b"\2" + bytes(16) + here + first + bytes(9), ends=ends)


def commit(sequence: int, source: str = SOURCE) -> list[bytes]:
    return [group(sequence, source), statement("BEGIN"), MAPPED, ROW, DONE]


def decoded(
    events: Iterable[bytes], after: Position = BEGINNING, last: int = 0, executed: str = "", purged: str = "", xa: bool = False
) -> tuple[list[str], Position]:
    decoding = MysqlDecoder(after, SOURCE, {45: "utf-8"}, nobody_describes, lambda: (gtids_of(executed), gtids_of(purged)), xa, last)
    changes: list[Change] = []
    decoding.file_begins(None)
    for each in [FORMATTED, *events]:
        decoding.decode(each, changes)
    return [str(change.position) for change in changes], decoding.reached


def test_the_number_of_a_gtid_is_the_position_and_the_first_commit_the_time() -> None:
    decoding, changes = MysqlDecoder(BEGINNING, SOURCE, {}, nobody_describes, lambda: (NOTHING, NOTHING)), list[Change]()
    for each in [FORMATTED, *commit(1)]:
        decoding.decode(each, changes)
    (change,) = changes
    assert (str(change.position), change.columns, change.committed_us) == ("0/1.1", {"b": 1}, 1_794_999_999_123_456)
    assert decoding.reached == Position(0, 1)


@pytest.mark.parametrize(
    ("foreign", "told"),
    [
        (commit(1, OTHER), f'another server, {OTHER}:1 after 0/1, .*source = "{OTHER}"'),
        ([group(2, kind=ANONYMOUS), statement("BEGIN"), MAPPED, ROW, DONE], "without a GTID after 0/1, .* gtid_mode = ON"),
        ([group(2, kind=TAGGED), statement("BEGIN"), MAPPED, ROW, DONE], "with a tag in its GTID after 0/1, .* without a tag"),
    ],
)
def test_what_has_no_position_is_refused_where_it_stands_and_passed_over_before_and_by_who_says_so(foreign: list[bytes], told: str) -> None:
    log = [*commit(1), *foreign, *commit(2)]
    for after in (BEGINNING, Position(0, 1), Position(0, 1, 1)):
        with pytest.raises(CaptureRefused, match=rf"{told}.*rewind APPLICATION 0/2\.0"):
            decoded(log, after)
    assert decoded(log, Position(0, 2, 0)) == (["0/2.1"], Position(0, 2))
    assert decoded(log, Position(0, 2)) == ([], Position(0, 2))
    with pytest.raises(CaptureRefused, match=told):
        decoded(foreign, Position(0, 1), last=1)  # at the beginning of a file
    assert decoded(foreign, Position(0, 2), last=1) == ([], Position(0, 2))


def test_numbers_that_were_never_given_may_be_missing() -> None:
    assert decoded([*commit(3), *commit(7)], executed=f"{SOURCE}:3:7") == (["0/3.1", "0/7.1"], Position(0, 7))


def test_numbers_that_go_back_are_refused() -> None:
    log = [*commit(3), *commit(7), *commit(5)]
    with pytest.raises(CaptureRefused, match=r"the commit 5 after 7 of .*replica_preserve_commit_order"):
        decoded(log, executed=f"{SOURCE}:3:7")  # when 5 had not come yet
    with pytest.raises(CaptureRefused, match=r"5 after 7"):
        decoded(log, Position(0, 7))
    with pytest.raises(CaptureRefused, match=r"5 after 7"):
        decoded(commit(5), Position(0, 7), last=7)


def test_a_number_that_was_committed_and_comes_later_in_the_log_is_refused() -> None:
    with pytest.raises(CaptureRefused, match=r"the commit 7 before 6 of"):
        decoded([*commit(3), *commit(7)], executed=f"{SOURCE}:3:5-7")


def test_numbers_that_are_gone_from_the_log_are_a_loss() -> None:
    """As when somebody sets gtid_purged: the numbers go on further up."""
    for after in (BEGINNING, Position(0, 3), Position(0, 4, 1)):
        with pytest.raises(LogCut) as cut:
            decoded([*commit(3), *commit(7)], after, executed=f"{SOURCE}:3-7", purged=f"{SOURCE}:4-6")
        assert cut.value.oldest == Position(0, 6)
    assert decoded([*commit(3), *commit(7)], Position(0, 6), executed=f"{SOURCE}:3-7", purged=f"{SOURCE}:4-6")[0] == ["0/7.1"]


def test_a_loss_that_the_server_tells_of_is_one_for_who_has_not_got_beyond_it() -> None:
    for incident in ([event(INCIDENT, bytes(3))], [group(2), event(INCIDENT, bytes(3))]):
        log, begins = [*commit(1), *incident], len(incident) + 1
        for after in (BEGINNING, Position(0, 1)):
            with pytest.raises(LogCut) as cut:
                decoded(log, after)
            assert cut.value.oldest == Position(0, begins, 0)
        assert decoded([*log, *commit(begins)], Position(0, begins, 0)) == ([f"0/{begins}.1"], Position(0, begins))


@pytest.mark.parametrize(
    ("kind", "told"),
    [(PARTIAL_UPDATE, "binlog_row_value_options = ''"), (PAYLOAD, "binlog_transaction_compression = OFF"), (77, "an event of the kind 77")],
)
def test_an_event_whose_changes_cannot_be_told_is_refused_with_the_setting_to_change(kind: int, told: str) -> None:
    log = [*commit(1), group(2), statement("BEGIN"), event(kind, bytes(9)), DONE]
    with pytest.raises(CaptureRefused, match=told):
        decoded(log, Position(0, 1))
    assert decoded(log, Position(0, 2)) == ([], Position(0, 2))


def test_events_without_changes_are_passed_over_and_what_the_server_says_may_be() -> None:
    for passed_over in (event(29, bytes(9)), event(77, bytes(9), flags=0x80)):
        assert decoded([group(1), statement("BEGIN"), passed_over, MAPPED, ROW, DONE])[0] == ["0/1.1"]


def test_bytes_of_the_servers_own_before_rows_are_passed_over() -> None:
    row = event(INSERTED, ROW[19:27] + (6).to_bytes(2, "little") + b"\1\2\3\4" + ROW[29:-4])
    assert decoded([group(1), statement("BEGIN"), MAPPED, row, DONE])[0] == ["0/1.1"]


def test_an_xa_transaction_is_refused_or_told_when_it_is_prepared() -> None:
    log = [group(1), statement("XA START X'78',X'',1"), MAPPED, ROW, statement("XA END X'78',X'',1"), event(38, bytes(17))]
    log += [group(2), statement("XA COMMIT X'78',X'',1"), *commit(3)]
    with pytest.raises(CaptureRefused, match="prepared_xa_counts"):
        decoded(log)
    assert decoded(log, xa=True) == (["0/1.1", "0/3.1"], Position(0, 3, WHOLE))


def test_sets_of_gtids_are_read_as_the_server_writes_them() -> None:
    found = gtids_of(f"{OTHER}:5,\n{SOURCE.upper()}:1-3:7:mytag:1-2:9")
    assert found.of == {OTHER: ((5, 5),), SOURCE: ((1, 3), (7, 7)), f"{SOURCE}:mytag": ((1, 2), (9, 9))}
    assert (found.last(SOURCE), found.last(OTHER), found.last("nobody")) == (7, 5, 0)
    assert [found.last_within(SOURCE, *within) for within in ((2, 9), (2, 2), (3, 6), (4, 6))] == [7, 2, 3, 0]
    assert gtids_of("").of == {}
    assert gtids_of(f"{SOURCE}:23#9:25#11,\n{OTHER}:1#12").of == {SOURCE: ((23, 23), (25, 25)), OTHER: ((1, 1),)}, "being committed"


def test_a_reader_goes_on_from_where_one_came_before_and_not_if_the_log_is_another_one_now() -> None:
    marks, places = Marks(step_bytes=1), [1_000, 2_000, 3_000]
    log = [each for number, place in enumerate(places, 1) for each in (group(number, ends=place), *commit(number)[1:])]
    first = MysqlDecoder(BEGINNING, SOURCE, {45: "utf-8"}, nobody_describes, lambda: (NOTHING, NOTHING), marks=marks)
    first.file_begins(None, "bin.000001")
    for each in [FORMATTED, *log]:
        first.decode(each, [])
    size = len(group(1))
    assert [marks.before("bin.000001", number) for number in range(5)] == [
        None, Mark(1, 0, 1_000 - size), Mark(2, 1, 2_000 - size), Mark(3, 2, 3_000 - size), Mark(3, 2, 3_000 - size),
    ]  # fmt: skip
    assert marks.before("bin.000002", 3) is None

    for strange in (group(3), group(2, OTHER), bytes(40)):
        again = MysqlDecoder(Position(0, 2), SOURCE, {}, nobody_describes, lambda: (NOTHING, NOTHING), False, 1, marks, expected=2)
        changes: list[Change] = []
        again.decode(FORMATTED, changes)
        with pytest.raises(DatastoreUnavailable):
            again.decode(strange, changes)
        assert (marks.before("bin.000001", 3), changes) == (None, [])

"""The decoder alone: messages as the manual has them, and some that a server has sent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.postgres.decoding import ATTACHED_BYTES_MAX, GAP, Decoder, keys_from_message
from roskva.capture.stores.postgres.timelines import Timelines
from roskva.capture.updates import Change, Operation, Value
from roskva.errors import CaptureRefused
from tests.capture.stores.postgres import messages
from tests.capture.stores.postgres.messages import EPOCH_US, UNCHANGED

START = Position(1, 0, 0)
DOCUMENTS = messages.relation(7, "documents", {"id": 23, "title": 25}, key=("id",))

# Sent by PostgreSQL 15.14 for: INSERT INTO t VALUES (1, 'é', 2); then a message outside of any transaction.
RECORDED = [
    bytes.fromhex("420000000000a256b000030382221db062000002d9"),
    bytes.fromhex(
        "52000040017075626c6963007400640003016964000000"
        "0017ffffffff006e616d650000000019ffffffff006e0000000017ffffffff"
    ),
    bytes.fromhex("49000040014e00037400000001317400000002c3a9740000000132"),
    bytes.fromhex("43000000000000a256b00000000000a256e000030382221db062"),
    bytes.fromhex("4d000000000000a2571878000000000179"),
]  # fmt: skip


def decoder(after: Position = START, timelines: Timelines = Timelines(1), primary_key: tuple[str, ...] = ()) -> Decoder:  # noqa: B008  # it is frozen
    return Decoder("shop", timelines, after, lambda number: primary_key)


def decoded(*payloads: bytes, after: Position = START, primary_key: tuple[str, ...] = ()) -> list[Change]:
    out: list[Change] = []
    one = decoder(after, primary_key=primary_key)
    for payload in payloads:
        one.feed(payload, 5, out)
    return out


def in_transaction(*payloads: bytes, primary_key: tuple[str, ...] = ()) -> list[Change]:
    return decoded(messages.begin(100, 42), *payloads, messages.commit(100, 120), primary_key=primary_key)


def test_what_a_server_has_sent() -> None:
    inserted, said = decoded(*RECORDED)
    assert inserted == Change(
        position=Position(1, 0xA256B0, 1),
        committed_us=inserted.committed_us,
        operation=Operation.INSERT,
        database="shop",
        table="t",
        key={"id": 1},
        columns={"id": 1, "name": "é", "n": 2},
        size=27,
    )
    assert isinstance(inserted, Change)
    assert isinstance(inserted.position, Position)
    assert 1_794_000_000_000_000 < inserted.committed_us < 1_796_000_000_000_000  # November 2026
    assert (said.operation, said.table, said.columns, said.committed_us) == ("message", "x", {"content": "y"}, inserted.committed_us)
    assert said.position == Position(1, 0xA25718 - 1, 1)


def test_changes_are_counted_from_one_and_carry_the_commit() -> None:
    changes = in_transaction(DOCUMENTS, messages.insert(7, 1, "a"), messages.insert(7, 2, None))
    assert [change.position for change in changes] == [Position(1, 100, 1), Position(1, 100, 2)]
    assert [change.committed_us for change in changes] == [42, 42]
    assert changes[1].columns == {"id": 2, "title": None}


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (16, b"t", True),
        (16, b"f", False),
        (20, b"-9223372036854775808", -(2**63)),
        (21, b"7", 7),
        (26, b"4294967295", 2**32 - 1),
        (701, b"0.1", 0.1),
        (700, b"-1e+20", -1e20),
        (701, b"NaN", "NaN"),
        (701, b"-Infinity", "-Infinity"),
        (17, b"\\x00ff10", b"\x00\xff\x10"),
        (17, b"\\x", b""),
        (1700, b"12345678901234567890.10", "12345678901234567890.10"),
        (1184, b"2026-01-02 03:04:05.6+00", "2026-01-02 03:04:05.6+00"),
        (1007, b"{1,NULL,3}", "{1,NULL,3}"),
        (3802, b'{"a": 1}', '{"a": 1}'),
        (25, b"", ""),
        (25, "þ\U0001f600".encode(), "þ\U0001f600"),
        (25, b"caf\xe9", b"caf\xe9"),  # not UTF-8: nothing is lost
        (99999, b"of a type of the user's own", "of a type of the user's own"),
    ],
)
def test_values_are_what_json_has_or_as_the_database_writes_them(kind: int, raw: bytes, value: Value) -> None:
    (change,) = in_transaction(messages.relation(1, "t", {"v": kind}), messages.insert(1, raw))
    assert change.columns == {"v": value}
    assert type(change.columns["v"]) is type(value)


def test_text_that_is_none_makes_no_difference_to_the_other_columns_of_its_row_and_none_to_the_next_one() -> None:
    columns = {"id": 20, "a": 25, "b": 25, "c": 25, "raw": 17}
    bad, update_of_bad, good = in_transaction(
        messages.relation(1, "t", columns, ("id",)),
        messages.insert(1, 1, "before", b"caf\xe9", None, b"\\xff"),
        messages.update(1, messages.row(1, b"\xff", "text", UNCHANGED, b"\\x00")),
        messages.insert(1, 2, "a", "b", "c", b"\\x01"),
    )
    assert bad.columns == {"id": 1, "a": "before", "b": b"caf\xe9", "c": None, "raw": b"\xff"}
    assert (update_of_bad.columns, update_of_bad.unchanged) == ({"id": 1, "a": b"\xff", "b": "text", "raw": b"\x00"}, ("c",))
    assert good.columns == {"id": 2, "a": "a", "b": "b", "c": "c", "raw": b"\x01"}
    assert [change.key for change in (bad, update_of_bad, good)] == [{"id": 1}, {"id": 1}, {"id": 2}]


def test_a_table_has_its_schema_unless_that_is_the_default_one() -> None:
    (change,) = in_transaction(messages.relation(1, "orders", {"id": 23}, schema="Sales"), messages.insert(1, 5))
    assert change.table == "Sales.orders"


def test_a_changed_key_shows_the_old_one() -> None:
    (change,) = in_transaction(DOCUMENTS, messages.update(7, messages.row(2, "a"), messages.row(1, None)))
    assert (change.key, change.old_key, change.columns) == ({"id": 2}, {"id": 1}, {"id": 2, "title": "a"})


def test_an_update_of_other_columns_has_no_old_key() -> None:
    (change,) = in_transaction(DOCUMENTS, messages.update(7, messages.row(2, "b")))
    assert (change.operation, change.key, change.old_key) == ("update", {"id": 2}, None)


def test_columns_that_the_log_leaves_out_are_named() -> None:
    (change,) = in_transaction(DOCUMENTS, messages.update(7, messages.row(2, UNCHANGED)))
    assert (change.columns, change.unchanged) == ({"id": 2}, ("title",))


def test_a_key_that_the_new_row_leaves_out_is_taken_from_the_old_one() -> None:
    described = messages.relation(7, "documents", {"id": 25, "title": 25}, key=("id",))
    (change,) = in_transaction(described, messages.update(7, messages.row(UNCHANGED, "b"), messages.row("long", None)))
    assert (change.key, change.old_key, change.unchanged) == ({"id": "long"}, None, ("id",))


def test_a_deleted_row_is_what_the_log_has_of_it() -> None:
    (change,) = in_transaction(DOCUMENTS, messages.delete(7, messages.row(2, None)))
    assert (change.operation, change.key, change.columns) == ("delete", {"id": 2}, {"id": 2})


def full(*payloads: bytes, primary_key: tuple[str, ...]) -> list[Change]:
    """Of a table with REPLICA IDENTITY FULL: all its columns are marked."""
    described = messages.relation(7, "documents", {"id": 23, "title": 25}, key=("id", "title"), identity=b"f")
    return in_transaction(described, *payloads, primary_key=primary_key)


def test_with_the_whole_old_row_the_key_is_still_the_primary_key() -> None:
    updated, moved, deleted = full(
        messages.update(7, messages.row(1, UNCHANGED), messages.row(1, "long"), b"O"),
        messages.update(7, messages.row(2, "b"), messages.row(1, "a"), b"O"),
        messages.delete(7, messages.row(2, "b"), b"O"),
        primary_key=("id",),
    )
    assert (updated.key, updated.old_key, updated.columns, updated.unchanged) == ({"id": 1}, None, {"id": 1, "title": "long"}, ())
    assert (moved.key, moved.old_key) == ({"id": 2}, {"id": 1})
    assert (deleted.key, deleted.columns) == ({"id": 2}, {"id": 2, "title": "b"})


def test_without_any_key_the_old_row_says_which_one_it_was() -> None:
    inserted, updated, deleted = full(
        messages.insert(7, 1, "a"),
        messages.update(7, messages.row(1, "b"), messages.row(1, "a"), b"O"),
        messages.delete(7, messages.row(1, "b"), b"O"),
        primary_key=(),
    )
    assert (inserted.key, updated.key, deleted.key) == ({}, {}, {})
    assert updated.old_key == {"id": 1, "title": "a"}
    assert deleted.columns == {"id": 1, "title": "b"}


def test_a_primary_key_that_the_table_did_not_have_then_is_none() -> None:
    (change,) = full(messages.insert(7, 1, "a"), primary_key=("number",))
    assert change.key == {}


def test_a_table_may_change_its_form_in_mid_stream() -> None:
    wider = messages.relation(7, "papers", {"id": 23, "pages": 23, "title": 25}, key=("id",))
    before, after = in_transaction(DOCUMENTS, messages.insert(7, 1, "a"), wider, messages.insert(7, 2, 10, "b"))
    assert (before.table, before.columns) == ("documents", {"id": 1, "title": "a"})
    assert (after.table, after.columns) == ("papers", {"id": 2, "pages": 10, "title": "b"})


def test_each_table_of_a_truncate_is_a_change() -> None:
    other = messages.relation(8, "authors", {"id": 23}, key=("id",))
    first, second, third = in_transaction(DOCUMENTS, other, messages.truncate(7, 8), messages.insert(8, 1))
    assert [(change.operation, change.table, change.key, change.columns) for change in (first, second)] == [
        ("truncate", "documents", {}, {}),
        ("truncate", "authors", {}, {}),
    ]
    assert [change.position.index for change in (first, second, third)] == [1, 2, 3]


def test_keys_of_a_producer_are_attached_to_what_follows_in_its_transaction() -> None:
    out = decoded(
        messages.begin(100),
        DOCUMENTS,
        messages.insert(7, 1, "a"),
        messages.message(90, "roskva", b'{"region": "eu", "depth": {"a": [1]}}'),
        messages.insert(7, 2, "b"),
        messages.message(95, "roskva", b'{"region": "us", "by": null}'),
        messages.insert(7, 3, "c"),
        messages.commit(100, 120),
        messages.begin(130),
        messages.insert(7, 4, "d"),
        messages.commit(130, 150),
    )
    assert [change.attached for change in out] == [
        None,
        {"region": "eu", "depth": '{"a": [1]}'},
        {"region": "us", "depth": '{"a": [1]}', "by": None},
        None,
    ]
    assert [change.position.index for change in out] == [1, 3, 5, 1]  # each message counts


@pytest.mark.parametrize("content", [b"no JSON", b"[1]", b"\xff\xfe", b"", b'{"a": "' + b"x" * ATTACHED_BYTES_MAX + b'"}', b"[" * 50_000])
def test_a_message_of_our_prefix_that_is_no_object_is_a_message_like_any_other(content: bytes) -> None:
    assert keys_from_message(content) is None
    (change,) = in_transaction(messages.message(90, "roskva", content))
    assert (change.operation, change.table, change.key) == ("message", "roskva", {})
    try:
        assert change.columns == {"content": content.decode()}
    except UnicodeDecodeError:
        assert change.columns == {"content": content}


def test_attached_values_are_plain() -> None:
    keys = keys_from_message(b'{"a": 1, "b": 1.5, "c": true, "d": NaN, "e": 9223372036854775808, "f": "x"}')
    assert keys == {"a": 1, "b": 1.5, "c": True, "d": "NaN", "e": "9223372036854775808", "f": "x"}


def test_half_of_a_surrogate_pair_in_what_is_attached_stays_escaped() -> None:
    keys = keys_from_message(rb'{"\ud800": 1, "a": ["\udc00"], "b": {"\ud800": "\ud83d\ude00"}}')
    assert keys == {r"\ud800": 1, "a": r'["\udc00"]', "b": '{"\\ud800": "\U0001f600"}'}
    "".join([*keys, *(str(value) for value in keys.values())]).encode()


def test_a_message_outside_of_transactions_stands_before_the_commit_that_begins_where_it_ends() -> None:
    said, inserted = decoded(
        messages.message(100, "other", b"x", transactional=False), messages.begin(100), DOCUMENTS, messages.insert(7, 1, "a")
    )
    assert said.position == Position(1, 99, 1) < inserted.position == Position(1, 100, 1)
    assert said.committed_us == 5  # when it was sent: no commit was seen before it


def test_a_message_that_pretends_to_be_our_own_is_no_change_wherever_it_stands() -> None:
    out = decoded(
        messages.message(100, GAP, b"x", transactional=False),
        messages.begin(100),
        DOCUMENTS,
        messages.message(90, GAP, b"x"),
        messages.insert(7, 1, "a"),
        messages.commit(100, 120),
    )
    assert [(change.operation, change.position) for change in out] == [(Operation.INSERT, Position(1, 100, 2))]  # it counts all the same


def stream() -> list[bytes]:
    """Three transactions and a message between them."""
    return [
        messages.begin(100),
        DOCUMENTS,
        *(messages.insert(7, number, "a") for number in range(3)),
        messages.message(90, "roskva", b'{"k": 1}'),
        messages.insert(7, 3, "a"),
        messages.commit(100, 120),
        messages.message(140, "other", b"x", transactional=False),
        messages.begin(150),
        messages.insert(7, 4, "b"),
        messages.commit(150, 170),
        messages.begin(180),
        messages.truncate(7, 7),
        messages.commit(180, 200),
    ]


def test_reading_after_any_change_gives_exactly_the_rest() -> None:
    """Also in the middle of a commit, and with what was attached before it."""
    every = decoded(*stream())
    assert [(change.position.sequence, change.position.index) for change in every] == [
        (100, 1), (100, 2), (100, 3), (100, 5), (139, 1), (150, 1), (180, 1), (180, 2),
    ]  # fmt: skip
    for place, change in enumerate(every):
        assert decoded(*stream(), after=change.position) == every[place + 1 :]
        whole = change.position._replace(index=WHOLE)
        assert decoded(*stream(), after=whole) == [other for other in every if other.position > whole]


def test_what_is_reached_never_goes_back_and_never_passes_what_was_not_given() -> None:
    one = decoder()
    out: list[Change] = []
    reached = [one.reached]
    for payload, says in zip(stream(), (80, 0, 81, 82, 83, 90, 99, 120, 140, 145, 145, 170, 175, 175, 200), strict=False):
        one.feed(payload, 5, out)
        reached.append(one.reached)
        one.passed(says)
        reached.append(one.reached)
        assert all(change.position <= one.reached for change in out)
    assert reached == sorted(reached)
    assert one.reached == Position(1, 199)


def test_a_keepalive_in_the_middle_of_a_transaction_does_not_pass_it() -> None:
    one, out = decoder(), list[Change]()
    for payload in (messages.begin(100), DOCUMENTS, messages.insert(7, 1, "a")):
        one.feed(payload, 5, out)
    one.passed(10_000)  # no server says this
    assert one.reached == Position(1, 100, 1)
    one.feed(messages.insert(7, 2, "b"), 5, out)
    one.feed(messages.commit(100, 120), 5, out)
    one.passed(10_000)
    assert one.reached == Position(1, 9_999)


def test_a_commit_that_comes_after_it_was_passed_stops_the_reader() -> None:
    one = decoder()
    one.passed(500)
    with pytest.raises(AssertionError):
        one.feed(messages.begin(100), 5, [])


def test_a_position_is_of_the_timeline_that_wrote_it() -> None:
    one, out = decoder(timelines=Timelines(2, ((1, 125),))), list[Change]()
    for lsn in (100, 130):
        for payload in (messages.begin(lsn), DOCUMENTS, messages.insert(7, 1, "a"), messages.commit(lsn, lsn + 20)):
            one.feed(payload, 5, out)
    assert [change.position for change in out] == [Position(1, 100, 1), Position(2, 130, 1)]


def test_origins_and_types_are_passed_over_and_what_is_not_known_is_refused() -> None:
    assert in_transaction(b"O" + bytes(8) + b"elsewhere\0", b"Y" + bytes(4) + b"public\0mood\0") == []
    with pytest.raises(CaptureRefused, match="unknown kind"):
        decoded(b"Z")
    with pytest.raises(CaptureRefused, match="unknown form 'b'"):
        in_transaction(DOCUMENTS, b"I\0\0\0\x07N\0\x02b\0\0\0\x01xn")


@given(
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
        max_size=20,
    ),
    st.floats(),
)
def test_rows_of_any_values_come_out_as_they_went_in(rows: list[tuple[int, str | None]], number: float) -> None:
    described = messages.relation(7, "t", {"id": 23, "title": 25, "x": 701}, key=("id",))
    out = in_transaction(described, *(messages.insert(7, key, title, repr(number).replace("inf", "Infinity")) for key, title in rows))
    assert [(change.columns["id"], change.columns["title"]) for change in out] == rows
    assert all(isinstance(change.columns["x"], float) == math.isfinite(number) for change in out)


def test_epochs_agree() -> None:
    (change,) = decoded(messages.begin(100, EPOCH_US + 1), DOCUMENTS, messages.insert(7, 1, "a"))
    assert change.committed_us == EPOCH_US + 1

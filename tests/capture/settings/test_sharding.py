"""The shard of a row: rules as text, where rows go that have none, and what a key change or a truncated table means for shards."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.capture.positions import Position
from roskva.capture.sharding import ONE_SHARD, Rule, Sharding, parse_rule
from roskva.capture.updates import Change, Operation
from roskva.errors import InvalidFilter


def change(columns: dict[str, Any], operation: Operation = Operation.UPDATE, table: str = "t", **fields: Any) -> Change:
    return Change(Position(1, 1, 1), 0, operation, "shop", table, fields.pop("key", {}), columns, **fields)


def sharding(rule: str, shards: int = 64) -> Sharding:
    return Sharding(shards, parse_rule(rule, shards))


@pytest.mark.parametrize(
    ("rule", "columns", "shard"),
    [
        ("0", {"user_id": 5}, 0),
        ("shard", {"shard": 17}, 17),
        ("column(shard)", {"shard": "17"}, 17),
        ("user_id % 64", {"user_id": 130}, 2),
        (" user_id%64 ", {"user_id": -1}, 63),
        ("user_id % 64", {"user_id": str(2**70 + 5)}, 5),
        ("user_id % 10", {"user_id": 64}, 4),
        # These are pinned: producers compute them, and datamarkers of flows outlive versions.
        ("hash(user_id) % 64", {"user_id": 4711}, 55),
        ("hash(user_id) % 64", {"user_id": "4711"}, 55),
        ("hash(user_id) % 64", {"user_id": b"4711"}, 55),
        ("hash(a, b) % 64", {"a": "x", "b": True}, 13),
        ("hash(a) % 64", {"a": 1.5}, 58),
        ("hash(a) % 64", {"a": "é"}, 62),
        ('"my column" % 64', {"my column": 3}, 3),
        ('hash("a""b") % 64', {'a"b': 4711}, 55),
    ],
)
def test_rules(rule: str, columns: dict[str, Any], shard: int) -> None:
    one = sharding(rule)
    assert one.shards_of(change(columns)) == (shard,)
    assert not any(one.misplaced.values())


def test_a_hash_is_what_producers_compute() -> None:
    for user in range(200):
        assert sharding("hash(user_id) % 64").shards_of(change({"user_id": user})) == (zlib.crc32(str(user).encode()) % 64,)
    pair = zlib.crc32(b"acme\x1f7") % 64
    assert sharding("hash(tenant, id) % 64").shards_of(change({"tenant": "acme", "id": 7})) == (pair,)


def test_the_primary_key_is_hashed_in_the_order_of_names() -> None:
    one = sharding("hash(primary key) % 64")
    expected = (zlib.crc32(b"1\x1f2") % 64,)
    assert one.shards_of(change({}, key={"a": 1, "b": 2})) == expected
    assert one.shards_of(change({"x": 9}, key={"b": 2, "a": 1})) == expected


@pytest.mark.parametrize(
    ("rule", "columns", "reason"),
    [
        ("user_id % 64", {}, "missing"),
        ("hash(user_id) % 64", {"id": 3}, "missing"),
        ("hash(primary key) % 64", {"id": 3}, "missing"),
        ("user_id % 64", {"user_id": None}, "null"),
        ("hash(a, b) % 64", {"a": 1, "b": None}, "null"),
        ("user_id % 64", {"user_id": "x"}, "not a number"),
        ("user_id % 64", {"user_id": 1.5}, "not a number"),
        ("user_id % 64", {"user_id": True}, "not a number"),
        ("user_id % 64", {"user_id": b"7"}, "not a number"),
        ("shard", {"shard": 64}, "out of range"),
        ("shard", {"shard": -1}, "out of range"),
    ],
)
def test_a_row_whose_shard_cannot_be_told_is_in_shard_0_and_counted(rule: str, columns: dict[str, Any], reason: str) -> None:
    one = sharding(rule)
    assert one.shards_of(change(columns)) == (0,)
    assert {name: count for name, count in one.misplaced.items() if count} == {reason: 1}


def test_of_a_deleted_row_the_key_is_enough_and_another_column_is_missing() -> None:
    deleted = change({}, Operation.DELETE, key={"id": 70})
    assert sharding("id % 64").shards_of(deleted) == (6,)
    one = sharding("user_id % 64")
    assert one.shards_of(deleted) == (0,)
    assert one.misplaced["missing"] == 1


def test_a_row_that_moves_is_told_of_in_both_shards() -> None:
    moved = change({"id": 70, "user_id": 1}, key={"id": 70}, old_key={"id": 69})
    assert sharding("id % 64").shards_of(moved) == (5, 6)
    assert sharding("user_id % 64").shards_of(moved) == (1,)
    stays = change({"id": 70}, key={"id": 70}, old_key={"id": 6})
    assert sharding("id % 64").shards_of(stays) == (6,)


def test_a_truncated_table_is_told_of_in_every_shard() -> None:
    assert sharding("id % 4", 5).shards_of(change({}, Operation.TRUNCATE)) == (0, 1, 2, 3, 4)
    assert Sharding(1).shards_of(change({}, Operation.TRUNCATE)) == (0,)


def test_a_range_that_is_deleted_is_told_of_in_every_shard_and_another_message_is_of_no_row() -> None:
    one = sharding("hash(primary key) % 3", 3)
    assert one.shards_of(change({"delete_from": b"a", "delete_before": b"z"}, Operation.MESSAGE)) == (0, 1, 2)
    assert one.shards_of(change({"content": "x"}, Operation.MESSAGE)) == (0,)
    assert not any(one.misplaced.values())


def test_a_producer_can_attach_the_shard() -> None:
    assert sharding("shard").shards_of(change({"id": 1}, attached={"shard": 9})) == (9,)


def test_a_table_can_have_a_rule_of_its_own() -> None:
    one = Sharding(64, parse_rule("id % 64", 64), {"users": parse_rule("hash(name) % 64", 64), "log": ONE_SHARD})
    assert one.shards_of(change({"id": 5, "name": "x"})) == (5,)
    assert one.shards_of(change({"id": 5, "name": "x"}, table="users")) == (zlib.crc32(b"x") % 64,)
    assert one.shards_of(change({"id": 5}, table="log")) == (0,)


@pytest.mark.parametrize(
    ("rule", "at", "says"),
    [
        ("", 0, "a column's name"),
        ("% 64", 0, "a column's name"),
        ("5", 0, "can be 0 only"),
        ("0 % 64", 0, "can be 0 only"),
        ("hash(user_id)", 13, "write % 64 after it"),
        ("hash(user_id) % 65", 16, "the dataset has 64 shards"),
        ("user_id % 0", 10, "1 to 64"),
        ("user_id % x", 8, "% and a number of shards"),
        ("hsah(user_id) % 64", 4, "did you mean hash?"),
        ("md5(user_id) % 64", 3, "is expected"),
        ("column(a, b)", 7, "takes one"),
        ("column(primary key)", 7, "write hash(primary key)"),
        ("user id", 5, "is expected"),
        ("a" * 2_000, 1_024, "1,024 are allowed"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_place(rule: str, at: int, says: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_rule(rule, 64)
    assert caught.value.at == at
    assert says in str(caught.value)


NAMES = st.text(min_size=1, max_size=6) | st.sampled_from(["hash", "column", "id", "primary key"])
RULES = (
    st.just(ONE_SHARD)
    | st.builds(lambda name, modulo: Rule((name,), modulo=modulo), NAMES, st.none() | st.integers(1, 64))
    | st.builds(lambda names, modulo: Rule(tuple(names), True, modulo), st.lists(NAMES, max_size=4), st.integers(1, 64))
)


@given(RULES)
def test_what_is_printed_is_read_again(rule: Rule) -> None:
    assert parse_rule(str(rule), 64) == rule


@given(st.text() | st.lists(st.sampled_from(["hash", "(", ")", "%", "64", "a", '"', ",", " ", "primary key", "column"])).map("".join))
def test_any_text_is_a_rule_or_refused_by_name(text: str) -> None:
    try:
        rule = parse_rule(text, 64)
    except InvalidFilter as error:
        place = error.at
    else:
        place = 0
        (shard,) = Sharding(64, rule).shards_of(change({"a": 7, "hash": "x"}))
        assert 0 <= shard < 64
    assert 0 <= place <= len(text)

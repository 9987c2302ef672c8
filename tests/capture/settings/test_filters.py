"""Filters: the paper's examples, every basic filter and its opposite, and what is said of a text that is none (Wormhole 3.2)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as example_count
from hypothesis import strategies as st

from roskva.capture.filtering import compile_filter, for_tables
from roskva.capture.filters import (
    EVERYTHING,
    OF_UPDATE,
    PREFIXES,
    VALUE_CHARACTERS_MAX,
    Basic,
    Between,
    Exists,
    Filter,
    Key,
    Matches,
    OneOf,
    parse_filter,
)
from roskva.capture.positions import Position
from roskva.capture.updates import RANGE_DELETED, Change, Columns, Operation
from roskva.errors import InvalidFilter


def change(columns: Columns | None = None, **fields: Any) -> Change:
    given_fields = {"operation": Operation.UPDATE, "database": "shop", "table": "t1", "key": {"id": 7}} | fields
    return Change(position=Position(1, 5, 1), committed_us=0, columns=columns or {}, **given_fields)


def passes(text: str, one: Change, shard: int = 3) -> bool:
    parsed = parse_filter(text)
    assert parse_filter(str(parsed)) == parsed
    return compile_filter(parsed)(shard, one)


def test_the_papers_examples() -> None:
    invalidation = '[topic = "aq"] OR [mcd_key exists]'
    assert passes(invalidation, change({"topic": "aq"}))
    assert passes(invalidation, change({"topic": "other"}, attached={"mcd_key": "user:7"}))
    assert not passes(invalidation, change({"topic": "other"}))
    index = '[table in ("t8", "t2")] OR [(association_type = "a1") AND (shard in 1..5000)]'
    assert passes(index, change(table="t2"))
    assert passes(index, change({"association_type": "a1"}), shard=5000)
    assert not passes(index, change({"association_type": "a1"}), shard=5001)
    assert not passes(index, change({"association_type": "a2"}), shard=1)


def test_a_filter_says_what_it_asks_for() -> None:
    assert parse_filter('[table = "t" AND a = 1 AND key.id exists] OR [not column."b c" in 1..2]').names == {"a", "id", "b c"}


def test_a_group_that_asks_for_nothing_lets_everything_through() -> None:
    assert parse_filter(" [ ] ") == EVERYTHING
    assert passes("[]", change(operation=Operation.TRUNCATE, key={}))
    assert str(EVERYTHING) == "[]"


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a exists", 0, True),
        ("a exists", "", True),
        ("a exists", None, False),
        ('a = "x"', "x", True),
        ('a = "x"', "y", False),
        ('a = "x"', None, False),
        ('a = "x"', b"x", True),
        ('a = "12"', 12, False),
        ("a = 12", 12, True),
        ("a = 12", 12.0, True),
        ("a = 12", "12.00", True),  # a numeric
        ("a = 12", "12x", False),
        ("a = 1", True, False),
        ("a = true", True, True),
        ("a = true", 1, False),
        ("a = FALSE", False, True),
        ("a = 0.1", 0.1, True),
        ("a = 0.1", "0.10", True),
        ("a = 12345678901234567890123", "12345678901234567890123", True),
        ('a in ("x", 3, true)', "x", True),
        ('a in ("x", 3, true)', 3, True),
        ('a in ("x", 3, true)', True, True),
        ('a in ("x", 3, true)', b"3", False),
        ("a in 1..5", 1, True),
        ("a in 1..5", 5, True),
        ("a in 1..5", 6, False),
        ("a in 1..5", "4.999", True),
        ("a in 1..5", "abc", False),
        ("a in 1..5", float("nan"), False),
        ("a in 1..5", True, False),
        ("a in -5..-2", -3, True),
        ("a in 0.5..", 10**30, True),
        ("a in ..0.1", 0.1, True),
        ("a in ..0.1", 0.2, False),
        ('a matches "[a-z]+"', "abc", True),
        ('a matches "[a-z]+"', b"abc", True),
        ('a matches "[a-z]+"', "abc1", False),
        ('a matches ".*"', 12, False),
        ('a matches ".*"', b"\xff", False),
        (r'a matches "\d+"', "12", True),
        (r'a matches "\\d+"', "12", True),
        (r'a = "say \"so\" \\ \d"', 'say "so" \\ \\d', True),
    ],
)
def test_a_basic_filter_and_its_opposite(text: str, value: Any, expected: bool) -> None:
    assert passes(f"[{text}]", change({"a": value})) is expected
    assert passes(f"[not {text}]", change({"a": value})) is not expected
    assert passes(f"[NOT {text} AND not {text}]", change({"a": value})) is not expected


@pytest.mark.parametrize("test", ["a exists", "a = 1", "a in (1, 2)", "a in 1..2", 'a matches ".*"'])
def test_what_is_missing_passes_nothing_but_the_opposite(test: str) -> None:
    assert not passes(f"[{test}]", change())
    assert passes(f"[not {test}]", change())


@pytest.mark.parametrize("test", ["exists", "= 1", "in (1, 2)", "in 1..2", 'matches "x"'])
@pytest.mark.parametrize("key", ["a", "column.a", "key.a"])
def test_a_value_that_the_log_left_out_passes_either_way(test: str, key: str) -> None:
    toast = change({"b": 1}, unchanged=("a",))  # as does a column of the key, if it is a few kilobytes long
    assert passes(f"[{key} {test}]", toast)
    assert passes(f"[not {key} {test}]", toast)


KEY_ALONE = change({"id": 7}, operation=Operation.DELETE)
TRUNCATED = change(operation=Operation.TRUNCATE, key={}, attached={"topic": "aq"})
RANGE = change(dict.fromkeys(RANGE_DELETED, b"x"), operation=Operation.MESSAGE, key={})


@pytest.mark.parametrize("test", ["exists", "= 1", "in (1, 2)", "in 1..2", 'matches "x"'])
@pytest.mark.parametrize(
    ("key", "one"),
    [
        *((key, one) for key in ("a", "column.a") for one in (KEY_ALONE, KEY_ALONE._replace(columns={}, key={}))),
        *((key, one) for key in ("a", "column.a", "key.a") for one in (TRUNCATED, RANGE)),
    ],
)
def test_a_column_of_rows_that_are_gone_passes_either_way_where_the_log_has_it_not(test: str, key: str, one: Change) -> None:
    assert passes(f"[{key} {test}]", one)
    assert passes(f"[not {key} {test}]", one)


def test_what_the_log_has_of_rows_that_are_gone_is_asked_all_the_same() -> None:
    """The filter that docs/capture.md shows among them."""
    shown = '[table = "orders" AND total in 100.. AND state matches "open|paid"]'
    assert passes(shown, KEY_ALONE._replace(table="orders"))
    assert passes(shown, TRUNCATED._replace(table="orders"))
    assert not passes(shown, KEY_ALONE)
    assert not passes(shown, TRUNCATED)
    assert not passes("[id in 8..] OR [column.id in 8..] OR [key.id in 8..] OR [key.other exists]", KEY_ALONE)
    assert not passes('[not attached.topic = "aq"] OR [attached.other exists] OR [old.id exists]', TRUNCATED)
    assert not passes('[operation = "delete" AND total in 100..]', TRUNCATED)
    whole = change({"id": 7, "total": 5, "state": None}, operation=Operation.DELETE)  # REPLICA IDENTITY FULL
    assert not passes("[total in 100..] OR [state exists] OR [no_such_column exists] OR [column.no_such_column exists]", whole)
    assert passes('[total in ..99 AND not state = "open" AND not no_such_column exists]', whole)
    assert not passes("[a exists] OR [key.a exists]", change({"content": "x"}, operation=Operation.MESSAGE, key={}))


def test_a_text_too_long_for_an_expression_passes_either_way() -> None:
    for value in ("x" * (VALUE_CHARACTERS_MAX + 1), b"x" * (4 * VALUE_CHARACTERS_MAX + 1)):
        assert passes('[a matches "y"]', change({"a": value}))
        assert passes('[not a matches "y"]', change({"a": value}))
    assert not passes('[a matches "y"]', change({"a": "x" * VALUE_CHARACTERS_MAX}))


def test_keys_of_the_update_itself() -> None:
    one = change(operation=Operation.DELETE, table="public.t1")
    assert passes('[operation = "delete"]', one)
    assert not passes('[not operation in ("delete", "insert")]', one)
    assert passes('[database = "shop" AND table matches "public[.]t\\d" AND shard = 3]', one)
    assert passes("[table exists] OR [shard = 9]", one)
    assert not passes("[not shard exists]", one)
    assert not passes("[not shard in 1..5]", one)
    assert passes('[not database = "other" AND database matches "sh.*"]', one)


def test_where_names_are_looked_for() -> None:
    one = change({"name": "new", "table": "x"}, key={"id": 8}, old_key={"id": 7}, attached={"reason": "import", "name": "not this"})
    assert passes('[name = "new" AND id = 8 AND reason = "import"]', one)
    assert passes('[key.id = 8 AND old.id = 7 AND attached.reason = "import"]', one)
    assert passes('[column.table = "x" AND column."table" = "x"]', one)
    assert passes('[column.name = "new" AND attached.name = "not this"]', one)
    assert not passes("[column.id exists] OR [column.reason exists] OR [key.name exists] OR [old.name exists]", one)
    assert not passes("[old.id exists] OR [attached.id exists]", change())


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("", 0, "[] lets everything through"),
        ("a = 1", 0, "stands in brackets"),
        ("[a = 1", 6, "AND or ] is expected, and the filter ends"),
        ("[a = 1 OR b = 2]", 7, "OR stands between brackets"),
        ("[a = 1] AND [b = 2]", 8, "AND stands within brackets"),
        ("[a = 1] [b = 2]", 8, "OR or the end is expected"),
        ("[a = 1] OR", 10, "the filter ends"),
        ("[topic = aq]", 9, 'text stands in quotes: "aq"'),
        ("[a != 1]", 3, "write not KEY = VALUE"),
        ("[a == 1]", 3, "write one ="),
        ("[a >= 1]", 3, "write KEY in VALUE.."),
        ('[a like "x%"]', 3, "matches"),
        ("[a not in (1)]", 3, "write not before the key"),
        ("[a is null]", 3, "exists"),
        ("[a = null]", 5, "not KEY exists"),
        ("[a exist]", 3, "did you mean exists?"),
        ('[a mathces "x"]', 3, "did you mean matches?"),
        ("[shard in 1-5000]", 11, "an interval is written 1..5000"),
        ("[shard in 1]", 11, "for one value write ="),
        ("[shard in x]", 10, "an interval such as 1..5000"),
        ("[a in ..]", 8, "a number is expected"),
        ("[a in 5..1]", 6, "1 is less than 5"),
        ("[a in (1, 2]", 11, ", or ) is expected"),
        ("[a in ()]", 7, "a value"),
        ('[shard = "5"]', 9, "a shard is a number, without quotes"),
        ("[shard in 1.5..2]", 10, "whole numbers"),
        ('[shard matches "1.*"]', 15, "cannot match an expression"),
        ("[table = 5]", 9, "table is text"),
        ("[table in 1..5]", 10, "since table is text"),
        ('[operation = "udpate"]', 13, "did you mean update?"),
        ('[kye.id = "x"]', 1, "did you mean key?"),
        ("[key. = 1]", 6, "a name after key."),
        ("[in = 1]", 1, "column.in"),
        ('["a" = 1]', 1, "column.NAME"),
        ('[a = "x]', 5, "not closed"),
        ('[a matches "(a"]', 11, "character 1 of the regular expression"),
        ('[a matches "(?=a)"]', 11, "looking ahead"),
        ("[a matches x]", 11, "in quotes"),
        ("[((a = 1))]", 2, "a key"),
        ("[(a = 1 AND b = 2)]", 8, "round brackets hold one condition"),
        (f"[a = {'9' * 101}]", 5, "more than 100 digits"),
        ("[" + " " * 70_000 + "]", 65_536, "65,536 are allowed"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_place_and_a_hint(text: str, at: int, says: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_filter(text)
    assert says in str(caught.value)
    assert caught.value.at == at
    assert f"at character {at + 1}:" in str(caught.value)


NAMES = st.text(min_size=1, max_size=6) | st.sampled_from(["id", "in", "table", "not", "a_1"])
KEYS = (
    st.sampled_from(["a", "user_id", "é", "Topic"]).map(lambda name: Key("", name))
    | st.builds(Key, st.sampled_from(PREFIXES), NAMES)
    | st.sampled_from(("table", "database")).map(Key)
)
TEXTS = st.text(max_size=8)
NUMBERS = st.integers(-(10**20), 10**20) | st.decimals(-1000, 1000, places=3, allow_nan=False)
VALUES = TEXTS | NUMBERS | st.booleans()
EXPRESSIONS = st.sampled_from(["", ".*", r'\d+"', "[^a-z]{2,}", r"a\\b|c"])


def _between(pair: tuple[int | Decimal, int | Decimal]) -> Between:
    return Between(min(pair), max(pair))


TESTS = (
    st.just(Exists())
    | st.lists(VALUES, min_size=1, max_size=3).map(tuple).map(OneOf)
    | st.tuples(NUMBERS, NUMBERS).map(_between)
    | NUMBERS.map(lambda number: Between(number, None))
    | EXPRESSIONS.map(Matches)
)


def _fitting(basic: Basic) -> bool:
    if basic.key.of not in OF_UPDATE:
        return True
    test = basic.test
    return not isinstance(test, Between) and not (isinstance(test, OneOf) and not all(isinstance(value, str) for value in test.values))


BASICS = st.builds(Basic, KEYS, TESTS, st.booleans()).filter(_fitting)
FILTERS = st.lists(st.lists(BASICS, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple).map(Filter)


@given(FILTERS)
def test_what_is_printed_is_read_again(one: Filter) -> None:
    again = parse_filter(str(one))
    assert again == one
    assert str(again) == str(one)  # also tells 1 from true and from 1.000


ROWS = st.dictionaries(
    st.sampled_from(["a", "user_id", "é", "id"]),
    st.none() | VALUES.filter(lambda v: not isinstance(v, Decimal)) | st.floats() | st.binary(max_size=4),
)


@given(FILTERS, ROWS, ROWS, st.none() | ROWS, st.sampled_from(list(Operation)))
def test_a_filter_answers_for_any_update(one: Filter, columns: Any, key: Any, other: Any, operation: Operation) -> None:
    asked = change(columns, key=key, old_key=other, attached=other, operation=operation, unchanged=("user_id",))
    answer = compile_filter(one)(3, asked)
    assert answer is any(all(compile_filter(Filter(((basic,),)))(3, asked) for basic in group) for group in one.groups)


FEW = st.sampled_from(["a", "b", "id"])
FEW_ROWS = st.dictionaries(FEW, st.none() | st.integers(0, 2))
OF_ROWS = st.builds(Key, st.sampled_from(["", "column", "key"]), FEW)
FEW_TESTS = st.just(Exists()) | st.integers(0, 2).map(lambda number: OneOf((number,)))
OF_FEW = st.lists(st.builds(Basic, OF_ROWS, FEW_TESTS, st.booleans()), max_size=3).map(lambda group: Filter((tuple(group),)))


@given(OF_FEW, FEW_ROWS, st.sets(FEW), st.none() | FEW_ROWS)
def test_what_passes_with_all_columns_passes_with_those_that_the_log_has(
    one: Filter, columns: Columns, names: set[str], attached: Columns | None
) -> None:
    """Too much, never too little: whoever may have a row that is gone is told of it."""
    asked = compile_filter(one)
    key = {name: value for name, value in columns.items() if name in names}
    left: Columns
    for operation, left in ((Operation.DELETE, key), (Operation.TRUNCATE, {})):
        whole = change(columns, key=key, operation=operation, attached=attached)
        assert not asked(3, whole) or asked(3, whole._replace(columns=left, key=left)), operation


PIECES = st.sampled_from(
    [
        "[",
        "]",
        "(",
        ")",
        " ",
        "a",
        "=",
        "in",
        "1",
        "..",
        "-5",
        '"x"',
        '"',
        "AND",
        "OR",
        "not",
        "exists",
        "key",
        ".",
        ",",
        "matches",
        "\\",
        "1e5",
        "é",
        "\0",
    ]
)


@example_count(max_examples=500)
@given(st.lists(PIECES, max_size=25).map(" ".join) | st.lists(PIECES, max_size=25).map("".join) | st.text())
def test_any_text_is_a_filter_or_refused_by_name(text: str) -> None:
    try:
        parsed = parse_filter(text)
    except InvalidFilter as error:
        place = error.at
    else:
        place = 0
        assert parse_filter(str(parsed)) == parsed
    assert 0 <= place <= len(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", {"t1", "t2", "t3"}),
        ('[table = "t1"]', {"t1"}),
        ('[table in ("t1", "t2") AND id = 7] OR [database = "elsewhere"]', {"t1", "t2"}),
        ('[not table = "t1" AND operation = "delete"]', {"t2", "t3"}),
        ('[table = "t1"] OR [id = 7]', {"t1", "t2", "t3"}),
    ],
)
def test_a_filter_says_of_which_tables_anything_may_pass(text: str, told: set[str]) -> None:
    passes_of = for_tables(parse_filter(text))
    assert {table for table in ("t1", "t2", "t3") if passes_of("shop", table)} == told

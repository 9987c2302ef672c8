"""Rows to objects: what is published, what is invalidated and why, and what a change of history does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.capture.mapping import (
    INVALIDATIONS_MAX,
    Column,
    Invalidate,
    Mapper,
    Publish,
    Reset,
    Work,
    coalesced,
    parse_mapping,
    parse_template,
)
from roskva.capture.positions import Position
from roskva.capture.stores.file_lines import malformed
from roskva.capture.updates import Change, Operation
from roskva.errors import InvalidFilter

DELETE, INSERT, UPDATE = Operation.DELETE, Operation.INSERT, Operation.UPDATE


def change(columns: dict[str, Any], operation: Operation = UPDATE, table: str = "documents", history: int = 1, **fields: Any) -> Change:
    return Change(Position(history, 4711, 2), 0, operation, "shop", table, fields.pop("key", {"id": 7}), columns, **fields)


def mapper(*objects: str, **options: Any) -> Mapper:
    return Mapper([parse_mapping(["documents"], objects or ["doc:{id}"], **options)])


def counted(one: Mapper) -> dict[str, int]:
    return {reason: count for reason, count in one.counts.items() if count}


def test_a_row_is_an_object_at_the_position_of_its_commit() -> None:
    one = mapper(source="{updated_by}")
    assert one.instructions(change({"id": 7, "updated_by": "phone"}), 1) == [Publish(b"doc:7", 4711, "phone")]
    assert one.instructions(change({"id": 7, "updated_by": "phone"}, INSERT), None) == [Publish(b"doc:7", 4711, "phone")]
    assert one.instructions(change({"id": 7}, table="others"), 1) == []
    assert counted(one) == {}


def test_a_message_is_no_row_even_if_its_prefix_is_the_name_of_a_table() -> None:
    one = mapper("doc:{id}", "all documents")
    said = change({"content": "x"}, Operation.MESSAGE, key={})
    assert one.instructions(said, 1) == []
    assert one.instructions(said._replace(attached={"id": 7}), 1) == []
    assert one.instructions(said, 0) == [Reset(1)]  # it is of its history all the same
    assert counted(one) == {}


def test_a_range_of_rows_that_was_deleted_is_whatever_begins_like_the_template() -> None:
    gone = change({"delete_from": b"a", "delete_before": b"z"}, Operation.MESSAGE, key={})
    assert mapper("doc:{key}").instructions(gone, 1) == [Invalidate(b"doc:", prefix=True)]


def test_a_line_that_cannot_be_read_may_have_told_of_anything() -> None:
    one = mapper("doc:{id}", "folder:{folder}")
    unread = malformed(b"{", 2, "no JSON", Position(1, 5, 1), "files", 0)
    assert one.instructions(unread, 1) == one.everything() == [Invalidate(b"doc:", prefix=True), Invalidate(b"folder:", prefix=True)]
    assert one.instructions(unread, 0) == [Reset(1), *one.everything()]
    pretended = unread._replace(columns={"content": "x"})  # as any user of a Postgres may write
    assert one.instructions(pretended, 1) == []


def test_a_row_can_be_several_objects_and_a_table_can_have_several_mappings() -> None:
    rules = [parse_mapping(["documents", "drafts"], ["doc:{id}", "folder:{folder}"]), parse_mapping(["documents"], ["all documents"])]
    found = Mapper(rules).instructions(change({"id": 7, "folder": "a b"}), 1)
    assert found == [Publish(b"doc:7", 4711), Publish(b"folder:a b", 4711), Publish(b"all documents", 4711)]
    assert Mapper(rules).instructions(change({"id": 7}, table="drafts", key={"id": 7, "folder": 3}), 1) == [
        Publish(b"doc:7", 4711),
        Publish(b"folder:3", 4711),
    ]


def test_values_are_written_as_text_and_bytes_as_they_are() -> None:
    one = mapper("{a}/{b}/{c}/{d}/{{x}}")
    found = one.instructions(change({"a": True, "b": 1.5, "c": "é", "d": b"\xff"}), 1)
    assert found == [Publish(b"true/1.5/\xc3\xa9/\xff/{x}", 4711)]


def test_a_deleted_row_is_told_of_by_its_key_unless_deletions_are_not() -> None:
    assert mapper().instructions(change({}, DELETE), 1) == [Publish(b"doc:7", 4711)]
    assert mapper(deletes=False).instructions(change({}, DELETE), 1) == []


def test_a_changed_key_is_told_of_for_both_objects() -> None:
    moved = change({"id": 8, "folder": 1}, key={"id": 8}, old_key={"id": 7})
    assert mapper("doc:{id}", "folder:{folder}").instructions(moved, 1) == [
        Publish(b"doc:7", 4711),
        Publish(b"doc:8", 4711),
        Publish(b"folder:1", 4711),
    ]


def test_a_truncated_table_invalidates_what_begins_like_its_objects() -> None:
    truncated = change({}, Operation.TRUNCATE, key={})
    assert mapper("doc:{id}", "{folder}", "all").instructions(truncated, 1) == [
        Invalidate(b"doc:", prefix=True),
        Invalidate(b"", prefix=True),
        Publish(b"all", 4711),
    ]


def test_a_version_can_be_a_column() -> None:
    one = mapper(version="revision")
    assert one.instructions(change({"id": 7, "revision": 3}), 1) == [Publish(b"doc:7", 3)]
    assert one.instructions(change({"id": 7, "revision": str(2**63 - 1)}), 1) == [Publish(b"doc:7", 2**63 - 1)]
    assert counted(one) == {}


@pytest.mark.parametrize("value", [None, -1, 2**63, "x", "-1", True, 1.5, b"3"])
def test_without_a_version_an_object_is_invalidated(value: Any) -> None:
    one = mapper(version="revision")
    assert one.instructions(change({"id": 7, "revision": value}), 1) == [Invalidate(b"doc:7", within=b"doc:")]
    assert counted(one) == {"no version": 1}


def test_a_column_is_no_version_of_what_is_gone() -> None:
    one = mapper(version="revision")
    assert one.instructions(change({"id": 7, "revision": 3}, DELETE), 1) == [Invalidate(b"doc:7", within=b"doc:")]
    moved = change({"id": 8, "revision": 4}, key={"id": 8}, old_key={"id": 7})
    assert one.instructions(moved, 1) == [Invalidate(b"doc:7", within=b"doc:"), Publish(b"doc:8", 4)]


@pytest.mark.parametrize(
    ("columns", "reason", "told"),
    [
        ({"folder": None}, "null", []),
        ({}, "missing", [Invalidate(b"folder:", prefix=True)]),
        ({"folder": "x" * 122}, "unusable", []),
    ],
)
def test_an_object_that_cannot_be_named(columns: dict[str, Any], reason: str, told: list[Invalidate]) -> None:
    one = mapper("folder:{folder}")
    assert one.instructions(change(columns), 1) == told
    assert counted(one) == {reason: 1}


def test_what_is_missing_can_be_skipped_and_an_unchanged_column_is_missing() -> None:
    toast = change({"id": 7}, unchanged=("folder",))
    assert mapper("folder:{folder}").instructions(toast, 1) == [Invalidate(b"folder:", prefix=True)]
    assert mapper("folder:{folder}", skip_missing=True).instructions(toast, 1) == []


@pytest.mark.parametrize("source", [None, "", "x" * 129, b"\xff"])
def test_a_source_that_cannot_be_used_means_that_everyone_is_told(source: Any) -> None:
    one = mapper(source="{by}")
    assert one.instructions(change({"id": 7, "by": source}), 1) == [Publish(b"doc:7", 4711)]
    assert counted(one) == {"no source": 1}


def test_a_change_of_history_resets_the_application_first() -> None:
    assert mapper().instructions(change({"id": 7}, history=2), 1) == [Reset(2), Publish(b"doc:7", 4711)]
    assert mapper().instructions(change({"id": 7}, table="others", history=2), 1) == [Reset(2)]


def test_what_comes_late_from_an_earlier_history_is_invalidated() -> None:
    assert mapper().instructions(change({"id": 7}, history=1), 2) == [Invalidate(b"doc:7", within=b"doc:")]


def test_after_a_loss_everything_that_a_mapping_can_name_is_unknown() -> None:
    assert mapper("doc:{id}", "doc:x:{id}", "folder:{folder}").everything() == [Invalidate(b"doc:", True), Invalidate(b"folder:", True)]
    assert mapper("doc:{id}", "{x}").everything() == [Invalidate(b"", True)]


def test_of_many_versions_the_highest_is_left() -> None:
    work = coalesced([Publish(b"a", 3, "x"), Publish(b"b", 1), Publish(b"a", 5, "x"), Publish(b"a", 4, "x")])
    assert work == Work((Publish(b"a", 5, "x"), Publish(b"b", 1)), ())


def test_changes_of_several_sources_are_told_to_all_of_them() -> None:
    assert coalesced([Publish(b"a", 3, "x"), Publish(b"a", 5, "y")]).publishes == (Publish(b"a", 5),)
    assert coalesced([Publish(b"a", 3, "x"), Publish(b"a", 5)]).publishes == (Publish(b"a", 5),)


def test_invalidations_that_another_covers_are_left_away() -> None:
    work = coalesced([Invalidate(b"doc:1", within=b"doc:"), Invalidate(b"doc:", True), Invalidate(b"x", within=b"")])
    assert work.invalidations == (Invalidate(b"doc:", True), Invalidate(b"x"))


def test_too_many_invalidations_become_one() -> None:
    few = [Invalidate(b"doc:%d" % number, within=b"doc:") for number in range(INVALIDATIONS_MAX)]
    assert len(coalesced(few).invalidations) == INVALIDATIONS_MAX
    assert coalesced([*few, Invalidate(b"doc:x", within=b"doc:")]).invalidations == (Invalidate(b"doc:", True),)


@pytest.mark.parametrize(
    ("text", "at", "says"),
    [
        ("", 0, "0 characters"),
        ("doc:{id", 4, "not closed"),
        ("doc:id}", 6, "not opened"),
        ("doc:{}", 4, "a column's name"),
        ("doc:{ id}", 4, "a column's name"),
        ("doc:{a{b}", 4, "a column's name"),
        ("x" * 129, 0, "128 bytes"),
        ("x" * 600, 0, "600 characters"),
        ("a\ud800", 0, "surrogate"),
    ],
)
def test_what_is_no_template_is_refused_with_its_place(text: str, at: int, says: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_template("object", text)
    assert caught.value.at == at
    assert says in str(caught.value)


@pytest.mark.parametrize("version", ["commit_position", "Commit Position", "commit-position", "two words", " "])
def test_what_is_neither_the_position_nor_a_column_is_refused(version: str) -> None:
    with pytest.raises(InvalidFilter, match="commit position"):
        parse_mapping(["t"], ["x"], version=version)


def test_braces_can_be_written() -> None:
    assert parse_template("object", "{{{id}}}").parts == (b"{", Column("id"), b"}")


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
ROWS = st.dictionaries(st.sampled_from(["id", "folder", "v", "by"]), VALUES)


@given(ROWS, ROWS, st.none() | ROWS, st.sampled_from(list(Operation)), st.sampled_from([0, 1, 2]), st.booleans())
def test_any_row_has_an_answer(columns: Any, key: Any, old: Any, operation: Operation, history: int, by_column: bool) -> None:
    one = mapper("doc:{id}", "{folder}", version="v" if by_column else "commit position", source="{by}")
    found = one.instructions(change(columns, operation, key=key, old_key=old, history=history), 1)
    assert [instruction for instruction in found if isinstance(instruction, Reset)] == ([Reset(2)] if history == 2 else [])
    work = coalesced(instruction for instruction in found if not isinstance(instruction, Reset))
    assert all(1 <= len(publish.object) <= 128 and 0 <= publish.version < 2**63 for publish in work.publishes)
    assert all(history >= 1 for _ in work.publishes)

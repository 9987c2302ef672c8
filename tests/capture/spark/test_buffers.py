"""Where a batch ends and what is in it, whatever the flows bring; options, offsets and columns."""

from __future__ import annotations

import datetime
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from roskva.capture.positions import Position
from roskva.capture.spark import CaptureSource
from roskva.capture.spark.buffers import CHANGED, CUT, ELSEWHERE, Buffers
from roskva.capture.spark.columns import DATA_LOSS, Row, row_of, tasks, text_of
from roskva.capture.spark.offsets import BEGINNING, Offset, Reached, from_json, to_json
from roskva.capture.spark.options import Options, options_of
from roskva.capture.updates import Change, Operation
from roskva.errors import BadRequest, InvalidSetting, LogCut

GIVEN = {"publishers": "db1:8480, db2:8480", "application": "lake", "secretKey": "sixteen bytes at least"}
ALL = 1_000_000


def at(number: int) -> Position:
    return Position(0, number, 1)


def row(number: int, text: str = "") -> Row:
    return row_of(Change(at(number), number * 1_000, Operation.INSERT, "shop", "documents", {"id": number}, {"id": number, "text": text}))


def rows(*numbers: int) -> list[Row]:
    return [row(number) for number in numbers]


def opened(shards: int = 1, fails: bool = True, start: Offset = BEGINNING) -> Buffers:
    buffers = Buffers(fails)
    buffers.at(start)
    buffers.of("data")
    for shard in range(shards):
        buffers.opened(shard, Position(0, 0))
    return buffers


def numbers(found: dict[int, list[Row]] | None) -> dict[int, list[int]]:
    assert found is not None
    return {shard: [one.position.sequence for one in some] for shard, some in found.items()}


def test_a_batch_holds_each_update_once_however_often_it_came() -> None:
    buffers = opened()
    buffers.put(0, rows(1, 2, 3))
    buffers.put(0, rows(2, 3, 4))
    end = buffers.end_after(BEGINNING, ALL, ALL)
    assert numbers(buffers.between(BEGINNING, end)) == {0: [1, 2, 3, 4]}
    assert end.shards == {0: Reached(at(4), 4)}


def test_what_comes_after_the_end_was_said_is_not_in_the_batch_and_not_lost() -> None:
    buffers = opened()
    buffers.put(0, rows(1, 2))
    first = buffers.end_after(BEGINNING, ALL, ALL)
    buffers.put(0, rows(3))
    assert numbers(buffers.between(BEGINNING, first)) == {0: [1, 2]}
    assert numbers(buffers.between(BEGINNING, first)) == {0: [1, 2]}, "asked again"
    buffers.at(first)
    second = buffers.end_after(first, ALL, ALL)
    assert numbers(buffers.between(first, second)) == {0: [3]}
    buffers.at(second)
    assert (buffers.count, buffers.size) == (0, 0)
    assert not buffers.end_after(second, ALL, ALL).beyond(second)


def test_a_batch_is_bounded_and_takes_the_oldest_of_all_shards_first() -> None:
    buffers = opened(3)
    buffers.put(0, rows(1, 2, 3, 10))
    buffers.put(1, rows(4, 5))
    assert numbers(buffers.between(BEGINNING, buffers.end_after(BEGINNING, 5, ALL))) == {0: [1, 2, 3], 1: [4, 5]}
    assert numbers(buffers.between(BEGINNING, buffers.end_after(BEGINNING, ALL, row(1).size * 2))) == {0: [1, 2]}
    assert numbers(buffers.between(BEGINNING, buffers.end_after(BEGINNING, ALL, 1))) == {0: [1]}, "a larger one goes alone"
    assert numbers(buffers.between(BEGINNING, buffers.end_after(BEGINNING, ALL, ALL, 4_500))) == {0: [1, 2, 3], 1: [4]}


def test_batches_cut_anywhere_hold_everything_once_and_in_order() -> None:
    dice = random.Random(9)
    buffers = opened(3)
    start, seen, sent = BEGINNING, dict[int, list[int]](), dict.fromkeys(range(3), 0)
    for _ in range(300):
        shard = dice.randrange(3)
        again = max(0, sent[shard] - dice.randrange(4))
        sent[shard] += dice.randrange(5)
        buffers.put(shard, rows(*(number * 3 + shard + 1 for number in range(again, sent[shard]))))
        if dice.random() < 0.5:
            buffers.at(start)
            end = buffers.end_after(start, dice.randrange(1, 9), ALL)
            end = from_json(json.loads(json.dumps(to_json(end))))
            for number, some in numbers(buffers.between(start, end)).items():
                seen.setdefault(number, []).extend(some)
            start = end
    end = buffers.end_after(start, ALL, ALL)
    for number, some in numbers(buffers.between(start, end)).items():
        seen.setdefault(number, []).extend(some)
    assert seen == {shard: [number * 3 + shard + 1 for number in range(sent[shard])] for shard in range(3)}
    assert {shard: end.updates(shard) for shard in range(3)} == sent


def test_a_repeated_batch_waits_until_it_is_whole() -> None:
    start = Offset("data", {0: Reached(at(2), 2), 1: Reached(Position(0, 2), 0, True)})
    end = Offset("data", {0: Reached(at(5), 4), 1: Reached(Position(0, 9), 0, True)})
    buffers = opened(2, start=start)
    assert buffers.between(start, end) is None
    assert buffers.behind(0, end)
    buffers.put(0, rows(1, 2, 3))
    assert buffers.between(start, end) is None
    buffers.put(0, rows(5, 6))
    assert not buffers.behind(0, end)
    assert numbers(buffers.between(start, end)) == {0: [3, 5]}, "of the quiet shard nothing is waited for"


def test_a_repeated_batch_that_is_not_the_same_is_told() -> None:
    start = Offset("data", {0: Reached(at(2), 2)})
    end = Offset("data", {0: Reached(at(5), 5)})
    strict, lax = opened(start=start), opened(fails=False, start=start)
    for buffers in (strict, lax):
        buffers.put(0, rows(4, 6))
    with pytest.raises(BadRequest, match=r"after 0/2.1, up to 0/5.1, do not come: .*filter"):
        strict.between(start, end)
    found = lax.between(start, end)
    assert found is not None
    assert [one.operation for one in found[0]] == ["insert", DATA_LOSS]
    assert dict(found[0][1].columns) == {"after": "0/2.1", "upto": "0/5.1", "why": CHANGED}


def test_a_loss_ends_the_query_after_what_came_before_it() -> None:
    buffers = opened()
    buffers.put(0, rows(1, 2))
    buffers.lost(0, at(2), Position(0, 7))
    buffers.put(0, rows(8))
    buffers.raise_if_lost()
    end = buffers.end_after(BEGINNING, ALL, ALL)
    assert numbers(buffers.between(BEGINNING, end)) == {0: [1, 2]}
    buffers.at(end)
    with pytest.raises(LogCut, match=r"0/2.1 in shard 0 of 'data'") as caught:
        buffers.raise_if_lost()
    assert "0/7" in str(caught.value)
    assert "failOnDataLoss=false" in caught.value.__notes__[0]


def test_a_loss_is_a_row_if_the_query_shall_go_on() -> None:
    buffers = opened(fails=False)
    buffers.put(0, rows(1))
    buffers.lost(0, Position(0, 0), Position(0, 7))
    buffers.lost(0, Position(0, 0), Position(0, 7))
    buffers.put(0, rows(8))
    buffers.raise_if_lost()
    end = buffers.end_after(BEGINNING, 2, ALL)
    assert end.shards[0] == Reached(Position(0, 7), 2, True)
    found = buffers.between(BEGINNING, end)
    assert found is not None
    assert [(one.operation, dict(one.columns).get("after")) for one in found[0]] == [("insert", None), (DATA_LOSS, "0/1.1")]
    assert dict(found[0][1].columns)["why"] == CUT


def test_somebody_else_in_the_applications_name_is_noticed() -> None:
    """The last update of a batch is never acknowledged, so that a datamarker beyond it was moved by another."""
    end = Offset("data", {0: Reached(at(5), 5), 1: Reached(Position(0, 9), 5, True)})
    assert end.shards[0].acknowledgement == Position(0, 5, 0) < at(5)
    assert end.shards[1].acknowledgement == Position(0, 9)
    buffers = opened(start=end)
    buffers.opened(0, end.shards[0].acknowledgement)
    buffers.opened(1, Position(0, 20))
    buffers.raise_if_lost()
    buffers.opened(0, at(7))
    with pytest.raises(InvalidSetting, match=r"shard 0 .*after 0/5.1, up to 0/7.1.* an application of its own") as caught:
        buffers.raise_if_lost()
    assert ELSEWHERE in str(caught.value)


def test_a_shard_that_is_quiet_moves_on_with_the_batches_of_others_or_alone() -> None:
    buffers = opened(2)
    buffers.put(0, rows(1))
    buffers.sent(1, Position(0, 1))
    end = buffers.end_after(BEGINNING, ALL, ALL)
    assert end.shards == {0: Reached(at(1), 1), 1: Reached(Position(0, 1), 0, True)}
    buffers.at(end)
    buffers.sent(0, Position(0, 30))
    later = buffers.end_after(end, 0, 0)
    assert later.shards[0] == Reached(Position(0, 30), 1, True)
    assert later != end
    assert not later.beyond(end)
    assert buffers.between(end, later) == {}


def test_another_dataset_is_refused() -> None:
    buffers = opened(start=Offset("data", {0: Reached(at(1), 1)}))
    with pytest.raises(InvalidSetting, match="'others' instead of 'data'"):
        buffers.of("others")


def test_offsets_are_the_same_after_the_checkpoint() -> None:
    offset = Offset("data", {10: Reached(Position(2, 7, 3), 4), 9: Reached(Position(2, 8), 0, True)})
    assert from_json(json.loads(json.dumps(to_json(offset)))) == offset
    assert json.dumps(to_json(offset)) == json.dumps(to_json(Offset("data", dict(sorted(offset.shards.items())))))
    assert from_json(to_json(BEGINNING)) == BEGINNING
    others: list[dict[str, Any]] = [
        {"shards": {}},
        {"dataset": "d", "shards": {"x": {}}},
        {"dataset": "d", "shards": {"1": {"position": "?", "updates": 1}}},
    ]
    for other in others:
        with pytest.raises(BadRequest):
            from_json(other)


def test_options_are_read_without_regard_to_case() -> None:
    options = options_of({**GIVEN, "MAXUPDATESPERBATCH": "7", "failondataloss": "False", "shards": "4", "idleSeconds": "5"})
    assert options == Options(("db1:8480", "db2:8480"), "lake", b"sixteen bytes at least", "", 4, 7, 16 * 2**20, False, 5.0)
    assert "sixteen" not in repr(options)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"publishers": ""}, "publishers"),
        ({"publishers": "nowhere"}, "HOST:PORT"),
        ({"application": " "}, "application"),
        ({"secretKey": ""}, "keyFile"),
        ({"keyFile": "both"}, "keyFile"),
        ({"key": "shown in plans"}, "secretKey"),
        ({"maxUpdatesPerBatch": "0"}, "maxUpdatesPerBatch"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"startingOffsets": "latest"}, "startingoffsets"),
    ],
)
def test_options_that_do_not_fit_are_refused(changed: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told) as caught:
        CaptureSource({**GIVEN, **changed})
    assert "sixteen" not in str(caught.value)


def test_the_key_comes_from_its_file_and_does_not_travel_to_the_workers(tmp_path: Path) -> None:
    reader = CaptureSource(GIVEN).streamReader(CaptureSource(GIVEN).schema())
    assert b"sixteen" not in pickle.dumps(reader)
    file = tmp_path / "key"
    options = Options(("db:1",), "lake", key_file=str(file))
    with pytest.raises(InvalidSetting, match="cannot be read"):
        options.secret()
    file.write_text("sixteen bytes at least\n")
    assert options.secret() == b"sixteen bytes at least"
    file.write_text("few")
    with pytest.raises(InvalidSetting, match="3 bytes"):
        options.secret()


def test_values_are_text_that_reads_back() -> None:
    values = [None, True, False, 0, -(2**63), 1.5, 1e300, float("inf"), float("-inf"), "Edda \x00 Æ", b"\xff\x00"]
    texts = [None, "true", "false", "0", "-9223372036854775808", "1.5", "1e+300", "Infinity", "-Infinity", "Edda \x00 Æ", "/wA="]
    assert [text_of(value) for value in values] == texts
    assert text_of(float("nan")) == "NaN"


def test_rows_go_to_tasks_of_bounded_size_in_order() -> None:
    change = Change(
        Position(3, 9, 2), 1_735_689_600_000_001, Operation.UPDATE, "shop", "s.t", {"id": 1}, {"id": 1, "photo": b"\x01", "none": None},
        {"id": b"\x02"}, ("large",), {"who": "me"},
    )  # fmt: skip
    made = tasks("data", {1: [row_of(change)], 0: rows(*range(1, 200))}, task_bytes=5_000)
    assert len(made) == 5
    found = [one for task in made for batch in task.batches() for one in batch.to_pylist()]
    assert [(one["shard"], one["sequence"]) for one in found] == [*((0, number) for number in range(1, 200)), (1, 9)]
    assert found[-1] == {
        "dataset": "data",
        "shard": 1,
        "database": "shop",
        "table": "s.t",
        "operation": "update",
        "key": [("id", "1")],
        "columns": [("id", "1"), ("photo", "AQ=="), ("none", None)],
        "old_key": [("id", "Ag==")],
        "attached": [("who", "me")],
        "unchanged": ["large"],
        "base64": ["columns.photo", "old_key.id"],
        "committed_at": datetime.datetime(2025, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC),
        "history": 3,
        "sequence": 9,
        "index": 2,
    }
    assert tasks("data", {}) == []

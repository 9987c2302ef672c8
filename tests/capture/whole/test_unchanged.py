"""Datamarkers of another rule for shards, or of another log, are not used: a publisher says so, and does not start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.running.unchanged import check_unchanged, shards_text
from roskva.capture.settings import Dataset
from roskva.capture.stores.file_lines import Entry
from roskva.capture.stores.file_log import FileLog
from roskva.capture.updates import Operation
from roskva.errors import InvalidSetting
from tests.capture.whole.part import publishing


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SqliteDatamarkers]:
    kept = SqliteDatamarkers(tmp_path / "datamarkers", "shop")
    check_unchanged(kept, DIVIDED, "log 1")
    yield kept
    kept.close()


def dataset(shards: int, rule: str = "0", tables: Mapping[str, str] | None = None) -> Dataset:
    return Dataset(name="shop", shards=shards, shard=rule, tables=tables or {})


DIVIDED = dataset(4, "hash(id) % 4", {"users": "user % 4"})


@pytest.mark.parametrize(
    ("changed", "identity"),
    [
        (dataset(1), "log 1"),
        (dataset(8, "hash(id) % 8", {"users": "user % 8"}), "log 1"),
        (dataset(4, "id % 4", {"users": "user % 4"}), "log 1"),
        (dataset(4, "hash(id) % 4"), "log 1"),
        (DIVIDED, "log 2"),
    ],
)
def test_what_changed_is_refused_with_both_and_the_way_out(kept: SqliteDatamarkers, changed: Dataset, identity: str) -> None:
    with pytest.raises(InvalidSetting, match=r"would be skipped. Put dat.* back; or begin anew") as refused:
        check_unchanged(kept, changed, identity)
    assert (shards_text(DIVIDED) if identity == "log 1" else "log 1") in str(refused.value)
    check_unchanged(kept, DIVIDED, "log 1")


def test_the_same_in_other_words_is_the_same(kept: SqliteDatamarkers) -> None:
    check_unchanged(kept, dataset(4, " hash( id )%4 ", {"users": "user%4"}), "log 1")
    assert shards_text(dataset(1, "hash(id) % 1")) == shards_text(dataset(1))


def test_a_publisher_does_not_start_with_another_number_of_shards(tmp_path: Path) -> None:
    with FileLog(tmp_path / "log") as log:
        log.append([Entry(Operation.INSERT, "documents", {"id": 1}, {"title": "a"})])
    with publishing(f"kind = 'files'\npath = '{tmp_path / 'log'}'") as part:
        part.reads()
        assert part.stop() == 0
        part.settings.write_text(part.settings.read_text().replace("[datastore]", "shards = 4\nshard = 'hash(id) % 4'\n[datastore]"))
        part.start()
        assert part.ended() == 2
        assert "The settings divide the dataset into 4 shards, by hash(id) % 4" in part.said()

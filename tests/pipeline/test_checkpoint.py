"""A driver's checkpoint is its own copy of the newest one. No Spark here."""

from __future__ import annotations

from pathlib import Path

import pytest

from roskva.feed.interface import Position
from roskva.pipeline.checkpoint import KEPT, base_folder, numbered, prepare, prepare_empty, processed

QUERY = "matching"
OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"updates":{"0":[1,5]}}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


def write(folder: Path, batches: int, commits: int) -> None:
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text('{"id":"x"}')
    for number in range(batches):
        (folder / "offsets" / str(number)).write_text(OFFSETS)
    for number in range(commits):
        (folder / "commits" / str(number)).write_text(COMMIT)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_newest_is_copied_into_a_folder_of_its_own(tmp_path: Path) -> None:
    first = prepare(tmp_path, QUERY)
    assert first == base_folder(tmp_path, QUERY) / "1"
    assert files(first) == []
    write(first, batches=3, commits=2)
    second = prepare(tmp_path, QUERY)
    assert second.name == "2"
    assert files(second) == files(first) == ["commits/0", "commits/1", "metadata", "offsets/0", "offsets/1", "offsets/2"]


def test_an_orphan_s_late_commit_does_not_reach_the_successor(tmp_path: Path) -> None:
    """Trap 12: in a shared folder the batch would count as done, though its successor may die in the midst of it."""
    first = prepare(tmp_path, QUERY)
    write(first, batches=3, commits=2)
    second = prepare(tmp_path, QUERY)
    (first / "commits" / "2").write_text(COMMIT)  # the orphan finishes the batch that the successor is repeating
    assert "commits/2" not in files(second)
    assert "commits/2" not in files(numbered(base_folder(tmp_path, QUERY))[-1])


def test_half_written_files_are_left_alone(tmp_path: Path) -> None:
    first = prepare(tmp_path, QUERY)
    write(first, batches=1, commits=0)
    (first / "offsets" / ".1.0815.tmp").write_text("v1\n")
    (first / "commits" / ".0.crc").write_bytes(b"x")
    assert files(prepare(tmp_path, QUERY)) == ["metadata", "offsets/0"]


@pytest.mark.parametrize("damage", [b"", b"v1\n", b"v1\n{", b"\x00" * 100, b"\xff\xfe"])
def test_what_cannot_be_read_is_left_out_with_the_commit_that_stands_on_it(tmp_path: Path, damage: bytes) -> None:
    first = prepare(tmp_path, QUERY)
    write(first, batches=3, commits=3)
    (first / "offsets" / "2").write_bytes(damage)
    assert files(prepare(tmp_path, QUERY)) == ["commits/0", "commits/1", "metadata", "offsets/0", "offsets/1"]
    (first / "commits" / "1").write_bytes(damage)


def test_a_checkpoint_without_readable_offsets_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = prepare(tmp_path, QUERY)
    write(first, batches=1, commits=1)
    (first / "offsets" / "0").write_bytes(b"")
    assert files(prepare(tmp_path, QUERY)) == []
    assert "the oldest record" in caplog.text


def test_only_the_newest_few_are_kept(tmp_path: Path) -> None:
    for _ in range(6):
        write(prepare(tmp_path, QUERY), 1, 1)
    assert [folder.name for folder in numbered(base_folder(tmp_path, QUERY))] == ["4", "5", "6"]
    assert KEPT == 3


def test_two_drivers_that_start_at_once_get_different_folders(tmp_path: Path) -> None:
    first = prepare(tmp_path, QUERY)
    (base_folder(tmp_path, QUERY) / "2").mkdir()
    assert prepare_empty(tmp_path, QUERY).name == "3"
    assert first.name == "1"


def test_a_query_goes_on_behind_the_newest_batch_that_counts_as_done(tmp_path: Path) -> None:
    folder = prepare(tmp_path, QUERY)
    assert processed(folder) == {}
    write(folder, batches=3, commits=2)
    (folder / "offsets" / "2").write_text(OFFSETS.replace("5", "9"))
    assert processed(folder) == {("updates", 0): Position(1, 5)}, "batch 2 is not done: it will be repeated"
    (folder / "commits" / "2").write_text(COMMIT)
    assert processed(folder) == {("updates", 0): Position(1, 9)}


def test_each_query_has_folders_of_its_own(tmp_path: Path) -> None:
    write(prepare(tmp_path, QUERY), batches=1, commits=1)
    assert files(prepare(tmp_path, "fan-out")) == []

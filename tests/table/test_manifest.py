"""The manifest: compare-and-set, what counts as lost, and what happens when it is lost itself."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from roskva.errors import InvalidSetting, PartitionUnavailable
from roskva.table.manifest import COMPLETE, LOST, RECOVERING, Address, Manifest

ADDRESS = Address("table", "matcher", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "manifest.db"


def opened(path: Path) -> Manifest:
    manifest = Manifest.open(path, 2, "here")
    manifest.ensure("table", ["matcher", "marks"])
    return manifest


def created(manifest: Manifest) -> int:
    incarnation = manifest.record(*ADDRESS).incarnation
    assert manifest.create(ADDRESS, incarnation, lambda: None)
    return incarnation


def test_a_new_deployment_is_complete(path: Path) -> None:
    manifest = opened(path)
    snapshot = manifest.snapshot()
    assert (snapshot.partitions, snapshot.data_center, len(snapshot.deployment)) == (2, "here", 32)
    assert {address.name for address in snapshot.records} == {"matcher", "marks"}
    assert {(record.state, record.created) for record in snapshot.records.values()} == {(COMPLETE, False)}
    assert opened(path).snapshot() == snapshot


def test_a_loss_is_recorded_once(path: Path) -> None:
    first, second = opened(path), opened(path)
    before = created(first)
    assert first.record_lost(*ADDRESS, before)
    assert not second.record_lost(*ADDRESS, before)
    record = second.record(*ADDRESS)
    assert record.incarnation > before
    assert (record.state, record.created) == (LOST, False)
    assert second.record("table", "matcher", 0).state == COMPLETE


def test_a_lost_partition_is_created_once_and_recovers(path: Path) -> None:
    first, second = opened(path), opened(path)
    first.record_lost(*ADDRESS, created(first))
    incarnation = first.record(*ADDRESS).incarnation
    placed: list[str] = []
    assert second.create(ADDRESS, incarnation, lambda: placed.append("second"))
    assert not first.create(ADDRESS, incarnation, lambda: placed.append("first"))
    assert placed == ["second"]
    assert first.record(*ADDRESS) == (incarnation, RECOVERING, True)
    assert not first.mark_complete(*ADDRESS, incarnation - 1)
    assert first.mark_complete(*ADDRESS, incarnation)
    assert second.record(*ADDRESS).state == COMPLETE


def test_a_placing_that_fails_leaves_it_to_be_created(path: Path) -> None:
    manifest = opened(path)

    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        manifest.create(ADDRESS, manifest.record(*ADDRESS).incarnation, fail)
    assert not manifest.record(*ADDRESS).created
    created(manifest)


def test_epochs_rise_by_compare_and_set(path: Path) -> None:
    first, second = opened(path), opened(path)
    assert first.epoch("demo") == 0
    assert first.raise_epoch("demo", 0) == 1
    assert second.epoch("demo") == 1
    assert second.raise_epoch("demo", 0) == 1  # two resets at the same moment are one
    assert second.raise_epoch("demo", 1) == 2
    assert first.snapshot().epochs == {"demo": 2}


def test_what_was_seen_is_there_while_somebody_writes(path: Path) -> None:
    manifest = opened(path)
    other = opened(path)
    other.raise_epoch("demo", 0)
    assert manifest.seen().epochs == {}  # no look
    assert manifest.snapshot().epochs == manifest.seen().epochs == {"demo": 1}
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        began_s = time.monotonic()
        assert manifest.seen().epochs == {"demo": 1}
        assert time.monotonic() - began_s < 0.1
        with pytest.raises(PartitionUnavailable):
            manifest.snapshot()
        assert manifest.seen().epochs == {"demo": 1}
        writer.execute("ROLLBACK")
    finally:
        writer.close()
    assert manifest.snapshot().epochs == {"demo": 1}


def test_a_snapshot_of_some_age_costs_no_look(path: Path) -> None:
    first, second = opened(path), opened(path)
    old = first.snapshot()
    second.raise_epoch("demo", 0)
    assert first.snapshot(age_s=60.0) is old
    assert first.snapshot().epochs == {"demo": 1}
    assert first.snapshot() is first.snapshot()


def test_other_settings_are_refused(path: Path) -> None:
    opened(path)
    with pytest.raises(InvalidSetting, match="has 2 partitions, the settings say 3"):
        Manifest.open(path, 3, "here")
    with pytest.raises(InvalidSetting, match="'here', the settings say 'there'"):
        Manifest.open(path, 2, "there")


def test_a_lost_manifest_starts_anew_above_the_old_incarnations(path: Path) -> None:
    manifest = opened(path)
    before = manifest.snapshot()
    incarnation = created(manifest)
    path.unlink()
    manifest.ensure("table", ["matcher", "marks"])
    after = manifest.snapshot()
    assert after.deployment != before.deployment
    assert after.records[ADDRESS].incarnation > incarnation
    assert after.records[ADDRESS].state == RECOVERING  # this process knows that there was something
    assert not after.records[ADDRESS].created


def test_files_of_an_earlier_deployment_mean_a_loss_even_if_the_clock_went_back(path: Path) -> None:
    far_ahead = 9_000_000_000_000
    (path.parent / "table").mkdir(parents=True)
    (path.parent / "table" / f"registrar-0.{far_ahead}.db").touch()
    record = opened(path).record(*ADDRESS)
    assert record.incarnation > far_ahead
    assert record.state == RECOVERING


@pytest.mark.parametrize("content", [b"", b"no database" * 500])
def test_an_unreadable_manifest_is_put_aside(path: Path, content: bytes) -> None:
    manifest = opened(path)
    deployment = manifest.snapshot().deployment
    manifest.close()
    path.write_bytes(content)
    fresh = opened(path)
    assert fresh.snapshot().deployment != deployment
    assert fresh.record(*ADDRESS).state == RECOVERING
    assert path.with_name("manifest.db.unreadable").read_bytes() == content


def test_a_manifest_damaged_while_open_is_replaced_at_the_next_call(path: Path) -> None:
    manifest = opened(path)
    deployment = manifest.snapshot().deployment
    other = opened(path)
    path.write_bytes(b"no database" * 5000)
    for _ in range(3):
        try:
            manifest.raise_epoch("demo", 0)
            break
        except PartitionUnavailable:
            continue
    assert manifest.snapshot().deployment != deployment
    assert other.snapshot().deployment == manifest.snapshot().deployment

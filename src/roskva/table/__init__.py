"""The table: rows of timestamped cells in partitions that may be lost, and the manifest that knows which of them count."""

from __future__ import annotations

import os
import threading

from roskva.config import Settings
from roskva.table.interface import CELLS_PER_WRITE_MAX, TABLES, Cell, Mutation, Row, RowKey, Table, wins
from roskva.table.lanes import TableLanes
from roskva.table.manifest import COMPLETE, LOST, RECOVERING, Address, Manifest, PartitionRecord, Snapshot
from roskva.table.sqlite import SqliteTable

__all__ = [
    "CELLS_PER_WRITE_MAX",
    "COMPLETE",
    "LOST",
    "RECOVERING",
    "TABLES",
    "Address",
    "Cell",
    "Manifest",
    "Mutation",
    "PartitionRecord",
    "Row",
    "RowKey",
    "Snapshot",
    "SqliteTable",
    "Table",
    "TableLanes",
    "open_manifest",
    "open_table",
    "wins",
]

# One of each per process and deployment: Spark's workers call `open_table` in every task.
_opening = threading.Lock()
_manifests: dict[tuple[str, int, str], Manifest] = {}
_tables: dict[tuple[str, int, str], SqliteTable] = {}


def _reset_lock() -> None:
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock)


def _deployment(settings: Settings) -> tuple[str, int, str]:
    return str(settings.data.absolute()), settings.partitions, settings.data_center


def open_manifest(settings: Settings) -> Manifest:
    """The manifest of the data directory, opened once per process. InvalidSetting if it was made with other settings."""
    with _opening:
        return _manifest(settings)


def open_table(settings: Settings) -> SqliteTable:
    """The table of the data directory, opened once per process."""
    deployment = _deployment(settings)
    table = _tables.get(deployment)
    if table is None:
        with _opening:
            table = _tables.get(deployment)
            if table is None:
                table = _tables[deployment] = SqliteTable(settings.data, _manifest(settings))
    return table


def _manifest(settings: Settings) -> Manifest:
    deployment = _deployment(settings)
    manifest = _manifests.get(deployment)
    if manifest is None:
        manifest = Manifest.open(settings.data / "manifest.db", settings.partitions, settings.data_center)
        _manifests[deployment] = manifest
    return manifest

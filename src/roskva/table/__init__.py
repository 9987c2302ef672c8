"""The table: rows of timestamped cells in partitions that may be lost, and the manifest that knows which of them count.

The engine, the lanes and the manifest are imported when they are asked for: the pure cores know the contract alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from roskva.table.interface import CELLS_PER_WRITE_MAX, TABLES, Cell, Mutation, Row, RowKey, Table, wins

if TYPE_CHECKING:
    from roskva.table.lanes import TableLanes
    from roskva.table.manifest import COMPLETE, LOST, RECOVERING, Address, Manifest, PartitionRecord, Snapshot
    from roskva.table.opening import open_manifest, open_table
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

_MODULES = {
    "TableLanes": "lanes",
    "SqliteTable": "sqlite",
    "open_manifest": "opening",
    "open_table": "opening",
    **dict.fromkeys(("COMPLETE", "LOST", "RECOVERING", "Address", "Manifest", "PartitionRecord", "Snapshot"), "manifest"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

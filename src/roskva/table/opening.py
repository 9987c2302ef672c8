"""Opens the manifest and the table of a data directory, once per process: Spark's workers ask in every task."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, cast

from roskva.config import Settings
from roskva.table.manifest import Manifest
from roskva.table.sqlite import SqliteTable

_opening = threading.Lock()
_manifests: dict[tuple[str, int, str], Manifest] = {}
_tables: dict[tuple[str, int, str], SqliteTable] = {}
_FAULTS: Final = "ROSKVA_TEST_FAULTS"  # for tests: a file that says what shall fail (faults.py)


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
                table = _tables[deployment] = _engine(settings)
    return table


def _engine(settings: Settings) -> SqliteTable:
    table = SqliteTable(settings.data, _manifest(settings))
    if _FAULTS not in os.environ:
        return table
    from roskva.table.faults import FaultyTable

    return cast("SqliteTable", FaultyTable(table, Path(os.environ[_FAULTS])))  # whatever it does not refuse, the engine does


def _manifest(settings: Settings) -> Manifest:
    deployment = _deployment(settings)
    manifest = _manifests.get(deployment)
    if manifest is None:
        manifest = Manifest.open(settings.data / "manifest.db", settings.partitions, settings.data_center)
        _manifests[deployment] = manifest
    return manifest

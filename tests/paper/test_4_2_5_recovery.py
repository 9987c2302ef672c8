"""Thialfi 4.2.5, recovery from server failures: the real Registrar with real clients' cores on virtual time, and real files."""

# ruff: noqa: F811 (fixtures are imported, and named again as arguments)

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from roskva.errors import DataOutdated
from roskva.table.dropping import drop_outdated
from tests.registrar.crowd import Crowd
from tests.registrar.test_shedding import names, refuse_registrations
from tests.registrar.test_shedding import settings as crowd_settings
from tests.table.test_dropping import ROW, Opened, outdated, service  # noqa: F401


def test_4_2_5_pending_operations_are_restored_by_a_scan_after_a_restart() -> None:
    """Caches of rows and of pending operations are write-through: a server that starts restores them by scanning. Here it reads marks,
    so that the scan costs what is unfinished, and not what there is."""
    crowd = Crowd(crowd_settings())

    async def work() -> None:
        refuse_registrations(crowd, True)
        crowd.gather(10, names)
        await crowd.until(lambda: crowd.pending() == 100)
        await crowd.boot("m2")  # nobody reconnects: only the table knows
        refuse_registrations(crowd, False)
        await crowd.until(lambda: crowd.pending() == 0)
        for caller in crowd.callers:
            caller.connect()
        await crowd.until(crowd.all_told)

    crowd.run(work())


def test_4_2_5_under_memory_pressure_work_in_progress_is_dropped_and_a_scan_recovers_it() -> None:
    """Under memory pressure a server aborts what is in progress, evicts it from its pending set, and schedules a scan to recover it."""
    crowd = Crowd(crowd_settings())

    async def work() -> None:
        refuse_registrations(crowd, True)
        crowd.gather(10, names)
        await crowd.until(lambda: crowd.pending() == 100)
        crowd.registrar.relieve()
        assert crowd.registrar.recovery.on_their_way == 0
        assert crowd.registrar.counters.shed == 100
        for caller in crowd.callers:
            caller.hang_up()
        refuse_registrations(crowd, False)
        await crowd.until(lambda: crowd.pending() == 0)
        await asyncio.sleep(1.0)
        for caller in crowd.callers:
            caller.connect()
        await crowd.until(crowd.all_told)

    crowd.run(work())


@pytest.mark.usefixtures("outdated")
def test_4_2_5_all_state_may_be_dropped_instead_of_being_migrated(service: Opened, tmp_path: Path) -> None:
    """All stored state can be dropped, and is, where the schema changes: there is no migration. Here `roskva drop all` does it."""
    service.close()
    with pytest.raises(DataOutdated, match="roskva drop all"):
        Opened(tmp_path)
    drop_outdated(tmp_path, 2, "here").close()
    anew = Opened(tmp_path)
    assert anew.table.read([ROW]) == {ROW: {}}
    anew.close()

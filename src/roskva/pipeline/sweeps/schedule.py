"""Which sweep runs when, inside `roskva up`: one at a time, lost partitions first.

Two at once would take all of Spark's cores from the queries. Between two partitions of a long sweep whatever is urgent goes first: the
repair of a loss, and what waits in scratch. Times are taken from the record in the table, so a restart neither repeats a daily sweep
nor puts it off: one that was cut short is due at once, and goes on where it was. Imports no Spark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from roskva.config import Settings
from roskva.pipeline.sweeps.frame import KINDS, Kind, Request, wanted
from roskva.pipeline.sweeps.record import FAILED, PLANNED, RUNNING, STOPPED, Record, clock_ms, read_records, write_records
from roskva.pipeline.sweeps.run import Job, run_sweep
from roskva.table.interface import Table

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 2.0
_SILENT_MS: Final = 60_000  # one that runs says so every second; after so long its process is gone
_AGAIN_AFTER_MS: Final = 600_000  # one that failed


def due_ms(kind: Kind, record: Record, settings: Settings) -> int | None:
    """When the next one is due, by the last; None: only when somebody asks for it."""
    every_ms = int(1000 * getattr(settings, kind.every)) if kind.every else 0
    if every_ms == 0:
        return None
    if record.state == RUNNING:
        return record.written_ms + _SILENT_MS
    pause_ms = {STOPPED: 0, FAILED: min(every_ms, _AGAIN_AFTER_MS)}.get(record.state, every_ms)
    return record.ended_ms + pause_ms


def is_due(kind: Kind, record: Record, settings: Settings, now_ms: int) -> bool:
    at_ms = due_ms(kind, record, settings)
    # A record of the future was written under a clock that was wrong: it must not hold up anything for years.
    return at_ms is not None and (now_ms >= at_ms or max(record.ended_ms, record.written_ms) > now_ms + _SILENT_MS)


class Schedule:
    """Call `step` again and again, or `run` in a thread."""

    def __init__(
        self,
        table: Table,
        settings: Settings,
        job: Job,
        repairs: Callable[[float], None] = lambda now_s: None,
        now_ms: Callable[[], int] = clock_ms,
        kinds: Mapping[str, Kind] = KINDS,
    ) -> None:
        self._table = table
        self._settings = settings
        self._job = job
        self._repairs = repairs  # looks for lost partitions, and returns when they are repaired
        self._now_ms = now_ms
        self._kinds = kinds
        self._stop = threading.Event()

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        while not stop.wait(_LOOK_EVERY_S):
            self._repair()
            self._try("looking for sweeps that are due failed", self.step)

    def step(self) -> None:
        """Run what is due, one after the other."""
        records = read_records(self._table)
        now_ms = self._now_ms()
        new = [kind.name for kind in self._kinds.values() if kind.every and not kind.only_if and kind.name not in records]
        if new:
            # What never ran is counted from now on: a service that is new has nothing to sweep.
            write_records(self._table, [Record(name, PLANNED, ended_ms=now_ms) for name in new], self._now_ms)
        for kind in self._kinds.values():
            if kind.name not in new and self._due(kind, records, now_ms):
                self._try(f"the sweep {kind.name} failed; it is begun again later", partial(self._sweep, kind, records.get(kind.name)))

    def _due(self, kind: Kind, records: Mapping[str, Record], now_ms: int) -> bool:
        record = records.get(kind.name) or Record(kind.name, PLANNED)
        return not self._stop.is_set() and is_due(kind, record, self._settings, now_ms) and wanted(kind, self._table, self._settings)

    def _sweep(self, kind: Kind, before: Record | None, urgent: bool = False) -> None:
        log.info("the sweep %s begins", kind.name)
        record = run_sweep(
            self._table,
            self._settings.partitions,
            Request(kind.name, self._now_ms()),
            self._job,
            before=before if before is not None and before.state in (RUNNING, STOPPED, FAILED) else None,
            between=(lambda: None) if urgent else self._between,
            stopping=self._stop.is_set,
            now_ms=self._now_ms,
        )
        log.info("the sweep %s is %s: %s", kind.name, record.state, record.swept)

    def _between(self) -> None:
        """What cannot wait until a long sweep is over."""
        self._repair()
        self._try("looking for urgent sweeps failed", self._urgent)

    def _urgent(self) -> None:
        records = read_records(self._table)
        for kind in self._kinds.values():
            if kind.only_if and self._due(kind, records, self._now_ms()):
                self._sweep(kind, None, urgent=True)

    def _repair(self) -> None:
        self._try("a repair failed; it is begun again", lambda: self._repairs(time.monotonic()))

    def _try(self, failed: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            if not self._stop.is_set():
                log.exception(failed)

"""One sweep from its beginning to its end: partition after partition, with a record of how far it has come.

Each partition is a job of its own, so that a repair or the end of the service waits for one partition at most, and a sweep that was
cut short goes on with the partition at which it was. That is safe: a partition is swept by looking at its rows as they are then, and
one that is swept twice finds less to do. Only `repair` begins anew each time, since what was lost meanwhile must be seen by all of
it. Imports no Spark: the job is given.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Final

import msgspec

from roskva.errors import Unavailable
from roskva.pipeline.sweeps.frame import Request, Swept
from roskva.pipeline.sweeps.record import DONE, FAILED, RUNNING, STOPPED, Record, clock_ms, write_records
from roskva.table.interface import Table

log = logging.getLogger(__name__)

BEGUN_ANEW: Final = frozenset({"repair"})
Job = Callable[[Request, Record, int], Swept]  # what is asked, the record so far, the partition


def run_sweep(
    table: Table,
    partitions: int,
    request: Request,
    job: Job,
    *,
    before: Record | None = None,
    between: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
    now_ms: Callable[[], int] = clock_ms,
) -> Record:
    """Sweep all partitions and answer the record of it. Where a job fails, the others go on, and the record says so in the end. What
    the job of a repair raises is raised, once it is recorded.

    `before` is the record of an earlier one that was cut short, if this one is to go on from it. `between` is called between
    partitions. Once `stopping` says so, it ends before the next one.
    """
    record = Record(request.sweep, RUNNING, request.now_ms, run=secrets.token_hex(4), partitions=partitions, dry_run=request.dry_run)
    if before is not None and 0 < before.partition < partitions and request.sweep not in BEGUN_ANEW:
        record = msgspec.structs.replace(record, began_ms=before.began_ms, partition=before.partition, swept=before.swept)
    _note(table, record, now_ms)
    try:
        while record.partition < partitions:
            swept, failed = _swept(job, request, record, stopping)
            error = failed or record.error
            record = msgspec.structs.replace(record, partition=record.partition + 1, swept=record.swept.plus(swept), error=error)
            if record.partition < partitions:
                _note(table, record, now_ms)
                between()
                if stopping():
                    return _end(table, record, STOPPED, now_ms)
    except BaseException as error:
        if isinstance(error, Exception) and not stopping():
            _end(table, record, FAILED, now_ms, _first_line(error))
        else:
            _end(table, record, STOPPED, now_ms)  # Spark ends under it
        raise
    return _end(table, record, FAILED if record.error else DONE, now_ms)


def _swept(job: Job, request: Request, record: Record, stopping: Callable[[], bool]) -> tuple[Swept, str]:
    """What was done of a partition; and why not, if its job failed: the others go on, and it is swept again with the next sweep."""
    try:
        return job(request, record, record.partition), ""
    except Exception as error:
        if request.sweep in BEGUN_ANEW or stopping():
            raise
        why = _first_line(error)
        log.error("the sweep %s failed in partition %d, and goes on with the next: %s", request.sweep, record.partition, why)
        log.debug("the sweep %s failed", request.sweep, exc_info=error)
        return Swept(left=1, counts={"partitions_failed": 1}), why


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _end(table: Table, record: Record, state: str, now_ms: Callable[[], int], error: str = "") -> Record:
    record = msgspec.structs.replace(record, state=state, ended_ms=now_ms(), written_ms=now_ms(), error=error or record.error)
    _note(table, record, now_ms)
    return record


def _note(table: Table, record: Record, now_ms: Callable[[], int]) -> None:
    """The sweep is worth more than its record."""
    try:
        write_records(table, [record], now_ms)
    except (Unavailable, OSError) as error:
        log.warning("the record of the sweep %s cannot be written now: %s", record.sweep, error)

"""`roskva sweep`: run a sweep now, with a line that tells how far it has come, and a summary of what was done.

It works on the data directory, with a Spark session of its own. The service may run meanwhile, or not.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import msgspec

from roskva.config import Settings
from roskva.errors import InvalidSetting, RoskvaError
from roskva.pipeline.repair import lost_in, partitions_to_repair
from roskva.pipeline.sweeps.frame import KINDS, Request, wanted
from roskva.pipeline.sweeps.record import DONE, FAILED, Record, clock_ms, read_record
from roskva.pipeline.sweeps.run import Job, run_sweep
from roskva.table import open_manifest, open_table
from roskva.table.interface import Table

_LOOK_EVERY_S: Final = 0.5
_CANCEL_S: Final = 5.0
_LINE_EVERY_S: Final = 10.0  # where lines cannot be overwritten


def sweep(settings: Settings, arguments: argparse.Namespace) -> int:
    """0 if all was swept; 1 if it failed, was interrupted, or had to leave something for the next time."""
    if not (settings.data / "manifest.db").exists():
        raise InvalidSetting(f"There is no data of a service in {settings.data}: nothing to sweep. Name its directory with --data.")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.ERROR)  # it complains when a job is interrupted
    table = open_table(settings)
    kinds = [arguments.sweep, *filter(None, [KINDS[arguments.sweep].then])]
    requests = [request for name in kinds if (request := _request(name, table, settings, arguments.dry_run)) is not None]
    if not requests:
        _show(None, arguments)
        return 0
    from roskva.pipeline.sweeps.by_hand import own_session

    _say(arguments, "starting Spark")
    with own_session(settings) as mine:
        work = _Work(table, settings, requests, mine.job, arguments)
        try:
            with _interrupts(work.stop):
                work.start()
                while work.is_alive() and not work.stop.is_set():
                    work.join(_LOOK_EVERY_S)
            return work.result()
        finally:
            if work.is_alive():
                mine.cancel()
                work.join(_CANCEL_S)


def _request(name: str, table: Table, settings: Settings, dry_run: bool) -> Request | None:
    """None: there is nothing to do, and no need to start Spark to see it."""
    lost: frozenset[int] = frozenset()
    if name == "repair":
        lost = partitions_to_repair(lost_in(open_manifest(settings).snapshot().records), settings.partitions)
        if not lost:
            return None
    if not wanted(KINDS[name], table, settings):
        return None
    return Request(name, clock_ms(), dry_run=dry_run, lost=lost)


class _Work(threading.Thread):
    """The sweeps, one after the other, beside the main thread: a signal in the middle of a call into the JVM would garble it."""

    def __init__(self, table: Table, settings: Settings, requests: Sequence[Request], job: Job, arguments: argparse.Namespace) -> None:
        super().__init__(name="sweep", daemon=True)
        self.stop = threading.Event()
        self._table = table
        self._settings = settings
        self._requests = requests
        self._job = job
        self._arguments = arguments
        self._complete = True
        self._failed: str | None = None

    def run(self) -> None:
        for request in self._requests:
            if self.stop.is_set() or self._failed is not None:
                return
            watch = _Watch(self._table, request, quiet=self._arguments.json)
            try:
                request = replace(request, now_ms=clock_ms())
                record = run_sweep(self._table, self._settings.partitions, request, self._job, stopping=self.stop.is_set)
            except Exception as error:
                self._failed = f"The sweep {request.sweep} failed: {(str(error) or type(error).__name__).splitlines()[0]}"
            finally:
                watch.end()
            if self._failed is None and record.state == FAILED:
                self._failed = f"The sweep {request.sweep} failed: {record.error}"
            elif self._failed is None:
                self._complete &= record.state == DONE and not record.swept.left
                _show(record, self._arguments)

    def result(self) -> int:
        if self.stop.is_set():
            print("roskva: interrupted; that is harmless: the next sweep does the rest", file=sys.stderr)
            return 1
        if self._failed is not None:
            raise RoskvaError(self._failed)
        return 0 if self._complete else 1


@contextmanager
def _interrupts(stop: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM end it in the same way: Spark is stopped, and the record says that it was."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Watch:
    """Prints how far the sweep has come, by its record in the table, until it is told to end."""

    def __init__(self, table: Table, request: Request, quiet: bool) -> None:
        self._table = table
        self._request = request
        self._over = threading.Event()
        self._tty = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if not quiet:
            self._thread.start()

    def end(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        shown_s, shown = float("-inf"), ""
        while not self._over.wait(_LOOK_EVERY_S):
            line = self._line()
            if line == shown or not (self._tty or time.monotonic() - shown_s >= _LINE_EVERY_S):
                continue
            print(f"\r\x1b[K{line}" if self._tty else line, end="" if self._tty else "\n", file=sys.stderr, flush=True)
            shown_s, shown = time.monotonic(), line
        if self._tty and shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _line(self) -> str:
        try:
            record = read_record(self._table, self._request.sweep, self._request.dry_run)
        except RoskvaError as error:
            return f"{self._request.sweep}: {error}"
        if record is None:
            return f"{self._request.sweep}: beginning"
        swept = record.swept
        place = f"partition {min(record.partition + 1, record.partitions)} of {record.partitions}"
        return f"{record.sweep}: {place}, {swept.looked_at:,} rows looked at, {swept.proposed:,} proposed, {swept.done:,} done"


def _say(arguments: argparse.Namespace, what: str) -> None:
    if not arguments.json:
        print(f"roskva: {what}", file=sys.stderr, flush=True)


def _show(record: Record | None, arguments: argparse.Namespace) -> None:
    if arguments.json:
        shown = {"sweep": arguments.sweep, "state": "nothing to do"} if record is None else msgspec.to_builtins(record)
        print(json.dumps(shown), flush=True)
    elif record is None:
        print(f"{arguments.sweep}: there is nothing to do")
    else:
        print("\n".join(summary(record)), flush=True)


def summary(record: Record) -> Sequence[str]:
    """What was done, for a person."""
    swept = record.swept
    took_s = (record.ended_ms - record.began_ms) / 1000
    lines = [f"{record.sweep}{' (dry run: nothing was changed)' if record.dry_run else ''}: {record.state} in {took_s:,.1f} s"]
    lines.append(f"  looked at  {swept.looked_at:,} rows")
    lines.append(f"  proposed   {swept.proposed:,}")
    if not record.dry_run:
        lines.append(f"  done       {swept.done:,}")
        lines.append(f"  refused    {swept.refused:,} by the owners of the rows")
    if swept.left:
        lines.append(f"  left       {swept.left:,} for the next time: not readable or writable now")
    lines += [f"  {name.replace('_', ' '):10} {count:,}" for name, count in sorted(swept.counts.items())]
    return lines

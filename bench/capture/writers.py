"""Rows committed to Postgres at a steady rate, by threads with a connection each.

A commit counts from the moment at which it was due, not from when a connection was free: a database that falls behind cannot hide it.
"""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Final, NamedTuple

import psycopg2

from bench.capture.stores import DATABASE, INSERT, TABLE, BenchPostgres
from bench.capture.usage import sleep_until
from bench.service import BenchFailed

CONNECTIONS: Final = 4
LATE_S_MAX: Final = 1.0  # behind what is due, at the end: beyond, the rate was not what it says


class Written(NamedTuple):
    rows: int
    seconds: float
    late_s: float  # how late the last commit of the slowest connection was

    @property
    def rows_per_s(self) -> float:
        return round(self.rows / self.seconds, 1)

    @property
    def kept_up(self) -> bool:
        return self.late_s <= LATE_S_MAX


class Writer:
    """One at a time writes to a table: it numbers the rows. `rows` is how many it has committed so far."""

    def __init__(self, server: BenchPostgres) -> None:
        self._dsn = server.dsn(DATABASE)
        ((last,),) = server.execute(DATABASE, f"SELECT coalesce(max(id), 0) FROM {TABLE}")
        self._next = int(last) + 1
        self.rows = 0
        self._lock = threading.Lock()
        self._failed: list[Exception] = []
        self._late_s = 0.0
        self._stopped = threading.Event()

    def write(self, rate_per_s: float, seconds: float, commits_per_s: float, owners: int = 1_000) -> Written:
        """So many rows a second, in so many commits, of rows of so many owners. Returns when all is committed."""
        per_commit = max(1, round(rate_per_s / commits_per_s))
        every_s = per_commit / rate_per_s * CONNECTIONS  # of one connection
        began_s, before = time.time(), self.rows
        self._late_s = 0.0
        threads = [
            threading.Thread(
                target=self._commit, args=(began_s + number * every_s / CONNECTIONS, every_s, began_s + seconds, per_commit, owners)
            )
            for number in range(CONNECTIONS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise BenchFailed(f"Rows could not be written: {self._failed[0]}")
        return Written(self.rows - before, max(seconds, time.time() - began_s), self._late_s)

    def stop(self) -> None:
        """What is being written ends with the commits that are under way."""
        self._stopped.set()

    def _commit(self, due_s: float, every_s: float, until_s: float, per_commit: int, owners: int) -> None:
        statement, late_s = INSERT.format(owners=owners), 0.0
        try:
            with closing(psycopg2.connect(self._dsn)) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    while due_s < until_s and not self._stopped.is_set():
                        sleep_until(due_s)
                        with self._lock:
                            first, self._next = self._next, self._next + per_commit
                        cursor.execute(statement, (first, first + per_commit - 1))
                        with self._lock:
                            self.rows += per_commit
                        late_s = time.time() - due_s
                        due_s += every_s
            with self._lock:
                self._late_s = max(self._late_s, late_s)
        except Exception as error:  # told by the thread that waits
            self._failed.append(error)

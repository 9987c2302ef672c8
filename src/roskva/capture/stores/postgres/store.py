"""PostgreSQL as a datastore of capture: the contract of capture/interface.py over slots.py and replication.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg2

from roskva.capture.interface import Finding, Reader, Retained
from roskva.capture.positions import Position
from roskva.capture.stores.postgres.advancing import Advancing
from roskva.capture.stores.postgres.checking import findings
from roskva.capture.stores.postgres.connecting import PostgresSettings, connect, named
from roskva.capture.stores.postgres.gaps import Gaps
from roskva.capture.stores.postgres.publication import Publication
from roskva.capture.stores.postgres.replication import PostgresReader, before_time, identify, identity_of
from roskva.capture.stores.postgres.slots import (
    Anchor,
    advance,
    anchor_of,
    check_readable,
    create_slot,
    replace_slot,
)
from roskva.capture.stores.postgres.timelines import Timelines
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, RoskvaError, WrongHistory

SEARCH_S_MAX: Final = 20.0  # for a time in the log
_PRIMARY_KEY: Final = """
    SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = %s AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)
"""

Answer = TypeVar("Answer")


class PostgresStore:
    """Connects when it is first asked, and again after a failure.

    One connection serves all calls, one after the other; each reader has one of its own.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._connection: Any = None
        self._identity = ""
        self._timelines = Timelines(0)
        self._gaps = Gaps(settings.publication)
        self._publication = Publication(settings, self._gaps)
        self._advancing = Advancing(settings)
        self._readers: set[PostgresReader] = set()
        self._is_read = False  # or somebody has tried
        self._lock = threading.RLock()
        self._closed = False

    def sign_with(self, secret: Callable[[], str]) -> None:
        self._gaps.sign_with(secret)

    @property
    def identity(self) -> str:
        if not self._identity:
            self._ask("asking who it is", lambda cursor: None)
        return self._identity

    def retained(self) -> Retained:
        anchor = self._anchor()
        timelines = self._timelines_of(anchor.timeline)
        end = timelines.before(anchor.end)
        if not anchor.readable:
            # A slot that was given up had come to its limit, and is beyond it: whoever looks at its share must not see it vanish.
            behind = max(0, anchor.end - anchor.confirmed) if anchor.confirmed else None
            return Retained(end, end, behind, anchor.keep_bytes_max, follows=anchor.in_recovery)
        # What the server keeps, and gives up at the limit, begins a little before what was confirmed.
        behind = max(0, anchor.end - anchor.restart)
        return Retained(timelines.before(anchor.confirmed), end, behind, anchor.keep_bytes_max, follows=anchor.in_recovery)

    def read_after(self, position: Position) -> Reader:
        self._check_open()
        self._is_read = True
        reader = PostgresReader(
            self._settings,
            self.identity,
            position,
            lambda: self.retained().oldest,
            self._primary_key,
            lambda: not self._anchor().in_recovery,
            self._gaps.is_one,
        )
        with self._lock:
            self._readers = {other for other in self._readers if not other.closed}
            self._readers.add(reader)
        if self._closed:  # in the meantime
            reader.close()
        self._check_open()
        return reader

    def at_time(self, time_s: float) -> Position:
        """By the times of the commits that the log still has, which are read through up to there, for at most SEARCH_S_MAX.

        Postgres cannot say when the rest of it was: if all is later, this is the oldest.
        """
        oldest = self.retained().oldest
        return before_time(self._settings, self.identity, oldest, int(time_s * 1_000_000), SEARCH_S_MAX, lambda: self._closed)

    def confirm(self, position: Position) -> None:
        anchor = self._anchor()
        timelines = self._timelines_of(anchor.timeline)
        with suppress(LogCut):  # it was undone by a promotion: its flow is told of that when it is read for
            timelines.check(position, anchor.end)
        if not anchor.readable:
            raise LogCut(position, timelines.before(anchor.end))
        needed = timelines.needed(position)
        if needed > anchor.confirmed and not self._advancing.takes(needed, anchor):
            self._ask("confirming", lambda cursor: advance(cursor, self._settings, needed))

    def prepare(self) -> None:
        """The publication first: the log is decoded with the catalogs as they were, and before it was made it is not in them.

        If it is there, and lacks a table that cannot be published, the slot is made all the same for whoever reads the others; not if
        nobody has read yet, and perhaps never will: nobody would let go what it keeps.
        """
        settings = self._settings

        def make(cursor: Any) -> None:
            anchor = anchor_of(cursor, settings.slot)
            check_readable(anchor, settings, cursor.connection.server_version)
            lacks: RoskvaError | None = None
            if not anchor.in_recovery:  # a standby gets it from its primary
                try:
                    self._publication.prepare(cursor, read=anchor.exists)
                except RoskvaError as error:
                    if not self._is_read or not self._publication.exists(cursor):
                        raise
                    lacks = error
            if not anchor.exists:
                create_slot(cursor, settings)
            elif not anchor.readable:
                replace_slot(cursor, settings)
            if lacks is not None:
                raise lacks

        self._ask("preparing", make)

    def check(self) -> list[Finding]:
        try:
            return self._ask("checking", lambda cursor: findings(cursor, self._settings))
        except (CaptureRefused, DatastoreUnavailable) as error:
            return [Finding(f"{self._settings.place} can be asked", False, error.what, error.advice)]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers, self._readers = self._readers, set()
            self._drop_connection()
        self._advancing.close()
        for reader in readers:
            reader.close()

    def _anchor(self) -> Anchor:
        return self._ask("looking at its slot", lambda cursor: anchor_of(cursor, self._settings.slot))

    def _primary_key(self, table: int) -> tuple[str, ...]:
        def names(cursor: Any) -> tuple[str, ...]:
            cursor.execute(_PRIMARY_KEY, (table,))
            return tuple(name for (name,) in cursor.fetchall())

        return self._ask("asking for a primary key", names)

    def _timelines_of(self, timeline: int) -> Timelines:
        """The list of switches is given out on connections for replication alone. It never changes for one timeline."""
        with self._lock:
            if self._timelines.current != timeline:
                self._timelines = Timelines(timeline) if timeline == 1 else self._identify()[1]
            return self._timelines

    def _identify(self) -> tuple[str, Timelines, int]:
        connection = connect(self._settings, replication=True)
        try:
            return identify(connection.cursor())
        except psycopg2.Error as error:
            raise named(self._settings, error, "asking for its timelines") from None
        finally:
            connection.close()

    def _ask(self, doing: str, question: Callable[[Any], Answer]) -> Answer:
        """Once more, if a connection that was there already turns out to be dead: the server may have been started again since."""
        with self._lock:
            for fresh in (self._connection is None, True):
                try:
                    with self._connected().cursor() as cursor:
                        return question(cursor)
                except RoskvaError:
                    if fresh or self._alive():
                        raise
                except psycopg2.Error as error:
                    if fresh or self._alive():
                        raise named(self._settings, error, doing) from None
                self._drop_connection()
            raise AssertionError("the second time, the connection is fresh")

    def _check_open(self) -> None:
        if self._closed:
            raise DatastoreUnavailable(f"This datastore of {self._settings.place} is closed.")

    def _alive(self) -> bool:
        return self._connection is not None and self._connection.closed == 0

    def _connected(self) -> Any:
        self._check_open()
        if self._connection is None or self._connection.closed:
            connection = connect(self._settings)
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT system_identifier::text, current_database() FROM pg_control_system()")
                    found = identity_of(*cursor.fetchone())
            except psycopg2.Error as error:
                connection.close()
                raise named(self._settings, error, "asking who it is") from None
            if self._identity not in ("", found):
                connection.close()
                raise WrongHistory("of every datamarker", f"the server is now {found}, and was {self._identity}")
            self._connection, self._identity = connection, found
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""Lets the server drop much of its log that nobody needs any more: the anchor slot goes there in steps, at a pace, beside everything else.

To move a slot the server reads its log, from where the slot holds it (`restart`) up to the new place; and a statement that is interrupted,
by its timeout or a lost connection, has moved nothing (PostgreSQL 15, measured). A flow that was behind by many gigabytes and caught up, or
was removed, would have it begin at the same place again for ever, and read its disk as fast as it can. So a way of more than STEP_BYTES is
gone in steps, each of which counts; by a thread with a connection of its own, so that nobody waits for it; with pauses, so that what is
read stays within `advance_bytes_per_s`.

A transaction that stays open keeps `restart` where it is, and each step reads from there again: a step is at least as long as what is read
again for it, so all of them together read at most some three times as much as one would.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from contextlib import closing, suppress
from typing import Any, Final

import psycopg2

from roskva.capture.stores.postgres.connecting import PostgresSettings, connect, named
from roskva.capture.stores.postgres.slots import Anchor, advance, anchor_of
from roskva.errors import RoskvaError

log = logging.getLogger(__name__)

STEP_BYTES: Final = 32 << 20  # a shorter way is gone at once, by whoever confirms
STEP_S_MAX: Final = 3600.0  # of one statement
PATIENCE_S: Final = 0.5  # that whoever confirms waits for the end of a longer way; after that it goes on by itself
PAUSE_S_MIN: Final = 0.1  # between two steps
RETRY_S: Final = 5.0
JOIN_S_MAX: Final = 5.0


class Advancing:
    """Of one store. Safe from several threads."""

    def __init__(self, settings: PostgresSettings) -> None:
        self.bytes_read = 0  # by the server, for longer ways
        self._settings = dataclasses.replace(settings, statement_timeout_s=STEP_S_MAX)
        self._changed = threading.Condition()
        self._wanted = self._reached = 0
        self._error: RoskvaError | None = None
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._may_read_s = 0.0
        self._closed = threading.Event()

    def takes(self, wanted: int, anchor: Anchor) -> bool:
        """Whether the slot is brought to this LSN from here, now or later. Not if it is near: then whoever asks does it.

        Raises what has gone wrong since it was asked last; it is tried again all the same.
        """
        with self._changed:
            if self._thread is None:
                if wanted - anchor.restart <= STEP_BYTES or self._closed.is_set():
                    return False
                self._reached = anchor.confirmed
                self._thread = threading.Thread(target=self._run, name="advancing", daemon=True)
                self._thread.start()
            self._wanted = max(self._wanted, wanted)
            self._changed.wait_for(lambda: self._thread is None or self._error is not None or self._reached >= wanted, PATIENCE_S)
            error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def close(self) -> None:
        """Where the slot is by then, it stays."""
        self._closed.set()
        with self._changed:
            thread, connection = self._thread, self._connection
        if connection is not None:
            with suppress(psycopg2.Error):
                connection.cancel()
        if thread is not None:
            thread.join(JOIN_S_MAX)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                with closing(connect(self._settings)) as connection, connection.cursor() as cursor:
                    self._connection = connection
                    while not self._is_there(cursor):
                        pass
                    return
            except (RoskvaError, psycopg2.Error) as error:
                self._failed(error)
            finally:
                self._connection = None
            self._closed.wait(RETRY_S)
        self._end()

    def _is_there(self, cursor: Any) -> bool:
        """One step. True: nothing is left to do."""
        if self._closed.wait(max(0.0, self._may_read_s - time.monotonic())):
            self._end()
            return True
        anchor = anchor_of(cursor, self._settings.slot)
        with self._changed:
            wanted, self._reached = self._wanted, anchor.confirmed
            if anchor.confirmed >= wanted or not anchor.readable:
                self._end()
                return True
        step = max(STEP_BYTES, anchor.confirmed - anchor.restart)
        upto = min(wanted, anchor.confirmed + step)
        advance(cursor, self._settings, upto)
        read = upto - anchor.restart
        self.bytes_read += read
        self._may_read_s = time.monotonic() + max(PAUSE_S_MIN, read / self._settings.advance_bytes_per_s)
        with self._changed:
            self._reached = upto
            if upto >= self._wanted:
                self._end()
            self._changed.notify_all()
            return self._thread is None

    def _end(self) -> None:
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _failed(self, error: Exception) -> None:
        if self._closed.is_set():
            return
        told = error if isinstance(error, RoskvaError) else named(self._settings, error, f"moving the slot {self._settings.slot!r}")
        log.warning("The log that nobody needs any more is not let go, and it is tried again in %.0f s: %s", RETRY_S, told)
        with self._changed:
            self._error = told
            self._changed.notify_all()

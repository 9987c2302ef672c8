"""Reads the log over Postgres' replication protocol, through psycopg2: one connection, one temporary copy of the anchor slot.

Whatever a reader tells the server about its progress concerns its copy alone, which ends with it: so it may confirm all that it has
received, and the copy holds no more of the log than it needs. A server that is shut down waits until its readers have confirmed what it
sent. A reader that is not read for `wal_sender_timeout` (a minute, if nobody changed it) is cut off, and another one must be opened.

How far the log was read: every message of the server, a keepalive too, says an LSN below which every commit was sent before it. A quiet
table's flows move on with it, and with them the anchor.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg2

from roskva.capture.interface import Batch
from roskva.capture.positions import Position
from roskva.capture.stores.postgres.connecting import PostgresSettings, connect, named, quoted
from roskva.capture.stores.postgres.decoding import POSTGRES_EPOCH_US, Decoder
from roskva.capture.stores.postgres.slots import anchor_of, check_readable
from roskva.capture.stores.postgres.timelines import Timelines, first_needed, lsn_from_text, timelines_from_history
from roskva.capture.updates import Change
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, RoskvaError, WrongHistory

log = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 4 << 20  # of messages, one message aside; then the batch is handed out, whatever it holds
CONFIRMS_EVERY_S: Final = 1.0  # at least, while messages come
CONFIRMS_IDLE_S: Final = 0.1  # when there are none, so that a server that waits for it to stop waits no longer
LOOKS_EVERY: Final = 1024  # messages, at the clock
SEARCH_LOOKS_EVERY_S: Final = 0.2  # whether nobody waits for it any more
# What the server may say to a reader whose log it has given up. It says the same for other reasons: the anchor knows.
_MAY_BE_CUT: Final = ("55000", "57P01", "58P01")  # not in the right state, told to end, no such file
_BEGIN: Final = struct.Struct(">xQq")


def identify(cursor: Any) -> tuple[str, Timelines, int]:
    """The server's identifier, its timelines, and where its log ends. On a connection for replication."""
    cursor.execute("IDENTIFY_SYSTEM")
    system, timeline, end, _ = cursor.fetchone()
    timelines = Timelines(timeline)
    if timeline > 1:
        with suppress(psycopg2.errors.UndefinedFile):  # removed by hand: then positions of earlier timelines are not known here
            cursor.execute(f"TIMELINE_HISTORY {timeline:d}")
            _, content = cursor.fetchone()
            timelines = timelines_from_history(timeline, content if isinstance(content, str) else bytes(content).decode(errors="replace"))
    return str(system), timelines, lsn_from_text(end)


class Stream:
    """The server's messages from a position on."""

    def __init__(self, settings: PostgresSettings, identity: str, position: Position) -> None:
        self._settings = settings
        self._confirmed = 0
        self._confirmed_s = time.monotonic()
        self._connection = connect(settings, replication=True)
        try:
            self.cursor = self._connection.cursor()
            system, self.timelines, self.end = identify(self.cursor)
            anchor = anchor_of(self.cursor, settings.slot)
            self.database, self.standby = anchor.here, anchor.in_recovery
            if identity != identity_of(system, anchor.here):
                raise WrongHistory(position, f"the server is now {identity_of(system, anchor.here)}, and was {identity}")
            check_readable(anchor, settings, self._connection.server_version)
            self.timelines.check(position, self.end)
            if not anchor.readable:
                raise LogCut(position, self.timelines.before(self.end))
            self._begin(position)
        except psycopg2.Error as error:
            self._connection.close()
            raise named(settings, error, "opening a reader") from None
        except BaseException:
            self._connection.close()
            raise
        self._polling = select.poll()
        self._polling.register(self._connection.fileno(), select.POLLIN)
        # Of our own, so that no other thread ever touches a number that libpq has closed and somebody else has got.
        self._socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        self._closing = threading.Lock()

    def _begin(self, position: Position) -> None:
        settings, cursor = self._settings, self.cursor
        copy = f"{settings.slot}_reader_{self._connection.info.backend_pid}"
        cursor.execute("SELECT lsn::text FROM pg_copy_logical_replication_slot(%s, %s, true)", (settings.slot, copy))
        # The anchor may have moved since it was looked at; the copy does not.
        begins = lsn_from_text(cursor.fetchone()[0])
        needed = first_needed(position)
        if needed < begins:
            raise LogCut(position, self.timelines.before(begins))
        if self._connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            # Whatever bytes it holds are text to it, and none to the server's check for UTF-8, at which the stream would end for ever.
            cursor.execute("SET client_encoding TO 'SQL_ASCII'")
        cursor.start_replication(
            slot_name=copy,
            start_lsn=needed,
            decode=False,
            options={"proto_version": "1", "publication_names": quoted(settings.publication), "messages": "true"},
        )

    def wait(self, until_s: float) -> bool:
        """Until there may be something to read. False: the time is over."""
        left_s = until_s - time.monotonic()
        if left_s <= 0.0:
            return False
        self.confirm(CONFIRMS_IDLE_S)
        if self.cursor.wal_end > self._confirmed:
            left_s = min(left_s, CONFIRMS_IDLE_S)
        self._polling.poll(max(1.0, left_s * 1000.0))
        return True

    def confirm(self, every_s: float) -> None:
        """Tells the server, but not more often than this, that all it has sent was received."""
        now_s, received = time.monotonic(), self.cursor.wal_end
        if received > self._confirmed and now_s - self._confirmed_s >= every_s:
            self.cursor.send_feedback(write_lsn=received, flush_lsn=received, apply_lsn=received, force=True)
            self._confirmed, self._confirmed_s = received, now_s

    def interrupt(self) -> None:
        """From any thread: whoever waits in here finds the connection closed."""
        with self._closing, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._socket.close()
        self._connection.close()


def identity_of(system: str, database: str) -> str:
    return f"{system}/{database}"


class PostgresReader:
    """`oldest` answers from where the log can be read, `primary_key` a table's, `promoted` whether a standby is none any more, `is_gap` as
    the decoder asks it."""

    def __init__(
        self,
        settings: PostgresSettings,
        identity: str,
        position: Position,
        oldest: Callable[[], Position],
        primary_key: Callable[[int], tuple[str, ...]],
        promoted: Callable[[], bool],
        is_gap: Callable[[bytes], bool],
    ) -> None:
        self._settings = settings
        self._oldest = oldest
        self._promoted = promoted
        self._stream = Stream(settings, identity, position)
        self._decoder = Decoder(self._stream.database, self._stream.timelines, position, primary_key, settings.message_prefix, is_gap)
        self._pending: list[Change] = []  # what one message brought beyond the batch: a TRUNCATE of many tables
        self._handed_out = position
        self._lock = threading.Lock()  # `close` comes from any thread
        self._closed = False

    def read(self, changes_max: int, timeout_s: float) -> Batch:
        with self._lock:
            if self._closed:
                raise DatastoreUnavailable(f"This reader of {self._settings.place} is closed.")
            try:
                return self._read(max(1, changes_max), timeout_s)
            except BaseException as error:
                self._end()
                if isinstance(error, psycopg2.Error):
                    raise self._named(error) from None
                if isinstance(error, LookupError | ValueError | struct.error):
                    what = f"What {self._settings.place} sent after {self._handed_out} cannot be decoded"
                    raise CaptureRefused(f"{what}: {type(error).__name__}: {error}.") from error
                raise

    def _read(self, changes_max: int, timeout_s: float) -> Batch:
        stream, decoder, out = self._stream, self._decoder, self._pending
        self._stop_at_a_gap()
        cursor = stream.cursor
        read_message, feed = cursor.read_message, decoder.feed
        until_s = time.monotonic() + timeout_s
        bytes_read = messages = 0
        while len(out) < changes_max and bytes_read < BATCH_BYTES_MAX:
            message = read_message()
            if message is None:
                decoder.passed(cursor.wal_end)
                # The rest of a transaction is on its way: whoever reads is spared a batch for each row.
                if (out and not decoder.in_transaction) or not stream.wait(until_s):
                    break
                continue
            payload = message.payload
            bytes_read += len(payload)
            if payload[0] == 0x4D:
                feed(payload, _sent_us(message), out)
                if decoder.gap is not None:
                    break  # what came before it is handed out first
            else:
                feed(payload, 0, out)
            messages += 1
            if messages % LOOKS_EVERY == 0:
                stream.confirm(CONFIRMS_EVERY_S)
                if time.monotonic() > until_s:
                    break
        stream.confirm(CONFIRMS_EVERY_S)
        decoder.passed(cursor.wal_end)
        if stream.standby and self._promoted():
            # What was read may be of the new timeline, and would be named as of the old one.
            raise DatastoreUnavailable(f"{self._settings.place} was promoted: its log goes on under another timeline.")
        self._pending = out[changes_max:]
        if self._pending:
            del out[changes_max:]
        self._handed_out = out[-1].position if self._pending else decoder.reached
        return Batch(out, self._handed_out, bytes_read)

    def _stop_at_a_gap(self) -> None:
        gap = self._decoder.gap
        if gap is not None:
            log.warning("%s: a table was not published for a while; what changed before %s is missing.", self._settings.place, gap)
            raise LogCut(self._handed_out, gap)

    def _named(self, error: Exception) -> RoskvaError:
        with suppress(RoskvaError):
            if getattr(error, "pgcode", None) in _MAY_BE_CUT and (oldest := self._oldest()) > self._handed_out:
                return LogCut(self._handed_out, oldest)
        return named(self._settings, error, f"reading after {self._handed_out}")

    def _end(self) -> None:
        self._closed = True
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._stream.interrupt()
        with self._lock:
            self._end()


def _sent_us(message: Any) -> int:
    return int(message.send_time.timestamp() * 1_000_000)


def before_time(
    settings: PostgresSettings, identity: str, oldest: Position, time_us: int, search_s_max: float, closed: Callable[[], bool]
) -> Position:
    """The last position before the first commit at this time or later. Only commits are looked at, but all of the log comes by.

    When the search takes too long, it answers how far it came: all up to there is older. It ends soon after `closed` says so.
    """
    stream = Stream(settings, identity, oldest)
    try:
        until_s = time.monotonic() + search_s_max
        found = oldest
        messages = 0
        while stream.cursor.wal_end < stream.end:
            message = stream.cursor.read_message()
            messages += 1
            if (message is None or messages % LOOKS_EVERY == 0) and closed():
                raise DatastoreUnavailable(f"The search of a time in the log of {settings.place} was given up: the datastore is closed.")
            if message is None:
                if not stream.wait(min(until_s, time.monotonic() + SEARCH_LOOKS_EVERY_S)) and time.monotonic() >= until_s:
                    break
                continue
            if messages % LOOKS_EVERY == 0 and time.monotonic() > until_s:
                break
            payload = message.payload
            if payload[0] == 0x42:
                sequence, committed = _BEGIN.unpack_from(payload)
                found = max(oldest, stream.timelines.before(sequence))
                if committed + POSTGRES_EPOCH_US >= time_us:
                    return found
        else:
            found = max(found, stream.timelines.before(stream.end))
        return found
    except psycopg2.Error as error:
        raise named(settings, error, "searching for a time") from None
    finally:
        stream.close()

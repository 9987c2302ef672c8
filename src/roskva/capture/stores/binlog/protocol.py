"""Talking to the server: statements over pymysql, and its binary log over the same kind of connection, as a replica reads it.

To the server every reader is a replica that has never registered: it has a server id of its own, drawn by lot from the upper half of the
numbers, since the server ends an older connection of the same id. The connection is pymysql's up to COM_BINLOG_DUMP; from then on its
socket is read here, in large pieces, since only events come. Everything that goes wrong leaves this module under a name of roskva.errors.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

import pymysql

from roskva.capture.stores.binlog.settings import ServerSettings
from roskva.errors import CaptureRefused, DatastoreUnavailable

COM_BINLOG_DUMP: Final = 0x12
NON_BLOCKING: Final = 1  # the server ends the stream at the log's end
LOG_FATAL: Final = 1236  # the server cannot send the log from there on, or not any more
ANSWER_S_MIN: Final = 30.0  # that a statement may take; the list of a log of many files is not quick
RECEIVE_BYTES: Final = 256 * 1024
FILE_BEGINNING: Final = 4  # the first event stands after four bytes
_PACKET_BYTES_MAX: Final = 0xFFFFFF  # a longer payload goes on in the next packet
# Access denied, to a database, to a table, for want of a right; unknown user or plugin; a password has run out; a wrong statement for it;
# an account that is locked; a connection that must be encrypted.
_REFUSALS: Final = frozenset((1044, 1045, 1130, 1141, 1142, 1143, 1227, 1251, 1381, 1524, 1698, 1820, 1862, 3118, 3159))

Answer = TypeVar("Answer")


class LogRefused(Exception):
    """Error 1236: whoever asked for the log knows what that means for the place where it wanted to begin."""


class Start(NamedTuple):
    """A place in one server's log: after a GTID, or in a file."""

    file: str
    gtid: str = ""  # in this file, as MariaDB takes it; empty: `offset` counts
    sequence: int = 0  # of the last group before it
    offset: int = FILE_BEGINNING


class Session:
    """A connection for statements."""

    def __init__(self, connection: Any, settings: ServerSettings) -> None:
        self._connection = connection
        self._settings = settings

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with named_errors(self._settings), self._connection.cursor() as cursor:
            cursor.execute(statement, tuple(values))
            return list(cursor.fetchall())

    def variable(self, name: str) -> str:
        """Of the server; empty if it has none of this name."""
        found = self.rows("SHOW GLOBAL VARIABLES LIKE %s", (name.replace("_", r"\_"),))
        return str(found[0][1]) if found else ""

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()


@contextmanager
def named_errors(settings: ServerSettings) -> Iterator[None]:
    try:
        yield
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        raise named(code, str(error.args[-1] if error.args else error), settings) from error
    except (OSError, RuntimeError, EOFError) as error:
        raise DatastoreUnavailable(f"The {settings.engine} server at {settings.where} does not answer: {error}.") from error


def named(code: int, text: str, settings: ServerSettings) -> Exception:
    text = text[:300].rstrip(".")
    if code in _REFUSALS:
        return CaptureRefused(f"The {settings.engine} server at {settings.where} refuses {settings.user}: {text}.")
    if code == LOG_FATAL:
        return LogRefused(text)
    return DatastoreUnavailable(f"The {settings.engine} server at {settings.where} does not answer: {text} ({code}).")


@contextmanager
def session(settings: ServerSettings) -> Iterator[Session]:
    found = Session(_connect(settings), settings)
    try:
        yield found
    finally:
        found.close()


class Sessions:
    """One session is kept for whoever asks next; who asks meanwhile gets one that is not kept. Safe from several threads."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._kept: list[Session] = []
        self._closed = False

    def ask(self, question: Callable[[Session], Answer]) -> Answer:
        """Once more with a new session if one that was kept does not answer: it may have been idle for too long."""
        with self._lock:
            kept = self._kept.pop() if self._kept else None
        if kept is not None:
            with suppress(DatastoreUnavailable):
                return self._ask(kept, question)
        return self._ask(Session(_connect(self._settings), self._settings), question)

    def _ask(self, session: Session, question: Callable[[Session], Answer]) -> Answer:
        try:
            answer = question(session)
        except BaseException:
            session.close()
            raise
        with self._lock:
            keeps = not self._kept and not self._closed
            if keeps:
                self._kept.append(session)
        if not keeps:
            session.close()
        return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for session in kept:
            session.close()


def _connect(settings: ServerSettings) -> Any:
    place = {"unix_socket": settings.unix_socket} if settings.unix_socket else {"host": settings.host, "port": settings.port}
    patience_s = max(ANSWER_S_MIN, settings.connect_timeout_s)
    with named_errors(settings):
        tls = {"ssl": ssl.create_default_context(cafile=settings.tls_ca)} if settings.tls_ca else {}
        return pymysql.connect(
            user=settings.user,
            password=settings.password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=settings.connect_timeout_s,
            read_timeout=patience_s,
            write_timeout=patience_s,
            program_name="roskva capture",
            **place,
            **tls,
        )


class Dump:
    """The server's log from a place on: the bytes of its events. Belongs to one thread, but for `interrupt`."""

    def __init__(self, settings: ServerSettings, start: Start, blocking: bool = True) -> None:
        self._settings = settings
        self._buffer = bytearray()
        self._parts: list[bytes] = []  # of a payload of several packets
        self._ended = False
        self._error: Exception | None = None  # that the server has sent behind the events that are still to be taken
        self.bytes_read = 0
        self._connection = _connect(settings)
        try:
            self._request(start, blocking)
        except BaseException:
            self._connection._force_close()
            raise
        self._socket: socket.socket = self._connection._sock
        self._timeout_s: float | None = None

    def _request(self, start: Start, blocking: bool) -> None:
        period_ns = int(self._settings.heartbeat_s * 1e9)
        commands = [  # under the names of all servers: each passes over those that it does not know
            # Sums come as they stand in the log, and are looked at.
            "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum",
            "SET @mariadb_slave_capability = 4",  # GTIDs are understood, and nothing need be rewritten for us
            f"SET @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns}",
        ]
        if start.gtid:
            # Not strict: a sequence number that was never given is no error, reading begins after the place where it would be.
            commands += [
                f"SET @slave_connect_state = '{start.gtid}'",
                "SET @slave_gtid_strict_mode = 0",
                "SET @slave_gtid_ignore_duplicates = 0",
            ]
        with named_errors(self._settings), self._connection.cursor() as cursor:
            for command in commands:
                cursor.execute(command)
            server_id = 2**31 + secrets.randbelow(2**31 - 1)
            flags = 0 if blocking else NON_BLOCKING
            payload = (
                start.offset.to_bytes(4, "little")
                + flags.to_bytes(2, "little")
                + server_id.to_bytes(4, "little")
                + (b"" if start.gtid else start.file.encode())
            )
            self._connection._execute_command(COM_BINLOG_DUMP, payload)

    def events(self, timeout_s: float) -> list[bytes] | None:
        """What has come, once something has; none after the time; None at the end of a log that is not waited for."""
        found = self._whole()
        if not found and not self._ended and self._error is None:
            self._receive(timeout_s)
            found = self._whole()
        if found:
            return found
        if self._error is not None:
            raise self._error
        return None if self._ended else found

    def _receive(self, timeout_s: float) -> None:
        try:
            wait_s = max(timeout_s, 0.001)
            if wait_s != self._timeout_s:
                self._socket.settimeout(wait_s)
                self._timeout_s = wait_s
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            return
        except (OSError, ValueError) as error:
            where = f"the {self._settings.engine} server at {self._settings.where}"
            raise DatastoreUnavailable(f"The connection to {where} was lost: {error}.") from error
        if not data:
            raise DatastoreUnavailable(f"The {self._settings.engine} server at {self._settings.where} has ended the connection.")
        self.bytes_read += len(data)
        self._buffer += data

    def _whole(self) -> list[bytes]:
        """The events in the buffer, which keeps the beginning of the next."""
        buffer, at = self._buffer, 0
        size = len(buffer)
        found: list[bytes] = []
        with memoryview(buffer) as view:
            while size - at >= 4:
                length = int.from_bytes(view[at : at + 3], "little")
                if self._settings.event_bytes_max < length + sum(map(len, self._parts)):
                    raise CaptureRefused(
                        f"The log has an event of more than {self._settings.event_bytes_max:,} bytes, which is the setting event_bytes_max."
                    )
                end = at + 4 + length
                if end > size:
                    break
                if length == _PACKET_BYTES_MAX or self._parts:
                    self._parts.append(bytes(view[at + 4 : end]))
                    if length < _PACKET_BYTES_MAX:
                        self._payload(b"".join(self._parts), found)
                        self._parts = []
                elif view[at + 4] == 0:
                    found.append(bytes(view[at + 5 : end]))
                else:
                    self._payload(bytes(view[at + 4 : end]), found)
                at = end
        del buffer[:at]
        return found

    def _payload(self, payload: bytes, found: list[bytes]) -> None:
        if payload[:1] == b"\0":
            found.append(payload[1:])
        elif payload[:1] == b"\xff":
            code = int.from_bytes(payload[1:3], "little")
            text = payload[3:].decode(errors="replace")
            self._error = named(code, text[6:] if text.startswith("#") else text, self._settings)
        else:
            self._ended = True

    def interrupt(self) -> None:
        """From any thread: who waits for events is woken, and told that the connection is lost."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """By the thread that reads: nothing is left open."""
        self.interrupt()
        with suppress(Exception):
            self._connection._force_close()

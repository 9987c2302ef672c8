"""The datastore over one server's binary log: everything that `capture` asks of a log, for MariaDB and MySQL.

Nothing in the server keeps the log for us: it drops files by age (binlog_expire_logs_seconds) or when it is told to. `confirm` therefore
only remembers, for the figures of `retained`. Readers are as many as are wanted; each is a connection of its own.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import floor
from typing import Any, Final, Generic, TypeVar

from roskva.capture.interface import Finding, Retained
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.stores.binlog.decoding import FORMAT, Decoder, header_of
from roskva.capture.stores.binlog.describing import codecs_of, described
from roskva.capture.stores.binlog.files import Files, Given
from roskva.capture.stores.binlog.protocol import Dump, LogRefused, Session, Sessions, Start
from roskva.capture.stores.binlog.reading import SILENT_HEARTBEATS, BinlogReader
from roskva.capture.stores.binlog.tables import Described
from roskva.errors import DatastoreUnavailable, LogCut

SCAN_WAIT_S: Final = 30.0  # for the next piece of a log that is read to its end

Answer = TypeVar("Answer")
Log = TypeVar("Log", bound=Files[Any, Any])


class BinlogStore(ABC, Generic[Log, Given]):
    """A `Datastore`. Safe from several threads: calls that meet have connections of their own, and so has every reader."""

    def __init__(self, settings: Given) -> None:
        self.settings = settings
        self._sessions = Sessions(settings)
        self._lock = threading.Lock()
        self._readers: set[BinlogReader] = set()
        self._codecs: dict[int, str | None] = {}
        self._confirmed: Position | None = None
        self._closed = False

    @property
    @abstractmethod
    def identity(self) -> str: ...

    @abstractmethod
    def read_after(self, position: Position) -> BinlogReader: ...

    @abstractmethod
    def check(self) -> list[Finding]: ...

    @abstractmethod
    def _log(self, statements: Session) -> Log:
        """A look at it."""

    @abstractmethod
    def _group_of(self, event: bytes) -> int | None:
        """The sequence number, if this event begins a group."""

    @abstractmethod
    def _whole_up_to(self, file: str) -> int | None:
        """Of a file of the log, whose reading begins: the last group that is whole in it. None: all are."""

    def retained(self) -> Retained:
        return self._look(self._retained)

    def _retained(self, log: Log) -> Retained:
        oldest, end = log.oldest, log.end
        confirmed = self._confirmed
        confirmed = None if confirmed is None or confirmed.sequence > end.sequence else max(confirmed, oldest)
        behind = None if confirmed is None else log.bytes_after(confirmed)
        # Once files were dropped, what is there is what is kept; before that the log grows, and there is no limit yet.
        return Retained(oldest, end, behind, log.bytes if oldest.sequence else None, confirmed, log.bytes)

    def _reader(self, dump: Dump, decoder: Decoder) -> BinlogReader:
        silence_s_max = SILENT_HEARTBEATS * self.settings.heartbeat_s
        reader = BinlogReader(dump, decoder, silence_s_max, self._whole_up_to, self._meaning, self._forget)
        with self._lock:
            self._readers.add(reader)
            closed = self._closed
        if closed:
            reader.close()
            raise DatastoreUnavailable("The datastore was closed.")
        return reader

    def at_time(self, time_s: float) -> Position:
        """The clock of the server, to the second. An event has the time at which its statement began: hence `statement_s_max`."""
        return self._look(lambda log: self._at_time(log, floor(time_s - self.settings.statement_s_max)))

    def _at_time(self, log: Log, time_s: int) -> Position:
        low, high = -1, len(log.files) - 1
        while low < high:  # the last file that began before that time
            middle = (low + high + 1) // 2
            if self._began_s(log.files[middle][0]) < time_s:
                low = middle
            else:
                high = middle - 1
        if low < 0:
            if log.oldest.sequence:
                raise LogCut(f"the time {time_s}", log.oldest)
            return BEGINNING
        return self._in_file(log, low, time_s)

    def _began_s(self, file: str) -> int:
        def first(events: list[bytes]) -> int | None:
            stamps = [stamp for stamp, kind in map(header_of, events) if kind == FORMAT]
            return stamps[0] if stamps else None

        return self._scan(Start(file), first) or 0

    def _in_file(self, log: Log, place: int, time_s: int) -> Position:
        """The last commit of the file before the first that is not older."""
        last = log.begins(place).sequence
        whole_up_to = log.whole_up_to(log.files[place][0])

        def younger(events: list[bytes]) -> bool | None:
            nonlocal last
            for event in events:
                sequence = self._group_of(event)
                if sequence is not None:
                    stamp, _ = header_of(event)
                    if stamp >= time_s or sequence > (whole_up_to or log.end.sequence):
                        return True
                    last = max(last, sequence)
            return None

        self._scan(Start(log.files[place][0]), younger)
        return log.position(last) if last else BEGINNING

    def _scan(self, start: Start, look: Callable[[list[bytes]], Answer | None]) -> Answer | None:
        """From there until `look` has an answer, or the log ends. LogRefused: the server cannot read it."""
        dump = Dump(self.settings, start, blocking=False)
        try:
            while (events := dump.events(SCAN_WAIT_S)) is not None:
                if not events:
                    continue
                answer = look(events)
                if answer is not None:
                    return answer
            return None
        finally:
            dump.release()

    def confirm(self, position: Position) -> None:
        """Nothing in the server is kept for us, so nothing need be let go."""
        self._confirmed = position

    def prepare(self) -> None:
        """There is nothing to create. A server that cannot be read is refused here already."""
        self._look(lambda log: log.oldest)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        self._sessions.close()

    def _meaning(self, position: Position, refused: LogRefused) -> Exception:
        """What error 1236 means for whoever wanted to read on from there."""
        try:
            self._look(lambda log: log.start_after(position))
        except Exception as error:
            return error
        return DatastoreUnavailable(f"The {self.settings.engine} server at {self.settings.where} cannot read its log: {refused}.")

    def _forget(self, reader: BinlogReader) -> None:
        with self._lock:
            self._readers.discard(reader)

    def _describe(self, database: str, table: str) -> Described | None:
        return self._sessions.ask(lambda statements: described(statements, database, table))

    def _look(self, ask: Callable[[Log], Answer]) -> Answer:
        if self._closed:
            raise DatastoreUnavailable("The datastore was closed.")
        return self._sessions.ask(lambda statements: self._asked(statements, ask))

    def _asked(self, statements: Session, ask: Callable[[Log], Answer]) -> Answer:
        try:
            log = self._log(statements)
            if not self._codecs:
                self._codecs = codecs_of(statements)
            return ask(log)
        except LogRefused as error:
            where = f"The {self.settings.engine} server at {self.settings.where}"
            raise DatastoreUnavailable(f"{where} cannot show its log: {error}.") from error

"""The MariaDB datastore: everything that `capture` asks of a log, over one server's binary log.

Nothing in the server keeps the log for us: it drops files by age (binlog_expire_logs_seconds) or when it is told to. `confirm` therefore
only remembers, for the figures of `retained`. Readers are as many as are wanted; each is a connection of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import floor
from typing import Final, TypeVar

from roskva.capture.interface import Finding, Memory, Retained
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.stores.mariadb.checking import check_server
from roskva.capture.stores.mariadb.decoding import FORMAT, GTID, INCIDENT, ROTATE, Decoder, header_of, rotated_to, sequence_of
from roskva.capture.stores.mariadb.describing import codecs_of, described
from roskva.capture.stores.mariadb.forks import history_of
from roskva.capture.stores.mariadb.locating import Log, Remembered
from roskva.capture.stores.mariadb.protocol import Dump, LogRefused, Session, Sessions, Start
from roskva.capture.stores.mariadb.reading import SILENT_HEARTBEATS, MariadbReader
from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.capture.stores.mariadb.tables import Described
from roskva.capture.stores.mariadb.witness import Witness
from roskva.errors import DatastoreUnavailable, LogCut, Unavailable

SCAN_WAIT_S: Final = 30.0  # for the next piece of a log that is read to its end

Answer = TypeVar("Answer")


class MariadbStore:
    """A `Datastore`. Safe from several threads: calls that meet have connections of their own, and so has every reader."""

    def __init__(self, settings: MariadbSettings) -> None:
        self.settings = settings
        self._sessions = Sessions(settings)
        self._remembered = Remembered()
        self._witness = Witness()
        self._lock = threading.Lock()
        self._readers: set[MariadbReader] = set()
        self._codecs: dict[int, str | None] = {}
        self._confirmed: Position | None = None
        self._closed = False

    def remember_in(self, memory: Memory) -> None:
        self._witness.memory = memory

    def keep(self) -> None:
        self._witness.keep()

    @property
    def identity(self) -> str:
        return f"mariadb/{self.settings.dataset}/{self.settings.domain}"

    def retained(self) -> Retained:
        return self._look(self._retained)

    def _retained(self, log: Log) -> Retained:
        oldest, end = log.oldest, log.end
        confirmed = self._confirmed
        confirmed = None if confirmed is None or confirmed.sequence > end.sequence else max(confirmed, oldest)
        behind = None if confirmed is None else log.bytes_after(confirmed)
        # Once files were dropped, what is there is what is kept; before that the log grows, and there is no limit yet.
        return Retained(oldest, end, behind, log.bytes if oldest.sequence else None, confirmed, log.bytes)

    def read_after(self, position: Position) -> MariadbReader:
        start, end_before = self._look(lambda log: (log.start_after(position), log.ends_before(position)))
        if end_before is not None and self._ends_with_a_loss(end_before):
            raise LogCut(position, Position(position.history, position.sequence + 1, 0))
        decoder = Decoder(
            position, self.settings.domain, self._codecs, self._describe, self.settings.prepared_xa_counts, start.sequence, self._witness
        )
        silence_s_max = SILENT_HEARTBEATS * self.settings.heartbeat_s
        reader = MariadbReader(Dump(self.settings, start), decoder, silence_s_max, self._whole_up_to, self._meaning, self._forget)
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

    def _ends_with_a_loss(self, start: Start) -> bool:
        """Whether the server has written, at the end of this file, that it could not log something."""

        def incident(events: list[bytes]) -> bool | None:
            for event in events:
                _, kind = header_of(event)
                if kind == INCIDENT:
                    return True
                if kind == ROTATE and rotated_to(event) != start.file:
                    return False
            return None

        try:
            return self._scan(start, incident) or False
        except LogRefused:
            return False  # a crash has cut it in the middle of an event: that was the end

    def _in_file(self, log: Log, place: int, time_s: int) -> Position:
        """The last commit of the file before the first that is not older."""
        last = log.begins(place).sequence
        whole_up_to = log.whole_up_to(log.files[place][0])

        def younger(events: list[bytes]) -> bool | None:
            nonlocal last
            for event in events:
                stamp, kind = header_of(event)
                if kind == GTID:
                    if stamp >= time_s or sequence_of(event) > (whole_up_to or log.end.sequence):
                        return True
                    last = max(last, sequence_of(event))
            return None

        self._scan(Start(log.files[place][0]), younger)
        return Position(history_of(log.forks, last), last) if last else BEGINNING

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

    def check(self) -> list[Finding]:
        return check_server(self.settings)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            readers = list(self._readers)
        for reader in readers:
            reader.close()
        self._sessions.close()

    def _whole_up_to(self, file: str) -> int | None:
        return self._look(lambda log: log.whole_up_to(file))

    def _meaning(self, position: Position, refused: LogRefused) -> Exception:
        """What error 1236 means for whoever wanted to read on from there."""
        try:
            self._look(lambda log: log.start_after(position))
        except Exception as error:
            return error
        return DatastoreUnavailable(f"The MariaDB server at {self.settings.where} cannot read its log: {refused}.")

    def _forget(self, reader: MariadbReader) -> None:
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
            log = Log(statements, self.settings, self._remembered, self._witness)
            if not self._codecs:
                self._codecs = codecs_of(statements)
            return ask(log)
        except LogRefused as error:
            raise DatastoreUnavailable(f"The MariaDB server at {self.settings.where} cannot show its log: {error}.") from error
        except DatastoreUnavailable:
            raise
        except Unavailable as error:  # of the memory
            raise DatastoreUnavailable(
                f"What is remembered of the log at {self.settings.where} cannot be read or kept now: {error}"
            ) from error

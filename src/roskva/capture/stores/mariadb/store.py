"""The MariaDB datastore: the one over a binary log, whose positions may be of several histories, since numbers may be given twice."""

from __future__ import annotations

from collections.abc import Callable

from roskva.capture.interface import Finding, Memory
from roskva.capture.positions import Position
from roskva.capture.stores.binlog.decoding import INCIDENT, ROTATE, header_of, rotated_to
from roskva.capture.stores.binlog.files import Remembered
from roskva.capture.stores.binlog.protocol import Dump, LogRefused, Session, Start
from roskva.capture.stores.binlog.reading import BinlogReader
from roskva.capture.stores.binlog.store import Answer, BinlogStore
from roskva.capture.stores.mariadb.checking import CheckingMariadb
from roskva.capture.stores.mariadb.decoding import GTID, MariadbDecoder, sequence_of
from roskva.capture.stores.mariadb.locating import Log, Servers
from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.capture.stores.mariadb.witness import Witness
from roskva.errors import DatastoreUnavailable, LogCut, Unavailable


class MariadbStore(BinlogStore[Log, MariadbSettings]):
    def __init__(self, settings: MariadbSettings) -> None:
        super().__init__(settings)
        self._remembered = Remembered[Servers]()
        self._witness = Witness()

    def remember_in(self, memory: Memory) -> None:
        self._witness.memory = memory

    def keep(self) -> None:
        self._witness.keep()

    @property
    def identity(self) -> str:
        return f"mariadb/{self.settings.dataset}/{self.settings.domain}"

    def read_after(self, position: Position) -> BinlogReader:
        start, end_before = self._look(lambda log: (log.start_after(position), log.ends_before(position)))
        if end_before is not None and self._ends_with_a_loss(end_before):
            raise LogCut(position, Position(position.history, position.sequence + 1, 0))
        given = self.settings
        decoder = MariadbDecoder(
            position, given.domain, self._codecs, self._describe, given.prepared_xa_counts, start.sequence, self._witness
        )
        return self._reader(Dump(given, start), decoder)

    def check(self) -> list[Finding]:
        return CheckingMariadb(self.settings).all()

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

    def _log(self, statements: Session) -> Log:
        return Log(statements, self.settings, self._remembered, self._witness)

    def _group_of(self, event: bytes) -> int | None:
        _, kind = header_of(event)
        return sequence_of(event) if kind == GTID else None

    def _whole_up_to(self, file: str) -> int | None:
        return self._look(lambda log: log.whole_up_to(file))

    def _asked(self, statements: Session, ask: Callable[[Log], Answer]) -> Answer:
        try:
            return super()._asked(statements, ask)
        except DatastoreUnavailable:
            raise
        except Unavailable as error:  # of the memory
            raise DatastoreUnavailable(
                f"What is remembered of the log at {self.settings.where} cannot be read or kept now: {error}"
            ) from error

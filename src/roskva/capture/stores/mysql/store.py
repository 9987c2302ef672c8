"""The MySQL datastore: the one over a binary log, whose positions are numbers of one source of GTIDs."""

from __future__ import annotations

from uuid import UUID

from roskva.capture.interface import Finding, Retained
from roskva.capture.positions import Position
from roskva.capture.stores.binlog.decoding import header_of
from roskva.capture.stores.binlog.files import Remembered
from roskva.capture.stores.binlog.protocol import Dump, LogRefused, Session
from roskva.capture.stores.binlog.reading import BinlogReader
from roskva.capture.stores.binlog.store import BinlogStore
from roskva.capture.stores.mysql.checking import CheckingMysql
from roskva.capture.stores.mysql.decoding import GTID, MysqlDecoder, gtid_of
from roskva.capture.stores.mysql.gtids import Gtids, Listed
from roskva.capture.stores.mysql.locating import Log
from roskva.capture.stores.mysql.marks import Marks
from roskva.capture.stores.mysql.settings import MysqlSettings


class MysqlStore(BinlogStore[Log, MysqlSettings]):
    def __init__(self, settings: MysqlSettings) -> None:
        super().__init__(settings)
        self._remembered = Remembered[Listed]()
        self._marks = Marks()
        self._known_source = settings.source  # empty: not asked for yet

    @property
    def identity(self) -> str:
        """With the source: its numbers mean nothing of another one."""
        return f"mysql/{self.settings.dataset}/{self._source}"

    @property
    def _source(self) -> str:
        return self._known_source or self._look(lambda log: log.source)

    def read_after(self, position: Position) -> BinlogReader:
        start = self._look(lambda log: log.start_after(position))
        mark = self._marks.before(start.file, position.sequence)
        if mark is not None:
            start = start._replace(offset=mark.offset, sequence=mark.last)
        given, expected = self.settings, 0 if mark is None else mark.sequence
        decoder = MysqlDecoder(
            position,
            self._source,
            self._codecs,
            self._describe,
            self._committed,
            given.prepared_xa_counts,
            start.sequence,
            self._marks,
            expected,
        )
        return self._reader(Dump(given, start), decoder)

    def check(self) -> list[Finding]:
        return CheckingMysql(self.settings, self._known_source).all()

    def _meaning(self, position: Position, refused: LogRefused) -> Exception:
        self._marks.forget()  # it may be one of them that the server cannot read from
        return super()._meaning(position, refused)

    def _retained(self, log: Log) -> Retained:
        """While something is being committed, it may have been read already: then this end is behind, as that of a replica."""
        return super()._retained(log)._replace(follows=log.follows or not log.ends_as_it_says)

    def _log(self, statements: Session) -> Log:
        log = Log(statements, self.settings, self._remembered, self._known_source)
        self._known_source = log.source
        return log

    def _committed(self) -> tuple[Gtids, Gtids]:
        return self._look(lambda log: (log.executed, log.purged))

    def _group_of(self, event: bytes) -> int | None:
        _, kind = header_of(event)
        if kind != GTID:
            return None
        source, sequence = gtid_of(event)
        return sequence if source == UUID(self._source).bytes else None

    def _whole_up_to(self, file: str) -> int | None:
        """The server cuts what a crash has left unfinished, and sends nothing that is."""
        return None

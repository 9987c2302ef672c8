"""The mapper: from a logical position to a place in the log of one server (Wormhole 3.3.2), and what of the log there is.

A position has the sequence number of a GTID, and not the id of the server that gave it, which a reader must name if it wants to begin
after that GTID. What the server accepts (MariaDB 10.11): a GTID of which it has logged that one or a later one of the same server id. It
begins after it, or, if there is none of that number and nobody asks for strictness, at the next of the same server id. A wrong server id
is error 1236 at best, and a gap at worst. So the id is never guessed. Each file begins with a list of the last sequence number of every
server id; those that have moved at the beginning of the next file are the ones that wrote to this file. If that is one, it is the id. If
there were more (the primary has changed in the middle of that file), reading begins with the file, and what is not wanted is passed over.
Both work on every replica, whose files and offsets are its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.binlog.files import Files, Remembered
from roskva.capture.stores.binlog.protocol import Session, Start
from roskva.capture.stores.mariadb.forks import history_of, undone
from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.capture.stores.mariadb.witness import Witness
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, WrongHistory

_GTID: Final = re.compile(r"(\d+)-(\d+)-(\d+)")


class Servers(NamedTuple):
    """The last sequence number by server id, at one place of the log."""

    last: Mapping[int, int]

    @property
    def sequence(self) -> int:
        return max(self.last.values(), default=0)

    @property
    def writer(self) -> int:
        """Of the last commit."""
        return max(self.last, key=lambda server: self.last[server])


class Log(Files[Servers, MariadbSettings]):
    """A look at the log of a server, as it was when this was made."""

    kind_of_list = "Gtid_list"

    def __init__(
        self, session: Session, settings: MariadbSettings, remembered: Remembered[Servers], witness: Witness | None = None
    ) -> None:
        super().__init__(session, settings, remembered)
        self._witness = witness or Witness()
        ((version, logs),) = session.rows("SELECT VERSION(), @@global.log_bin")
        if "mariadb" not in str(version).lower():
            raise CaptureRefused(
                f'The server at {settings.where} is {version}, not MariaDB: if it is MySQL, that is kind = "mysql" in [datastore].'
            )
        if not logs:
            raise CaptureRefused(f"The MariaDB server at {settings.where} has no binary log: start it with log_bin.")
        ((state, server),) = session.rows("SELECT @@global.gtid_binlog_state, @@global.server_id")
        self._server = int(server)
        self.state = _servers(str(state), settings)
        self.files = self._list_files()
        self.forks = self._witness.look(self._witness.recall(), lambda sequence: self._lasts(sequence).last, self._server, self._follows)

    def _listed(self, text: str) -> Servers:
        return _servers(text, self._settings)

    @property
    def oldest(self) -> Position:
        return self.position(self.begins(0).sequence)

    def position(self, sequence: int) -> Position:
        return Position(history_of(self.forks, sequence), sequence)

    def _follows(self) -> bool:
        return bool(self._session.rows("SHOW ALL SLAVES STATUS"))

    def _lasts(self, sequence: int) -> Servers:
        """Who had written what when the file ended that has this number."""
        if sequence >= self.state.sequence:
            return self.state
        place = self.file_of(sequence)
        return self.begins(place + 1) if place + 1 < len(self.files) else self.state

    def start_after(self, position: Position) -> Start:
        self._must_know(position)
        begins = undone(self.forks, position)
        if begins is not None:
            raise LogCut(position, begins)
        sequence = position.sequence if position.index == WHOLE else max(position.sequence - 1, 0)
        if sequence < self.oldest.sequence:
            raise LogCut(position, self.oldest)
        place = self.file_of(sequence)
        self._saw(place, sequence)
        return self._start(place, sequence)

    def ends_before(self, position: Position) -> Start | None:
        """If reading after this position begins with a file: where to look for the end of the one that has the commit before it.

        The server ends a file once it has written there that it lost something (an incident), and begins the next."""
        place = self.file_of(position.sequence)
        if position.index != WHOLE or not place or self.begins(place).sequence != position.sequence:
            return None
        while place and self.begins(place).sequence == position.sequence:
            place -= 1
        return self._start(place, max(position.sequence - 1, self.begins(place).sequence))

    def _start(self, place: int, sequence: int) -> Start:
        before = self.begins(place)
        after = self.begins(place + 1) if place + 1 < len(self.files) else self.state
        writers = [server for server, last in after.last.items() if before.last.get(server) != last]
        if sequence == before.sequence or len(writers) != 1:
            return Start(self.files[place][0], sequence=before.sequence)
        return Start(self.files[place][0], gtid=f"{self._settings.domain}-{writers[0]}-{sequence}", sequence=sequence)

    def _must_know(self, position: Position) -> None:
        newest = self.forks[-1].history if self.forks else 0
        if position.history > newest:
            raise WrongHistory(position, f"it is of the history {position.history}, and the log of this server is of {newest}")
        # Before the first row of the next commit is where this log ends, too: after something that the server could not log.
        end = self.state.sequence
        if position.sequence <= end or (position.sequence, position.index) == (end + 1, 0) or undone(self.forks, position) is not None:
            return
        if self._follows():
            raise DatastoreUnavailable(f"The replica at {self._settings.where} has not got to {position} yet: it is at {self.end}.")
        self._witness.lacks(self._server, end, position.sequence)
        raise WrongHistory(position, f"the log ends at {self.end}, and the server is not a replica that could be behind")

    def _saw(self, place: int, sequence: int) -> None:
        """Reading goes on after this commit. Who wrote it is told here, if the lists say so; if not, it is read again."""
        before, after = self.begins(place), self._lasts(sequence)
        writers = [server for server, last in after.last.items() if before.last.get(server) != last]
        if sequence in (0, before.sequence):
            writers = [before.writer] if sequence else []
        elif sequence == after.sequence:
            writers = [after.writer]
        if len(writers) == 1:
            self._witness.saw(sequence, writers[0])


def _servers(gtids: str, settings: MariadbSettings) -> Servers:
    last: dict[int, int] = {}
    for domain, server, sequence in _GTID.findall(gtids):
        if int(domain) != settings.domain:
            raise CaptureRefused(
                f"The log at {settings.where} has the GTID domain {domain}, and this dataset is the domain {settings.domain}: one "
                "domain is read, since two have no common order. If nothing in the log is of the other one any more: "
                f"FLUSH BINARY LOGS DELETE_DOMAIN_ID=({domain})."
            )
        last[int(server)] = int(sequence)
    return Servers(last)

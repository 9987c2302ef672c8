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
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.mariadb.forks import history_of, undone
from roskva.capture.stores.mariadb.protocol import Session, Start
from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.capture.stores.mariadb.witness import Witness
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, WrongHistory

FILES_REMEMBERED_MAX: Final = 4096  # lists of files, which never change; at the limit all are forgotten, and asked for again

_GTID: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
_LIST_ROWS: Final = 5  # a file's list is among its first events


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


class Remembered:
    """The lists at the beginnings of files that are written no more, for all calls of one datastore. RESET MASTER gives the names of files
    again: a file of another size is another one, and a list that is ahead of the log is of a log that is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, int], Servers] = {}

    def get(self, file: tuple[str, int], end: int) -> Servers | None:
        with self._lock:
            found = self._lists.get(file)
            if found is not None and found.sequence > end:
                self._lists.clear()
                return None
            return found

    def put(self, file: tuple[str, int], servers: Servers) -> None:
        with self._lock:
            if len(self._lists) >= FILES_REMEMBERED_MAX:
                self._lists.clear()
            self._lists[file] = servers


class Log:
    """A look at the log of a server, as it was when this was made."""

    def __init__(self, session: Session, settings: MariadbSettings, remembered: Remembered, witness: Witness | None = None) -> None:
        self._session = session
        self._settings = settings
        self._remembered = remembered
        self._witness = witness or Witness()
        ((version, logs, state, server),) = session.rows(
            "SELECT VERSION(), @@global.log_bin, @@global.gtid_binlog_state, @@global.server_id"
        )
        self._server = int(server)
        self._begins_last: Servers | None = None  # the last file's list: for this look alone
        if "mariadb" not in str(version).lower():
            raise CaptureRefused(
                f"The server at {settings.where} is {version}, not MariaDB: its GTIDs have no common order, and it was never tried."
            )
        if not logs:
            raise CaptureRefused(f"The MariaDB server at {settings.where} has no binary log: start it with log_bin.")
        self.state = _servers(str(state), settings)
        self.files = [(str(row[0]), int(row[1])) for row in session.rows("SHOW BINARY LOGS")]
        if not self.files:
            raise DatastoreUnavailable(f"The MariaDB server at {settings.where} has no file of its binary log.")
        self.forks = self._witness.look(self._witness.recall(), lambda sequence: self._lasts(sequence).last, self._server, self._follows)

    @property
    def oldest(self) -> Position:
        return self._position(self.begins(0).sequence)

    @property
    def end(self) -> Position:
        return self._position(self.state.sequence)

    def _position(self, sequence: int) -> Position:
        return Position(history_of(self.forks, sequence), sequence)

    def _follows(self) -> bool:
        return bool(self._session.rows("SHOW ALL SLAVES STATUS"))

    def _lasts(self, sequence: int) -> Servers:
        """Who had written what when the file ended that has this number."""
        if sequence >= self.state.sequence:
            return self.state
        place = self.file_of(sequence)
        return self.begins(place + 1) if place + 1 < len(self.files) else self.state

    def begins(self, place: int) -> Servers:
        """What had been written when this file began."""
        file, _ = entry = self.files[place]
        written_no_more = place + 1 < len(self.files)
        known = self._remembered.get(entry, self.state.sequence) if written_no_more else self._begins_last
        if known is not None:
            return known
        found = self._session.rows(f"SHOW BINLOG EVENTS IN %s LIMIT {_LIST_ROWS}", (file,))
        lists = [str(row[5]) for row in found if row[2] == "Gtid_list"]
        if not lists:
            raise CaptureRefused(
                f"The file {file} of the log at {self._settings.where} has no list of GTIDs: it is not one of MariaDB 10 or later."
            )
        servers = _servers(lists[0], self._settings)
        if written_no_more:
            self._remembered.put(entry, servers)
        else:
            self._begins_last = servers
        return servers

    def file_of(self, sequence: int) -> int:
        """The place of the file in which the commit after this sequence number is, or will be."""
        low, high = 0, len(self.files) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.begins(middle).sequence <= sequence:
                low = middle
            else:
                high = middle - 1
        return low

    def start_after(self, position: Position) -> Start:
        """Where to begin so that nothing after the position is missed; some of before may come."""
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

    def whole_up_to(self, file: str) -> int | None:
        """The last sequence number that is whole in this file: what the next one begins with. None: it is the last, and written to."""
        names = [name for name, _ in self.files]
        if file not in names:
            raise DatastoreUnavailable(f"The file {file} of the log at {self._settings.where} was removed while it was read.")
        place = names.index(file)
        return None if place == len(names) - 1 else self.begins(place + 1).sequence

    def bytes_after(self, position: Position) -> int:
        """Bytes of log from there to the end; about, as if all commits of a file were of one size."""
        place = self.file_of(position.sequence)
        begin = self.begins(place).sequence
        end = self.begins(place + 1).sequence if place + 1 < len(self.files) else self.end.sequence
        share = (end - max(begin, min(end, position.sequence))) / (end - begin) if end > begin else 0.0
        return round(self.files[place][1] * share) + sum(size for _, size in self.files[place + 1 :])

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)

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

"""The mapper: from a logical position to a place in the log of one server (Wormhole 3.3.2), and what of the log there is.

A position is a number of one source, which is the UUID that a server gives to what it commits. Every file of the log begins with the set of
all GTIDs that were committed before it. Reading begins with the file that has the commit of the position itself, not with the one after it:
so whatever stands between that commit and the next one is seen, be it a loss that the server tells of, or a commit of somebody else. MySQL
would begin after a set of GTIDs, too, but leaves out all that is in it, wherever in its log: also a number that comes too late, which would
be skipped. Within a file a reader of before may know a nearer place (`marks`).
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.binlog.files import Files, Remembered
from roskva.capture.stores.binlog.protocol import Session, Start
from roskva.capture.stores.mysql.gtids import Gtids, Listed, gtids_of
from roskva.capture.stores.mysql.settings import MysqlSettings
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, WrongHistory

OLDEST_VERSION: Final = (8, 0)
REPLICA_STATUS_SINCE: Final = (8, 0, 22)  # before it the same is called SHOW SLAVE STATUS, which 8.4 does not know any more


class Log(Files[Listed, MysqlSettings]):
    """A look at the log of a server, as it was when this was made."""

    kind_of_list = "Previous_gtids"

    def __init__(self, session: Session, settings: MysqlSettings, remembered: Remembered[Listed], source: str = "") -> None:
        """`source`: the UUID that is read, if that is known by now."""
        super().__init__(session, settings, remembered)
        ((version, logs),) = session.rows("SELECT VERSION(), @@global.log_bin")
        self._version = _checked(str(version), settings)
        if not logs:
            raise CaptureRefused(f"The MySQL server at {settings.where} has no binary log: start it with log_bin.")
        # What is being committed comes first: what is in neither then was not in the log.
        ((mode, owned, executed, purged, server),) = session.rows(
            "SELECT @@global.gtid_mode, @@global.gtid_owned, @@global.gtid_executed, @@global.gtid_purged, @@global.server_uuid"
        )
        if mode != "ON":
            raise CaptureRefused(
                f"The MySQL server at {settings.where} has gtid_mode = {mode}: commits without a GTID have no position. Capture needs "
                "gtid_mode = ON and enforce_gtid_consistency = ON, in the server's configuration."
            )
        self.executed, self.purged = gtids_of(str(executed)), gtids_of(str(purged))
        self.source = source or self._source(str(server))
        self.state = self._of(self.executed)
        # A commit is in the log, and sent to who reads it, before it is done: with semi-synchronous replication long before.
        self._written_up_to = max(self.state.sequence, gtids_of(str(owned)).last(self.source))
        self.files = self._list_files()

    def _source(self, server: str) -> str:
        """Whose commits are read. Those of two servers have no order that every replica shares."""
        known = list(self.executed.of)
        if self._settings.source:
            return self._settings.source
        if len(known) > 1:
            numbers = ", ".join(f"{one} (up to {self.executed.last(one)})" for one in known)
            raise CaptureRefused(
                f"The MySQL server at {self._settings.where} has commits of several servers: {numbers}. Positions are of one: say in the "
                "settings which is written to now, as `source` in [datastore]; SELECT @@server_uuid, there, shows it."
            )
        if known:
            return known[0]
        if self.follows:
            raise DatastoreUnavailable(f"The replica at {self._settings.where} has not got anything from its primary yet.")
        return server

    def _of(self, gtids: Gtids) -> Listed:
        return Listed(gtids.last(self.source), gtids)

    def _listed(self, text: str) -> Listed:
        return self._of(gtids_of(text))

    def position(self, sequence: int) -> Position:
        return Position(0, sequence)

    @property
    def oldest(self) -> Position:
        """What a restored server was told that it has (gtid_purged) is in no file of its log, and in no list of one either."""
        return self.position(max(self.begins(0).sequence, self.purged.last(self.source)))

    def others_since(self, place: int) -> list[str]:
        """Of whom there are commits in this file of the log, or a later one, besides the source."""
        before = self.begins(place).gtids
        return [
            other
            for other in self.executed.of
            if other != self.source and self.executed.last(other) > max(before.last(other), self.purged.last(other))
        ]

    @property
    def ends_as_it_says(self) -> bool:
        """Whether nothing beyond its end can have been read by now."""
        return self._written_up_to == self.state.sequence

    @cached_property
    def follows(self) -> bool:
        """Whether it is a replica."""
        return bool(self._session.rows(f"SHOW {'REPLICA' if self._version >= REPLICA_STATUS_SINCE else 'SLAVE'} STATUS"))

    def start_after(self, position: Position) -> Start:
        self._must_know(position)
        before = position.sequence if position.index == WHOLE else max(position.sequence - 1, 0)
        if before < self.oldest.sequence:
            raise LogCut(position, self.oldest)
        place = self.file_of(max(position.sequence - 1, 0))
        return Start(self.files[place][0], sequence=self.begins(place).sequence)

    def _must_know(self, position: Position) -> None:
        if position.history:
            raise WrongHistory(position, f"it is of the history {position.history}, and a log of MySQL has one, which is 0")
        end = self._written_up_to
        # Before the first row of the next commit is where this log ends, too: after something that is passed over.
        if position.sequence > end and (position.sequence, position.index) != (end + 1, 0):
            if self.follows:
                raise DatastoreUnavailable(f"The replica at {self._settings.where} has not got to {position} yet: it is at {self.end}.")
            raise WrongHistory(position, f"the log ends at {self.end}, and the server is not a replica that could be behind")
        if self.follows and not self.logs_what_it_replicates:
            raise CaptureRefused(
                f"The replica at {self._settings.where} does not log what it replicates: start it with log_replica_updates."
            )

    @cached_property
    def logs_what_it_replicates(self) -> bool:
        return "ON" in (self._session.variable("log_replica_updates"), self._session.variable("log_slave_updates"))


def _checked(version: str, settings: MysqlSettings) -> tuple[int, ...]:
    if "mariadb" in version.lower():
        raise CaptureRefused(f'The server at {settings.where} is {version}, not MySQL: that is kind = "mariadb" in [datastore].')
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(int(number) for number in found.groups()) if found else ()
    if numbers < OLDEST_VERSION:
        raise CaptureRefused(f"The MySQL server at {settings.where} is {version}: 8.0 and later are read.")
    return numbers

"""What a log of MariaDB has of its own: groups that begin with a GTID of one domain, in a history (`forks`); compressed events.

Pure; see `stores/binlog/decoding.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NoReturn

from roskva.capture.positions import Position
from roskva.capture.stores.binlog.decoding import HEADER_BYTES, QUERY, ROWS, Decoder, Rows
from roskva.capture.stores.binlog.tables import Codecs, Describe
from roskva.capture.stores.binlog.values import GEOMETRY, TEXTUAL
from roskva.capture.stores.mariadb.forks import history_of, undone
from roskva.capture.stores.mariadb.witness import Witness
from roskva.capture.updates import Operation
from roskva.errors import CaptureRefused, LogCut, WrongHistory

LOAD, PARTIAL_UPDATE, PAYLOAD, GTID, QUERY_COMPRESSED = 18, 39, 40, 162, 165
OF_MYSQL: Final = frozenset((*range(30, 33), *range(169, 172)))  # rows in a form that MariaDB does not write

STANDALONE, PREPARED_XA = 1, 64  # flags of a group


def sequence_of(event: bytes) -> int:
    """Of the event that begins a group."""
    return int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 8], "little")


class MariadbDecoder(Decoder):
    rows: ClassVar[Mapping[int, Rows]] = {
        **ROWS,
        166: Rows(Operation.INSERT, compressed=True),
        167: Rows(Operation.UPDATE, compressed=True),
        168: Rows(Operation.DELETE, compressed=True),
    }
    statements: ClassVar[Mapping[int, bool]] = {QUERY: False, QUERY_COMPRESSED: True}
    textual: ClassVar[frozenset[int]] = TEXTUAL | {GEOMETRY}

    def __init__(
        self,
        after: Position,
        domain: int,
        codecs: Codecs,
        describe: Describe,
        prepared_xa_counts: bool = False,
        last: int = 0,
        witness: Witness | None = None,
    ) -> None:
        """`witness` is told who wrote each group."""
        super().__init__(after, codecs, describe, prepared_xa_counts, last)
        self._domain = domain
        self._witness = witness or Witness()

    def _begins(self, kind: int, event: bytes, end: int) -> bool:
        if kind != GTID:
            return False
        at = HEADER_BYTES
        sequence, domain, flags = sequence_of(event), int.from_bytes(event[at + 8 : at + 12], "little"), event[at + 12]
        stamp, server = int.from_bytes(event[:4], "little"), int.from_bytes(event[5:9], "little")
        if domain != self._domain:
            raise CaptureRefused(
                f"The log has commits of the GTID domain {domain} after {self.reached}, and this dataset is the domain {self._domain}: "
                "one domain is read, since two have no common order."
            )
        if self._begin(sequence, stamp * 1_000_000, bool(flags & STANDALONE)) and not self._witness.saw(sequence, server):
            self._wanted = False
            raise WrongHistory(self.reached, f"the server {server} wrote the commit {sequence}: another one's before, or after a fork")
        if self._wanted and flags & PREPARED_XA and not self._prepared_xa_counts:
            self._refuse(
                "a prepared XA transaction, of which nobody knows yet whether it will be committed",
                "no XA, or the setting prepared_xa_counts, with which its rows are published when it is prepared",
            )
        return True

    def _other(self, kind: int, event: bytes) -> None:
        if kind in (LOAD, PARTIAL_UPDATE, PAYLOAD) or kind in OF_MYSQL:
            self._refuse("a kind of event that does not tell the rows", "binlog_format=ROW, and a log that MariaDB wrote")

    def _refuse_order(self, sequence: int) -> NoReturn:
        raise CaptureRefused(
            f"The log has the sequence number {sequence} after {self._last}: two servers were written to at once. Positions need "
            "gtid_strict_mode=ON on every server."
        )

    def _history_entered(self, sequence: int) -> int:
        self._go_on_in_the_same_history(Position(self.reached.history, sequence, 0))
        return max(self._after.history, history_of(self._witness.forks, sequence))

    def look(self) -> None:
        self._go_on_in_the_same_history(self.reached)

    def _go_on_in_the_same_history(self, position: Position) -> None:
        begins = undone(self._witness.forks, position)
        if begins is not None:
            self._wanted = False
            raise LogCut(self.reached, begins)

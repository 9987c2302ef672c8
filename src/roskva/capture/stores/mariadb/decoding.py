"""From the events of a binary log to changes (Wormhole 3: each datastore's log becomes key-value pairs).

Pure: bytes in, changes out; who reads them, and from where, is no matter here. Theory of operation. The log is a row of groups. A group
begins with an event that bears its global transaction id, and is either one statement (a change of a table's definition) or a
transaction: table maps, rows, and at its end an Xid or a COMMIT. The sequence number of the id is the sequence of a position; rows are
counted from 1 within their group, all of them, so that the same row has the same position in the log of every replica, which has its own
files, its own sizes of events and its own server id. Rows go out as they come, since the server shows no group before it is whole; the
one exception is the end of a file that a crash has cut: `file_begins` is told up to which sequence that file is whole.

MySQL is refused before anything is read of it (docs/decisions/0036).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from struct import Struct
from struct import error as StructError
from typing import Final

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.mariadb.forks import history_of, undone
from roskva.capture.stores.mariadb.images import Image, Known
from roskva.capture.stores.mariadb.statements import emptied_by, written_by
from roskva.capture.stores.mariadb.tables import Codecs, Describe, Table, lenenc, read_table_map
from roskva.capture.stores.mariadb.witness import Witness
from roskva.capture.updates import Change, Columns, Operation, Value
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut, WrongHistory

HEADER_BYTES: Final = 19
QUERY, ROTATE, FORMAT, XID, LOAD, TABLE_MAP, INCIDENT, HEARTBEAT, XA_PREPARE = 2, 4, 15, 16, 18, 19, 26, 27, 38
PARTIAL_UPDATE, PAYLOAD, GTID, QUERY_COMPRESSED = 39, 40, 162, 165
# By the event: the operation, whether its rows are compressed.
ROWS: Final = {
    23: (Operation.INSERT, False), 24: (Operation.UPDATE, False), 25: (Operation.DELETE, False),
    166: (Operation.INSERT, True), 167: (Operation.UPDATE, True), 168: (Operation.DELETE, True),
}  # fmt: skip
OF_MYSQL: Final = frozenset((*range(30, 33), *range(169, 172)))  # rows in a form that MariaDB does not write

STANDALONE, PREPARED_XA = 1, 64  # flags of a group
ATTACH_TABLE: Final = (
    "roskva_attach"  # its inserted rows (name, value) are keys that the producer attaches to what follows in the transaction
)
ATTACHED_MAX: Final = 64  # of one transaction; more are left out
TABLES_MAX: Final = 10_000  # whose maps are remembered; at the limit all are forgotten, and read again as they come

_HEADER: Final = Struct("<IBIIIH")
_NO_TABLE: Final = 0xFFFFFF  # the number in a row event that only ends a statement
_STATUS_BYTES: Final = {0: 4, 1: 8, 3: 4}  # of the variables that stand before the character set, in a statement's event


def rotated_to(event: bytes) -> str:
    """The file that follows. Whether a check sum stands behind its name is not said anywhere in time; so it is if it is right."""
    end = len(event)
    if zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
        end -= 4
    return event[HEADER_BYTES + 8 : end].decode(errors="replace")


def header_of(event: bytes) -> tuple[int, int]:
    """When it was written, in seconds since 1970, and its type."""
    return int.from_bytes(event[:4], "little"), event[4]


def sequence_of(event: bytes) -> int:
    """Of the event that begins a group of MariaDB."""
    return int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 8], "little")


class Decoder:
    """Of one reader. The caller hands over every event in order, and says where each file begins."""

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
        """`last`: the sequence of the last group before the place where reading begins. `witness` is told who wrote each group."""
        self._witness = witness or Witness()
        self.reached = after
        self._after = after
        self._history = after.history  # of the present group
        self._domain = domain
        self._codecs = codecs
        self._describe = describe
        self._prepared_xa_counts = prepared_xa_counts
        self._checksum = False
        self._whole_up_to: int | None = None
        self._known: dict[int, Known] = {}  # by the table's number
        self._last = last  # sequence of the last group, to see that they grow
        self._sequence = 0
        self._wanted = False  # whether the present group comes after `after`
        self._standalone = False
        self._index = 0
        self._committed_us = 0
        self._attached: dict[str, Value] | None = None

    def file_begins(self, whole_up_to: int | None) -> None:
        """`whole_up_to`: the last group that is whole in it; a crash may have cut the one after. None: the server writes to it still."""
        self._whole_up_to = whole_up_to
        self._wanted = False

    def decode(self, event: bytes, changes: list[Change]) -> None:
        """Adds what the event changes. The event stands without the byte that comes before it on the wire."""
        try:
            self._decode(event, changes)
        except (ValueError, LookupError, StructError, zlib.error, OverflowError) as error:
            raise DatastoreUnavailable(f"The log after {self.reached} cannot be understood: {error!r}.") from error

    def _decode(self, event: bytes, changes: list[Change]) -> None:
        stamp, kind, server, size, _, _ = _HEADER.unpack_from(event)
        if kind == FORMAT:
            self._checksum = event[-5] == 1
            self._known.clear()  # the server may have been started anew, and counts its tables from 1 again
        elif kind in (ROTATE, HEARTBEAT):
            return
        end = len(event)
        if self._checksum:
            end -= 4
            if zlib.crc32(event[:end]) != int.from_bytes(event[end:], "little"):
                raise DatastoreUnavailable(
                    f"The log is damaged after {self.reached}: the check sum of an event of {size:,} bytes is wrong."
                )
        if kind == GTID:
            self._group(event, stamp, server)
        elif not self._wanted:
            if kind == INCIDENT:
                self._incident()
        elif kind in ROWS:
            self._rows(ROWS[kind], event, end, changes)
        elif kind == TABLE_MAP:
            self._table(event, end)
        elif kind in (XID, XA_PREPARE):
            self._end()
        elif kind in (QUERY, QUERY_COMPRESSED):
            self._statement(event, end, kind == QUERY_COMPRESSED, changes)
        elif kind in (LOAD, PARTIAL_UPDATE, PAYLOAD) or kind in OF_MYSQL:
            self._refuse(
                "a kind of event that does not tell the rows", "binlog_format=ROW, and no partial JSON nor compressed transactions of MySQL"
            )
        elif kind == INCIDENT:
            self._incident()

    def _group(self, event: bytes, stamp: int, server: int) -> None:
        at = HEADER_BYTES
        sequence = int.from_bytes(event[at : at + 8], "little")
        domain = int.from_bytes(event[at + 8 : at + 12], "little")
        flags = event[at + 12]
        if domain != self._domain:
            raise CaptureRefused(
                f"The log has commits of the GTID domain {domain} after {self.reached}, and this dataset is the domain {self._domain}: "
                "one domain is read, since two have no common order."
            )
        self._begin(sequence, stamp, bool(flags & STANDALONE))
        if self._sequence == sequence and not self._witness.saw(sequence, server):
            self._wanted = False
            raise WrongHistory(self.reached, f"the server {server} wrote the commit {sequence}: another one's before, or after a fork")
        if self._wanted and flags & PREPARED_XA and not self._prepared_xa_counts:
            self._refuse(
                "a prepared XA transaction, of which nobody knows yet whether it will be committed",
                "no XA, or the setting prepared_xa_counts, with which its rows are published when it is prepared",
            )

    def _begin(self, sequence: int, stamp: int, standalone: bool) -> None:
        self._wanted = False
        if self._whole_up_to is not None and sequence > self._whole_up_to:
            return  # cut by a crash, and never committed: its number comes again
        if sequence <= self._last:
            raise CaptureRefused(
                f"The log has the sequence number {sequence} after {self._last}: two servers were written to at once. Positions need "
                "gtid_strict_mode=ON on every server."
            )
        self._last = self._sequence = sequence
        after = self._after
        self._wanted = sequence > after.sequence or (sequence == after.sequence and after.index != WHOLE)
        if self._wanted:
            self._go_on_in_the_same_history(Position(self.reached.history, sequence, 0))
            self._history = max(self._after.history, history_of(self._witness.forks, sequence))
        self._standalone = standalone
        self._index = 0
        self._committed_us = stamp * 1_000_000
        self._attached = None

    def look(self) -> None:
        """Whether what was read is still of this log's history. Raises LogCut, with where another one begins."""
        self._go_on_in_the_same_history(self.reached)

    def _go_on_in_the_same_history(self, position: Position) -> None:
        begins = undone(self._witness.forks, position)
        if begins is not None:
            self._wanted = False
            raise LogCut(self.reached, begins)

    def _end(self) -> None:
        self.reached = Position(self._history, self._sequence)
        self._wanted = False

    def _incident(self) -> None:
        """The server itself says that it could not log something: it is lost, whatever it was. What follows has the next number or a
        later one, so a place before that number is after the loss, and whoever has all up to the last number has lost something."""
        if self._last >= self._after.sequence:
            raise LogCut(self.reached, Position(self._history, self._last + 1, 0))

    def _refuse(self, what: str, needs: str) -> None:
        raise CaptureRefused(f"The log has {what}, in the commit after {self.reached}. Capture needs {needs}.")

    def _table(self, event: bytes, end: int) -> None:
        number = int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little")
        body = event[HEADER_BYTES + 8 : end]
        known = self._known.get(number)
        if known is None or known.body != body:
            if len(self._known) >= TABLES_MAX:
                self._known.clear()
            self._known[number] = Known(body, read_table_map(body, self._codecs, self._describe))

    def _statement(self, event: bytes, end: int, compressed: bool, changes: list[Change]) -> None:
        at = HEADER_BYTES
        database_bytes, status_bytes = event[at + 8], int.from_bytes(event[at + 11 : at + 13], "little")
        status = event[at + 13 : at + 13 + status_bytes]
        at += 13 + status_bytes
        database = event[at : at + database_bytes].decode(errors="replace")
        raw = event[at + database_bytes + 1 : end]
        text = (_inflated(raw) if compressed else raw).decode(self._codec_of(status), errors="replace")
        if text in ("COMMIT", "ROLLBACK"):
            self._end()
            return
        if text == "BEGIN":
            self._standalone = False
            return
        emptied = emptied_by(text, database)
        for one in emptied:
            self._add_truncate(*one, end // len(emptied), changes)
        if not emptied and (verb := written_by(text)):
            self._refuse(f"the statement {verb} instead of the rows that it changed", "binlog_format=ROW in every session")
        if self._standalone:
            self._known.clear()  # for tables that somebody must describe as they are now
            self._end()

    def _codec_of(self, status: bytes) -> str:
        """The character set of the client that sent the statement."""
        at = 0
        while at < len(status) and status[at] != 4:
            code = status[at]
            width = _STATUS_BYTES.get(code, 1 + status[at + 1] if code == 6 and at + 1 < len(status) else len(status))
            at += 1 + width
        collation = int.from_bytes(status[at + 1 : at + 3], "little") if at < len(status) else 0
        return self._codecs.get(collation) or "utf-8"

    def _add_truncate(self, database: str, table: str, size: int, changes: list[Change]) -> None:
        self._index += 1
        if self._sequence == self._after.sequence and self._index <= self._after.index:
            return
        position = Position(self._history, self._sequence, self._index)
        changes.append(
            Change(position, self._committed_us, Operation.TRUNCATE, database, table, {}, {}, attached=self._attached, size=size)
        )
        self.reached = position

    def _rows(self, kind: tuple[Operation, bool], event: bytes, end: int, changes: list[Change]) -> None:
        operation, compressed = kind
        at = HEADER_BYTES + 8
        number = int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little")
        if number == _NO_TABLE:
            return
        known = self._known.get(number)
        if known is None:
            raise DatastoreUnavailable(f"The log is damaged after {self.reached}: rows of the table number {number} come before its map.")
        count, at = lenenc(event, at)
        table, width = known.table, (count + 7) // 8
        if len(table.columns) != count:
            raise DatastoreUnavailable(f"The log is damaged after {self.reached}: rows of {table.name} have another number of columns.")
        image, at = known.image(event[at : at + width]), at + width
        old = image
        if operation is Operation.UPDATE:
            image, at = known.image(event[at : at + width]), at + width
        data = event
        if compressed:
            data = _inflated(event[at:end])
            at, end = 0, len(data)
        if table.name == ATTACH_TABLE and {"name", "value"} <= set(image.names):
            self._attach(operation, [old, image] if operation is Operation.UPDATE else [image], data, at, end)
            return
        if not old.names:
            self._refuse(f"rows of {table.name} without any column", "binlog_row_image=FULL")
        before = len(changes)
        if self._sequence == self._after.sequence:
            at = self._passed_over([old, image] if operation is Operation.UPDATE else [image], data, at, end)
        if operation is Operation.UPDATE:
            at = self._updates(table, old, image, data, at, end, changes)
        else:
            at = self._inserts_or_deletes(operation, table, image, data, at, end, changes)
        if at != end:
            raise DatastoreUnavailable(f"The log is damaged after {self.reached}: rows of {table.name} end past their event.")
        if len(changes) > before:
            self.reached = changes[-1].position

    def _passed_over(self, images: Sequence[Image], data: bytes, at: int, end: int) -> int:
        """Where the first row stands that comes after the position at which reading began."""
        while at < end and self._index < self._after.index:
            for image in images:
                at = image.end(data, at)
            self._index += 1
        return at

    def _inserts_or_deletes(
        self, operation: Operation, table: Table, image: Image, data: bytes, at: int, end: int, changes: list[Change]
    ) -> int:
        names, keys, read, left_out = image.names, image.keys, image.read, image.left_out
        only_key = keys[0] if len(keys) == 1 else None
        index, sequence, history = self._index, self._sequence, self._history
        committed_us, attached, database, name = self._committed_us, self._attached, table.database, table.name
        while at < end:
            begin = at
            row, at = read(data, at)
            index += 1
            columns = dict(zip(names, row))  # noqa: B905  # as many as the image has; to say so costs a tenth
            key = {only_key: columns[only_key]} if only_key is not None else {each: columns[each] for each in keys}
            position = Position(history, sequence, index)
            changes.append(Change(position, committed_us, operation, database, name, key, columns, None, left_out, attached, at - begin))
        self._index = index
        return at

    def _updates(self, table: Table, old: Image, new: Image, data: bytes, at: int, end: int, changes: list[Change]) -> int:
        names, keys = new.names, old.keys
        whole = len(names) == len(table.columns)
        left_out = tuple(name for name in new.left_out if name in old.left_out)
        index, sequence, history = self._index, self._sequence, self._history
        committed_us, attached, database, name = self._committed_us, self._attached, table.database, table.name
        while at < end:
            begin = at
            old_key: Columns | None
            if whole:  # of the row as it was only the key is of interest
                was, at = old.key(data, at)
                row, at = new.read(data, at)
                columns = dict(zip(names, row))  # noqa: B905
                key = {each: columns[each] for each in keys}
                old_key = dict(zip(keys, was, strict=True)) if was != list(key.values()) else None
            else:  # binlog_row_image is not FULL: what was logged of before only did not change
                row, at = old.read(data, at)
                before = dict(zip(old.names, row, strict=True))
                row, at = new.read(data, at)
                columns = before | dict(zip(names, row, strict=True))
                key = {each: columns[each] for each in keys}
                old_key = {each: before[each] for each in keys}
                old_key = None if old_key == key else old_key
            index += 1
            position = Position(history, sequence, index)
            changes.append(
                Change(position, committed_us, Operation.UPDATE, database, name, key, columns, old_key, left_out, attached, at - begin)
            )
        self._index = index
        return at

    def _attach(self, operation: Operation, images: Sequence[Image], data: bytes, at: int, end: int) -> None:
        """They are counted as every row is, and go no further than this. What was inserted before the position of the reader counts."""
        attached = dict(self._attached or {})
        while at < end:
            columns: dict[str, Value] = {}
            for image in images:
                row, at = image.read(data, at)
                columns = dict(zip(image.names, row, strict=True))
            self._index += 1
            if operation is Operation.INSERT and len(attached) < ATTACHED_MAX:
                attached[str(columns["name"])] = columns["value"]
        self._attached = attached or None


def _inflated(packed: bytes) -> bytes:
    """What log_bin_compress has packed: a byte that says how long the length is, the length, and zlib's."""
    return zlib.decompress(packed[1 + (packed[0] & 0x07) :])

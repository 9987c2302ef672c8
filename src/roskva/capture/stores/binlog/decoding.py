"""From the events of a binary log to changes (Wormhole 3: each datastore's log becomes key-value pairs).

Pure: bytes in, changes out; who reads them, and from where, is no matter here. Theory of operation. The log is a row of groups. A group
begins with an event that bears its global transaction id, and is either one statement (a change of a table's definition) or a
transaction: table maps, rows, and at its end an Xid or a COMMIT. The sequence number of the id is the sequence of a position; rows are
counted from 1 within their group, all of them, so that the same row has the same position in the log of every replica, which has its own
files, its own sizes of events and its own server id. Rows go out as they come, since the server shows no group before it is whole; the
one exception is the end of a file that a crash has cut: `file_begins` is told up to which sequence that file is whole.

What begins a group, and which events may come besides, is for `stores/mariadb` and `stores/mysql` to say, which derive from `Decoder`.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import ClassVar, Final, NamedTuple, NoReturn

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.binlog.images import Image, Known
from roskva.capture.stores.binlog.statements import emptied_by, written_by
from roskva.capture.stores.binlog.tables import Codecs, Describe, Table, lenenc, read_table_map
from roskva.capture.stores.binlog.values import TEXTUAL
from roskva.capture.updates import Change, Columns, Operation, Value
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut

HEADER_BYTES: Final = 19
QUERY, ROTATE, FORMAT, XID, TABLE_MAP, INCIDENT, HEARTBEAT, XA_PREPARE = 2, 4, 15, 16, 19, 26, 27, 38


class Rows(NamedTuple):
    """A kind of event that has rows."""

    operation: Operation
    compressed: bool = False  # the rows in it
    extra: bool = False  # bytes of the server's own stand before them, and their length before these


ROWS: Final = {23: Rows(Operation.INSERT), 24: Rows(Operation.UPDATE), 25: Rows(Operation.DELETE)}

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


class Decoder(ABC):
    """Of one reader. The caller hands over every event in order, and says where each file begins."""

    rows: ClassVar[Mapping[int, Rows]] = ROWS
    statements: ClassVar[Mapping[int, bool]] = {QUERY: False}  # by the kind of event: whether the statement is compressed
    textual: ClassVar[frozenset[int]] = TEXTUAL

    def __init__(self, after: Position, codecs: Codecs, describe: Describe, prepared_xa_counts: bool = False, last: int = 0) -> None:
        """`last`: the sequence of the last group before the place where reading begins."""
        self.reached = after
        self._after = after
        self._history = after.history  # of the present group
        self._codecs = codecs
        self._describe = describe
        self._prepared_xa_counts = prepared_xa_counts
        self._checksum = False
        self._file = ""
        self._whole_up_to: int | None = None
        self._known: dict[int, Known] = {}  # by the table's number
        self._last = last  # sequence of the last group, to see that they grow
        self._sequence = 0
        self._wanted = False  # whether the present group comes after `after`
        self._standalone = False
        self._index = 0
        self._committed_us = 0
        self._attached: dict[str, Value] | None = None

    @abstractmethod
    def _begins(self, kind: int, event: bytes, end: int) -> bool:
        """Whether the event begins a group, of which `_begin` was told then."""

    @abstractmethod
    def _other(self, kind: int, event: bytes) -> None:
        """An event of a group that is wanted, of a kind that nobody here knows. Refuses it, if there may be changes in it."""

    def _history_entered(self, sequence: int) -> int:
        """Of the group that begins, and is wanted."""
        return self._after.history

    @abstractmethod
    def _refuse_order(self, sequence: int) -> NoReturn:
        """This number comes after `_last`, which is higher."""

    def look(self) -> None:  # noqa: B027  # of a log that has one history alone nothing need be looked at
        """Whether what was read is still of this log's history. Raises LogCut, with where another one begins."""

    def _session_begins(self, text: str) -> bool:
        """Whether this statement begins a transaction."""
        return text == "BEGIN"

    def file_begins(self, whole_up_to: int | None, file: str = "") -> None:
        """`whole_up_to`: the last group that is whole in it; a crash may have cut the one after. None: the server writes to it still."""
        self._file = file
        self._whole_up_to = whole_up_to
        self._wanted = False

    def decode(self, event: bytes, changes: list[Change]) -> None:
        """Adds what the event changes. The event stands without the byte that comes before it on the wire."""
        try:
            self._decode(event, changes)
        except (ValueError, LookupError, StructError, zlib.error, OverflowError) as error:
            raise DatastoreUnavailable(f"The log after {self.reached} cannot be understood: {error!r}.") from error

    def _decode(self, event: bytes, changes: list[Change]) -> None:
        kind, size = event[4], len(event)
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
        if self._begins(kind, event, end):
            return
        if not self._wanted:
            if kind == INCIDENT:
                self._incident()
        elif kind in self.rows:
            self._rows(self.rows[kind], event, end, changes)
        elif kind == TABLE_MAP:
            self._table(event, end)
        elif kind in (XID, XA_PREPARE):
            self._end()
        elif kind in self.statements:
            self._statement(event, end, self.statements[kind], changes)
        elif kind == INCIDENT:
            self._incident()
        else:
            self._other(kind, event)

    def _begin(self, sequence: int, committed_us: int, standalone: bool) -> bool:
        """`standalone`: of one statement. False: it is none, and comes again."""
        self._wanted = False
        if self._whole_up_to is not None and sequence > self._whole_up_to:
            return False  # cut by a crash, and never committed: its number comes again
        if sequence <= self._last:
            self._refuse_order(sequence)
        self._last = self._sequence = sequence
        after = self._after
        self._wanted = sequence > after.sequence or (sequence == after.sequence and after.index != WHOLE)
        if self._wanted:
            self._history = self._history_entered(sequence)
        self._standalone = standalone
        self._index = 0
        self._committed_us = committed_us
        self._attached = None
        return True

    def _end(self) -> None:
        self.reached = Position(self._history, self._sequence)
        self._wanted = False

    def _incident(self) -> None:
        """The server itself says that it could not log something: it is lost, whatever it was. What follows has the next number or a
        later one, so a place before that number is after the loss, and whoever has all up to the last number has lost something."""
        if self._is_after_the_last():
            raise LogCut(self.reached, Position(self._history, self._last + 1, 0))

    def _is_after_the_last(self) -> bool:
        """Whether what stands between the last group and the next one comes after the position at which reading began."""
        return self._last >= self._after.sequence

    def _refuse(self, what: str, needs: str) -> NoReturn:
        raise CaptureRefused(f"The log has {what}, in the commit after {self.reached}. Capture needs {needs}.")

    def _table(self, event: bytes, end: int) -> None:
        number = int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little")
        body = event[HEADER_BYTES + 8 : end]
        known = self._known.get(number)
        if known is None or known.body != body:
            if len(self._known) >= TABLES_MAX:
                self._known.clear()
            self._known[number] = Known(body, read_table_map(body, self._codecs, self._describe, self.textual))

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
        if self._session_begins(text):
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

    def _rows(self, kind: Rows, event: bytes, end: int, changes: list[Change]) -> None:
        operation, compressed, extra = kind
        at = HEADER_BYTES + 8
        if extra:
            at += int.from_bytes(event[at : at + 2], "little")
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

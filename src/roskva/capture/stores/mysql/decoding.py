"""What a log of MySQL has of its own: groups that begin with a GTID of one source, and all that must not be passed over.

Pure; see `stores/binlog/decoding.py`. Numbers of the source grow from commit to commit. Numbers may be missing, since one that was given to
a transaction may never be committed. If the server has committed what is missing here, it is either gone from the log, which is a loss, or
stands elsewhere in it, out of order: then positions would be wrong, and it is refused. Between the numbers of the source there is nothing
but what another server has committed (a replica that was promoted, or written to), and what has no GTID. That is refused, too: it can be
told by no position. Whoever wants to go on beyond it takes a position before the first row of the next commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, NoReturn
from uuid import UUID

from roskva.capture.positions import WHOLE, Position
from roskva.capture.stores.binlog.decoding import HEADER_BYTES, ROWS, Decoder, Rows
from roskva.capture.stores.binlog.tables import Codecs, Describe
from roskva.capture.stores.mysql.gtids import Gtids
from roskva.capture.stores.mysql.marks import Mark, Marks
from roskva.capture.updates import Change, Operation
from roskva.errors import CaptureRefused, DatastoreUnavailable, LogCut

GTID, ANONYMOUS, PARTIAL_UPDATE, PAYLOAD, TAGGED = 33, 34, 39, 40, 42
# STOP, INTVAR, RAND, USER_VAR, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE: none of them has changes. What a
# statement means by the second to fourth of these is refused with the statement.
WITHOUT_CHANGES: Final = frozenset((3, 5, 13, 14, 28, 29, 35, 36, 37))
_IGNORABLE: Final = 0x80  # a flag of what a server may pass over that does not know its kind
_LOGICAL_TIMES: Final = 2  # the byte before what a GTID has besides
_ORIGINAL_FOLLOWS: Final = 1 << 55

_NAMES: Final = {
    PARTIAL_UPDATE: ("a part of a JSON value instead of the whole", "SET GLOBAL binlog_row_value_options = '', in every session"),
    PAYLOAD: ("a compressed transaction", "SET GLOBAL binlog_transaction_compression = OFF, in every session"),
}


def gtid_of(event: bytes) -> tuple[bytes, int]:
    """Of an event that begins a group: the UUID, and the number."""
    at = HEADER_BYTES + 1
    return event[at : at + 16], int.from_bytes(event[at + 16 : at + 24], "little")


class MysqlDecoder(Decoder):
    rows: ClassVar[Mapping[int, Rows]] = {
        **ROWS,
        30: Rows(Operation.INSERT, extra=True),
        31: Rows(Operation.UPDATE, extra=True),
        32: Rows(Operation.DELETE, extra=True),
    }

    def __init__(
        self,
        after: Position,
        source: str,
        codecs: Codecs,
        describe: Describe,
        committed: Callable[[], tuple[Gtids, Gtids]],
        prepared_xa_counts: bool = False,
        last: int = 0,
        marks: Marks | None = None,
        expected: int = 0,
    ) -> None:
        """`committed`: what the server has committed until now, and what of that is gone from its log. `expected`: the number that must
        come first, if reading begins at a mark."""
        super().__init__(after, codecs, describe, prepared_xa_counts, last)
        self._marks = marks or Marks()
        self._expected = expected
        self._source = source
        self._source_bytes = UUID(source).bytes
        self._committed = committed

    def decode(self, event: bytes, changes: list[Change]) -> None:
        try:
            super().decode(event, changes)
        except DatastoreUnavailable:
            if self._expected:
                self._marks.forget()
            raise

    def _begins(self, kind: int, event: bytes, end: int) -> bool:
        if kind == GTID:
            source, sequence = gtid_of(event)
            self._check_mark(source, sequence)
            if source != self._source_bytes:
                self._refuse_other(f"a commit of another server, {UUID(bytes=source)}:{sequence}", _PROMOTED.format(UUID(bytes=source)))
            else:
                last = self._last
                self._check_gap(sequence)
                self._begin(sequence, _committed_us(event, end), standalone=True)
                self._marks.add(self._file, Mark(sequence, last, int.from_bytes(event[13:17], "little") - len(event)))
        elif kind == ANONYMOUS:
            self._refuse_other("a commit without a GTID", "Capture needs gtid_mode = ON.")
        elif kind == TAGGED:
            self._refuse_other("a commit with a tag in its GTID", "Capture needs gtid_next = AUTOMATIC in every session, without a tag.")
        else:
            return False
        return True

    def _check_mark(self, source: bytes, sequence: int) -> None:
        if not self._expected:
            return
        if (source, sequence) != (self._source_bytes, self._expected):
            raise DatastoreUnavailable(f"The log has been begun anew: {self._expected} is not where it was.")
        self._expected = 0

    def _refuse_other(self, what: str, do: str) -> None:
        self._wanted = False
        if not self._is_after_the_last():
            return
        raise CaptureRefused(
            f"The log has {what} after {self.reached}, and positions are numbers of {self._source}. {do} To go on behind it without what "
            f"it changed: `roskva capture rewind APPLICATION 0/{self._last + 1}.0`, as soon as {self._source} has committed that."
        )

    def _check_gap(self, sequence: int) -> None:
        """Whether what is missing before this number was never committed."""
        after = self._after
        first = max(self._last + 1, after.sequence + 1 if after.index == WHOLE else after.sequence)
        if sequence <= max(first, self._last):
            return  # nothing is missing, or what is was dealt with
        executed, purged = self._committed()
        found = executed.last_within(self._source, first, sequence - 1)
        if not found:
            return
        self._wanted = False
        gone = purged.last_within(self._source, first, sequence - 1)
        if gone:
            raise LogCut(self.reached, Position(0, gone))
        self._refuse_places(f"{sequence} before {found}")

    def _refuse_order(self, sequence: int) -> NoReturn:
        self._wanted = False
        self._refuse_places(f"{sequence} after {self._last}")

    def _refuse_places(self, which: str) -> NoReturn:
        raise CaptureRefused(
            f"The log has the commit {which} of {self._source}, after {self.reached}: it is out of order, and positions need commits whose "
            "numbers grow. Capture needs replica_preserve_commit_order = ON at every replica, and no gtid_next that a person sets ahead."
        )

    def _session_begins(self, text: str) -> bool:
        if not text.startswith("XA START "):
            return super()._session_begins(text)
        if not self._prepared_xa_counts:
            self._refuse(
                "an XA transaction, of which nobody knows yet whether it will be committed",
                "no XA, or the setting prepared_xa_counts, with which its rows are published when it is prepared",
            )
        return True

    def _other(self, kind: int, event: bytes) -> None:
        if kind in WITHOUT_CHANGES or int.from_bytes(event[17:19], "little") & _IGNORABLE:
            return
        what, needs = _NAMES.get(
            kind, (f"an event of the kind {kind}, which does not tell the rows", "binlog_format = ROW in every session")
        )
        self._refuse(what, needs)


_PROMOTED: Final = (
    'If that is the server that is written to now, since a replica was promoted: begin anew with `source = "{}"` in [datastore]. If it was '
    "a write to a replica by mistake: read another server, or build this one anew."
)


def _committed_us(event: bytes, end: int) -> int:
    """When the server committed it that wrote it first, by its clock."""
    at = HEADER_BYTES + 25
    if at + 24 > end or event[at] != _LOGICAL_TIMES:
        return int.from_bytes(event[:4], "little") * 1_000_000
    at += 17
    here = int.from_bytes(event[at : at + 7], "little")
    return int.from_bytes(event[at + 7 : at + 14], "little") if here & _ORIGINAL_FOLLOWS else here
